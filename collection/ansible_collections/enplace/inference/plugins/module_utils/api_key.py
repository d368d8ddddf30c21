# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The key of a server's interface: a file on the host, for root alone. Nothing here ever shows what is in it.

Standard library only, Python 3.9 or newer.
"""

from __future__ import annotations

import os
import re
import stat

from ansible_collections.enplace.inference.plugins.module_utils.files import Failure

#: Fewer can be guessed by asking.
MIN_CHARACTERS = 16
MAX_BYTES = 4096
#: Whose file it must be: a user id. On a controller whoever asks is not root, and it may be his own.
OWNER = 0
EXPECTED = f"a plain file of root, mode 0600 or stricter, with one line of at least {MIN_CHARACTERS} characters"


def check_key_file(path: str) -> None:
    """Whether a server's key can be taken from this file. Raises Failure, which says why not."""
    read_key(path)


def read_key(path: str) -> str:
    """The key in a file, if file and key are what they must be. Raises Failure, which says why not."""
    try:
        # A link's own mode says nothing, and a pipe would be waited for.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise _failure(path, error.strerror or str(error)) from None
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise _failure(path, "no plain file")
        if found.st_uid not in (OWNER, os.geteuid()):
            raise _failure(path, f"a file of user {found.st_uid}", f"chown root {path}")
        if found.st_mode & 0o7177:
            raise _failure(path, f"mode {stat.S_IMODE(found.st_mode):04o}", f"chmod 0600 {path}")
        content = os.read(handle, MAX_BYTES + 1)
    finally:
        os.close(handle)
    return _key_in(path, content)


def _key_in(path: str, content: bytes) -> str:
    lines = content.split(b"\n")
    if len(content) > MAX_BYTES:
        raise _failure(path, f"more than {MAX_BYTES} bytes")
    if len(lines) > 2 or (len(lines) == 2 and lines[1]):
        raise _failure(path, f"{len(lines) - (not lines[-1])} lines")
    # What a header may carry (RFC 6750, 2.1); none of it is ever written in another way, so that it can be masked.
    if not re.fullmatch(rb"[A-Za-z0-9._~+/=-]*", lines[0]):
        raise _failure(path, "other characters than A-Z a-z 0-9 . _ ~ + / = -")
    if len(lines[0]) < MIN_CHARACTERS:
        raise _failure(path, f"{len(lines[0])} characters")
    return lines[0].decode("ascii")


def _failure(path: str, found: str, todo: str = "") -> Failure:
    todo = todo or f"make one: (umask 077; head -c 32 /dev/urandom | base64 | tr -d '\\n' > {path})"
    return Failure("the file with the API key cannot be used", path, EXPECTED, found, todo)
