# Copyright (c) 2026, the enplace authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs run by argument list, with a deadline, an environment of their own and the end of their output for errors.

Standard library only, Python 3.9 or newer. Nothing here knows Ansible.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.enplace.inference.plugins.module_utils.files import Failure

#: Variables that reach a child: what the network path needs. All else a child gets is named by its caller.
PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")

#: Return code of a command that was stopped at its deadline, as timeout(1) gives it.
TIMED_OUT = 124

# Runs "$@" and, when its input closes because whoever holds the other end has died, kills it with all its children.
_LEASH = """
exec {0}<&0
( read -r _ <&{0}; kill -KILL 0 ) >/dev/null 2>&1 &
watch=$!
"$@" </dev/null {0}<&- &
wait $!
rc=$?
kill -KILL $watch
exit $rc
"""

#: Return code of a command that its watch gave up on.
GIVEN_UP = 125


@dataclass(frozen=True)
class Result:
    """How a command ended. ``argv`` never holds a secret: secrets travel in the environment or in files."""

    argv: tuple[str, ...]
    rc: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        return self.rc == 0

    def tail(self, lines: int = 20) -> str:
        """The last lines of both streams: the errors' stream last, because it says why."""
        return tail("\n".join(part.rstrip() for part in (self.stdout, self.stderr) if part.strip()), lines)

    def said(self) -> str:
        """One line for ``found:`` in an error."""
        if self.rc == TIMED_OUT:
            return "stopped at its deadline"
        if self.rc == GIVEN_UP:
            return "stopped: nothing came any more"
        if self.rc < 0:
            return f"ended by signal {-self.rc}"
        return f"return code {self.rc}"


def tail(text: str, lines: int = 20) -> str:
    """The last lines of a text that are not blank."""
    kept = [line.rstrip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
    return "\n".join(kept[-lines:])


def base_environment(home: str = "") -> dict[str, str]:
    """The environment a child starts from: a fixed path and locale, plus the proxy variables of this process.

    ``home`` empty means the home of this process's user, as the user database has it.

    Settings of package tools that happen to be set for the calling user are left out on purpose: they would make the
    result depend on who runs it.
    """
    result = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "HOME": home or _home(),
    }
    for name in PROXY_VARIABLES:
        for spelled in (name, name.upper()):
            if os.environ.get(spelled):
                result[spelled] = os.environ[spelled]
    return result


def _home() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return "/"


def run(
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    cwd: str = "/",
    timeout_s: float = 60.0,
    user: str = "",
    keep: Sequence[int] = (),
    watch: Callable[[int], bool] | None = None,
    watch_every_s: float = 1.0,
    leash: bool = False,
) -> Result:
    """Run a program to its end, or to its deadline, and return what it said.

    ``env`` is the child's whole environment (default: `base_environment`). With ``user`` the child runs as that user,
    with its groups; only root may ask for another one. ``keep`` are file descriptors the child inherits: a lock's, so
    that it stays locked while the child works even if this process is killed. At the deadline the child's whole process
    group is killed and the result's ``rc`` is `TIMED_OUT`. ``watch`` is called with the child's process id every
    ``watch_every_s`` seconds; when it answers False the group is killed and ``rc`` is `GIVEN_UP`. With ``leash`` the
    group is also killed when this process dies in whatever way; its first process is then a shell. Raises Failure if
    the program is not there or the user does not exist.
    """
    if not leash:
        return _run(argv, env, cwd, timeout_s, user, keep, watch, watch_every_s)
    near, far = os.pipe()
    try:
        return _run(argv, env, cwd, timeout_s, user, keep, watch, watch_every_s, near)
    finally:
        os.close(near)
        os.close(far)


def _run(
    argv: Sequence[str],
    env: Mapping[str, str] | None,
    cwd: str,
    timeout_s: float,
    user: str,
    keep: Sequence[int],
    watch: Callable[[int], bool] | None,
    watch_every_s: float,
    leash: int = -1,
) -> Result:
    """`run`; ``leash`` is the end of a pipe that the child reads from, whose other end nobody else has."""
    held = leash != -1
    # The shell knows descriptors of one digit alone.
    number = next(digit for digit in range(3, 10) if digit not in keep)
    identity: dict[str, object] = {}
    if user:
        try:
            entry = pwd.getpwnam(user)
        except KeyError:
            raise Failure(
                what="no such user",
                where=argv[0],
                expected=f"a user named {user}",
                found="none in the user database",
                todo="run the host role first, it makes the user",
            ) from None
        if entry.pw_uid != os.geteuid():
            groups = os.getgrouplist(user, entry.pw_gid)
            identity = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": groups}
    try:
        if held and shutil.which(argv[0]) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
        process = subprocess.Popen(
            ["/bin/sh", "-c", _LEASH.format(number), "sh", *argv] if held else list(argv),
            stdin=leash if held else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=dict(base_environment() if env is None else env),
            start_new_session=True,
            pass_fds=tuple(keep),
            umask=0o022,
            **identity,  # type: ignore[call-overload]
        )
    except FileNotFoundError as error:
        raise Failure(
            what="a program is missing",
            where=argv[0],
            expected=f"an executable file, started in {cwd}",
            found=str(error),
            todo="install it, or name the right path",
        ) from None
    except PermissionError as error:
        raise Failure(
            what="a program cannot be started",
            where=argv[0],
            expected="an executable file{}".format(f" that user {user} may run" if user else ""),
            found=str(error),
            todo="check the owner and the mode of the file and of the folders above it",
        ) from None
    deadline, ended = time.monotonic() + timeout_s, 0
    try:
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                out, err = process.communicate(timeout=min(left, watch_every_s) if watch else left)
                break
            except subprocess.TimeoutExpired:
                if time.monotonic() >= deadline:
                    ended = TIMED_OUT
                elif watch and not watch(process.pid):
                    ended = GIVEN_UP
            if ended:
                _kill_group(process.pid)
                out, err = process.communicate()
                break
    except BaseException:
        _kill_group(process.pid)
        process.communicate()
        raise
    return Result(
        argv=tuple(argv),
        rc=ended or process.returncode,
        stdout=out.decode("utf-8", "replace"),
        stderr=err.decode("utf-8", "replace"),
    )


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
