# Copyright (c) 2026, the enplace authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What may keep a download from succeeding, asked before its first byte: the token, the hub, the gate, the revision.

One question to the hub for each repository; a second one, for the headers of one file, where the hub says that the
repository is gated, because its list of files is open to everybody.

Standard library only, Python 3.9 or newer. Nothing here knows Ansible.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import ssl
import stat
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils.files import Failure

ENDPOINT = "https://huggingface.co"
TIMEOUT_S = 20.0
#: Tries of one question, with 1 s, 2 s, ... between them: a hub says 429 or 5xx in passing.
TRIES = 3
#: Bytes of one answer. The largest repositories have some thousand files, of a hundred bytes each in it.
MAX_BYTES = 16_000_000

_PASSING = frozenset({429, 500, 502, 503, 504})


@dataclass(frozen=True)
class Answer:
    """What the hub said: status, headers by name in small letters, body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def said(self) -> str:
        """One line for ``found:``, with the hub's own words. They are a stranger's: short, and printable alone."""
        words = re.sub(r"[^ -~]+", " ", self.headers.get("x-error-message", ""))[:200].strip()
        return f"status {self.status}" + (f": {words}" if words else "")


def read_token(path: str) -> str:
    """The token in a file, empty where no file is named. Raises Failure, which never holds any of the content."""
    if not path:
        return ""
    try:
        with open(path, encoding="utf-8") as stream:
            status = os.fstat(stream.fileno())
            token = stream.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(
            what="the hub's token cannot be read",
            where=f"{path} (enplace_hub_token_file)",
            expected="a file on the host that holds the token, mode 0600",
            found=(error.strerror if isinstance(error, OSError) else "") or "bytes that are no text",
            todo="put the file there, or leave enplace_hub_token_file out if the repository is public",
        ) from None
    if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077:
        raise Failure(
            what="the hub's token is open to others",
            where=f"{path} (enplace_hub_token_file)",
            expected="a plain file, mode 0600 or stricter",
            found=f"mode {stat.S_IMODE(status.st_mode):04o}, owner {status.st_uid}",
            todo=f"chmod 0600 {path} on the host; if others have an account there, make a new token",
        )
    if not token or not re.fullmatch(r"[!-~]+", token):
        raise Failure(
            what="the hub's token cannot be read",
            where=f"{path} (enplace_hub_token_file)",
            expected="one word",
            found="an empty file" if not token else "more than one word, or odd characters",
            todo="write the token, and nothing else, into the file",
        )
    return token


def demand(endpoint: str, repo: str, revision: str, paths: Sequence[str], token: str = "", ca_bundle: str = "") -> None:
    """Raise Failure unless the hub will give these files of a repository at a revision to this token."""
    hub = _Hub(endpoint or ENDPOINT, repo, revision, token, ca_bundle)
    answer = hub.ask("GET", f"/api/models/{repo}/revision/{revision}")
    if answer.status != 200:
        raise hub.refusal(answer)
    try:
        about: Any = json.loads(answer.body)
        names = {str(entry["rfilename"]) for entry in about["siblings"]}
    except (ValueError, KeyError, TypeError):
        raise hub.failure(
            "what answers at the hub's address is no model hub",
            "JSON about the repository",
            "an answer of another kind",
            "correct enplace_hub_endpoint",
        ) from None
    absent = [path for path in paths if path not in names]
    if absent:
        raise hub.failure(
            "the repository does not have all files of the recipe's manifest",
            "{} at this revision".format(", ".join(absent[:5]) + (", ..." if absent[5:] else "")),
            f"{len(names)} files, without {'them' if absent[1:] else 'it'}",
            "correct weights.files or the revision in the recipe: enplace pin writes both",
        )
    if about.get("gated"):
        path = urllib.parse.quote(paths[0], safe="/")
        answer = hub.ask("HEAD", f"/{repo}/resolve/{revision}/{path}")
        if answer.status >= 400:
            raise hub.refusal(answer, gated=True)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A file's address answers with a redirect to where its content lies: that is a yes, and not to be followed."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


class _Hub:
    def __init__(self, endpoint: str, repo: str, revision: str, token: str, ca_bundle: str) -> None:
        self.endpoint = endpoint.rstrip("/")
        self.repo, self.revision, self.token, self.ca_bundle = repo, revision, token, ca_bundle

    def ask(self, method: str, path: str) -> Answer:
        request = urllib.request.Request(self.endpoint + path, method=method, headers={"User-Agent": "enplace"})
        if self.token:
            # Not carried along to another origin, should anything here ever follow a redirect.
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        handlers: list[urllib.request.BaseHandler] = []
        if method == "HEAD":
            handlers.append(_NoRedirect())
        try:
            if self.endpoint.startswith("https:"):
                context = ssl.create_default_context(cafile=self.ca_bundle or None)
                handlers.append(urllib.request.HTTPSHandler(context=context))
            opener = urllib.request.build_opener(*handlers)
        except OSError as error:
            raise self.failure(
                "the CA bundle cannot be used",
                "certificates in PEM format",
                error.strerror or str(error),
                f"correct enplace_ca_bundle ({self.ca_bundle})",
            ) from None
        for number in range(1, TRIES + 1):
            try:
                answer = _answer(opener, request)
            except (OSError, ValueError, http.client.HTTPException) as error:
                if number == TRIES or isinstance(_cause(error), (ssl.SSLError, ValueError)):
                    raise self._unreachable(error) from None
            else:
                if answer.status not in _PASSING or number == TRIES:
                    return answer
            time.sleep(number)
        raise AssertionError("unreachable")

    def failure(self, what: str, expected: str, found: str, todo: str) -> Failure:
        where = f"{self.repo}@{self.revision[:12]} at {self.endpoint}"
        return Failure(what=what, where=where, expected=expected, found=found, todo=todo)

    def _unreachable(self, error: Exception) -> Failure:
        cause = _cause(error)
        if isinstance(cause, ssl.SSLError):
            return self.failure(
                "the host does not trust the hub's certificate",
                "a certificate that the host's bundle vouches for",
                str(getattr(cause, "verify_message", "")) or str(cause),
                "name the CA bundle (enplace_ca_bundle), or correct enplace_hub_endpoint",
            )
        return self.failure(
            "the hub cannot be reached from the host",
            f"an answer within {TIMEOUT_S:.0f} s",
            str(cause) or type(cause).__name__,
            "check the host's network, its proxy and enplace_hub_endpoint; a host without a way to a hub takes its "
            "weights from another one (enplace_weights_source: fleet), or is given them (offline)",
        )

    def refusal(self, answer: Answer, gated: bool = False) -> Failure:
        """Why the hub does not give it, told apart by what a person has to do."""
        code, words = answer.headers.get("x-error-code", ""), answer.headers.get("x-error-message", "").lower()
        page = f"{self.endpoint}/{self.repo}"
        gated = gated or code == "GatedRepo"
        if answer.status == 401 and not self.token:
            if gated:
                return self.failure(
                    "the repository is gated, and no token was sent",
                    "a token of an account that has accepted the terms",
                    answer.said(),
                    f"accept the model's terms at {page}, write a token of that account into a file on the host, mode "
                    "0600, and name the file (enplace_hub_token_file)",
                )
            return self.failure(
                "the hub shows this repository to no stranger: it is private, or not there",
                "a public repository, or a token that may read it",
                answer.said(),
                "correct the repository in the recipe, or name a file with a token (enplace_hub_token_file)",
            )
        if answer.status == 401:
            return self.failure(
                "the hub does not know the token",
                "a token that is valid",
                answer.said(),
                "make a new token at the hub and put it into the file that enplace_hub_token_file names",
            )
        if answer.status == 403:
            if "fine-grained" in words or "token settings" in words:
                what, todo = "the token may not read gated repositories", "allow it in the token's settings at the hub"
            elif "await" in words or "review" in words or "pending" in words:
                what, todo = "the request for access is not answered yet", "wait for the owner of the repository"
            elif gated:
                what = "the token's account has not been given access: its terms are not accepted"
                todo = f"accept the model's terms at {page} with the account that the token belongs to"
            else:
                what, todo = "the hub forbids it", "check what the token, or this host's address, may read at the hub"
            if not self.token:
                todo += "; no token was sent (enplace_hub_token_file)"
            return self.failure(what, "access to the files", answer.said(), todo)
        if answer.status == 404 and code == "RevisionNotFound":
            return self.failure(
                "the hub has the repository, but not this revision",
                f"revision {self.revision}",
                answer.said(),
                "correct the revision in the recipe; a mirror (enplace_hub_endpoint) may not have it yet",
            )
        if answer.status == 404:
            return self.failure(
                "the hub does not have this repository",
                "the repository that the recipe names",
                answer.said(),
                "correct the repository in the recipe, enplace_hub_endpoint, or name a file with a token if it is "
                "private (enplace_hub_token_file)",
            )
        return self.failure(
            "the hub does not answer as a hub does",
            "status 200",
            answer.said(),
            "run again later; if it lasts, use another hub (enplace_hub_endpoint)",
        )


def _answer(opener: urllib.request.OpenerDirector, request: urllib.request.Request) -> Answer:
    try:
        with opener.open(request, timeout=TIMEOUT_S) as response:
            return Answer(response.status, _named(response.headers), response.read(MAX_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, _named(error.headers), b"")


def _named(headers: Any) -> dict[str, str]:
    return {name.lower(): str(value) for name, value in headers.items()}


def _cause(error: Exception) -> Exception:
    reason = getattr(error, "reason", None)
    return reason if isinstance(reason, Exception) else error
