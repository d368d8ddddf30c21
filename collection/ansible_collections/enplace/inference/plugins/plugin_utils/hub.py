# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""What a model hub has: the commit of a revision, and the files of a commit with size and SHA-256.

The part of the Hugging Face Hub's HTTP interface that pinning needs, standard library only. Nothing is believed twice:
small files, of which the hub states git's digest alone, are read and compared with that digest. Large ones carry their
SHA-256 and are not read.

A token is a parameter, goes to the hub's own origin and to no other, and is in no message.
"""

from __future__ import annotations

import fnmatch
import hashlib
import http.client
import ipaddress
import json
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .recipe import Problem, RecipeError

ENDPOINT = "https://huggingface.co"
TIMEOUT_S = 30.0
# Tries of one request, with 1 s, 2 s, ... between them; a hub says 429 or 5xx in passing.
TRIES = 3
# Bytes of one answer in JSON, and of one small file. The hub keeps larger ones as large files, with their SHA-256.
MAX_JSON = 32_000_000
MAX_SMALL = 64_000_000
MAX_FILES = 20_000
MAX_REDIRECTS = 5

_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PASSING = frozenset({429, 500, 502, 503, 504})


class HubError(RecipeError):
    """The hub cannot be asked, or what it says cannot be used."""


@dataclass(frozen=True)
class _Answer:
    body: bytes
    headers: Mapping[str, str]


def endpoint_of(environment: Mapping[str, str], given: str = "") -> str:
    """The hub's address without a slash at its end: the given one, else HF_ENDPOINT, else that of the Hugging Face Hub.

    Raises HubError for what is no plain http(s) address.
    """
    found = (given or environment.get("HF_ENDPOINT", "") or ENDPOINT).rstrip("/")
    try:
        parts = urllib.parse.urlsplit(found)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
        parts = urllib.parse.SplitResult("", "", "", "", "")
    if not good or "@" in parts.netloc or parts.query or parts.fragment or re.search(r"[\s\x00-\x1f\x7f]", found):
        # A password may be in it.
        shown = "an address with a user name in it" if "@" in found else found
        what = "is not the address of a hub"
        raise HubError([Problem("the hub's address", what, shown, "https://host", "correct it, or HF_ENDPOINT")])
    return found


def token_of(environment: Mapping[str, str], file: str | Path | None = None) -> str | None:
    """The hub's token: from the file, else from HF_TOKEN, else from the file that HF_TOKEN_PATH names; None: none.

    Raises HubError, which never holds any of the content.
    """
    path = file or (None if environment.get("HF_TOKEN") else environment.get("HF_TOKEN_PATH"))
    if path:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            said = error.strerror if isinstance(error, OSError) and error.strerror else "not readable as text"
            raise HubError(
                [Problem(f"the hub's token, {path}", "cannot be read", said, "a file with the token")]
            ) from error
    else:
        text = environment.get("HF_TOKEN", "")
    token = text.strip()
    if path and not token:
        raise HubError([Problem(f"the hub's token, {path}", "is empty", "nothing", "the token and nothing else")])
    if token and not re.fullmatch(r"[!-~]+", token):
        where = f"the hub's token, {path or 'HF_TOKEN'}"
        raise HubError([Problem(where, "is not a token", "more than one word, or odd characters", "one word")])
    return token or None


def resolve_revision(
    endpoint: str,
    repository: str,
    revision: str = "main",
    token: str | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
    ca_bundle: str | None = None,
) -> str:
    """The commit (40 hex digits) of a branch, a tag or a commit. Raises HubError."""
    client = _Client(endpoint, repository, token, timeout_s, ca_bundle)
    quoted = urllib.parse.quote(revision, safe="")
    answer = client.json(f"/api/models/{repository}/revision/{quoted}", f"revision {revision}")
    commit = answer.get("sha") if isinstance(answer, Mapping) else None
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise client.unusable(f"the answer about revision {revision} names no commit", str(commit)[:80])
    if _COMMIT.fullmatch(revision) and commit != revision:
        raise client.unusable(f"another commit than {revision} was answered", commit)
    return commit


def manifest(
    endpoint: str,
    repository: str,
    commit: str,
    include: Sequence[str] = (),
    token: str | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
    ca_bundle: str | None = None,
) -> list[dict[str, Any]]:
    """The files of a commit by path, each {path, bytes, sha256}. include: patterns as `hf download --include` takes.

    Raises HubError; also where no file is left, or one does not have the digest that the hub states.
    """
    client = _Client(endpoint, repository, token, timeout_s, ca_bundle)
    if not _COMMIT.fullmatch(commit):
        raise client.problem("is not a commit", commit[:80], "40 hex digits", "resolve the revision first")
    every = dict(_tree(client, commit))
    wanted = {path: entry for path, entry in every.items() if included(path, include)}
    if not wanted:
        found = ", ".join(sorted(every)[:10]) or "an empty repository"
        expected = "a file that matches " + ", ".join(include) if include else "at least one file"
        raise client.problem(f"has no file to download at {commit[:12]}", found, expected, "correct include")
    return [
        {"path": path, "bytes": entry["size"], "sha256": _sha256(client, commit, path, entry)}
        for path, entry in sorted(wanted.items())
    ]


def included(path: str, include: Sequence[str]) -> bool:
    """Whether `hf download` with these --include patterns takes a file: any of them fits the whole path; none: all."""
    return not include or any(
        fnmatch.fnmatchcase(path, pattern + "*" if pattern.endswith("/") else pattern) for pattern in include
    )


def _tree(client: _Client, commit: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Path and entry of every file, over all pages."""
    url: str | None = f"/api/models/{client.repository}/tree/{commit}?recursive=true"
    seen: set[str] = set()
    paths: set[str] = set()
    while url:
        if url in seen:
            raise client.unusable("the list of files goes round in circles", url)
        seen.add(url)
        page, headers = client.json_and_headers(url, f"files of {commit[:12]}")
        if not isinstance(page, list):
            raise client.unusable("the list of files is no list", type(page).__name__)
        for entry in page:
            if not isinstance(entry, Mapping) or entry.get("type") != "file":
                continue
            path = entry.get("path")
            size = entry.get("lfs", entry).get("size") if isinstance(entry.get("lfs", entry), Mapping) else None
            if not isinstance(path, str) or not _is_inside(path):
                raise client.unusable("a file's path leads out of the repository", str(path)[:80])
            if path in paths or not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise client.unusable("an entry of the list of files makes no sense", str(dict(entry))[:200])
            paths.add(path)
            if len(paths) > MAX_FILES:
                raise client.unusable("the repository has too many files", f"more than {MAX_FILES}")
            yield path, {**entry, "size": size}
        url = _next_page(client, headers)


def _is_inside(path: str) -> bool:
    parts = path.split("/")
    return not re.search(r"[\x00-\x1f\x7f\\]", path) and all(part not in ("", ".", "..") for part in parts)


def _next_page(client: _Client, headers: Mapping[str, str]) -> str | None:
    match = re.search(r'<([^>]+)>\s*;\s*rel="?next"?', headers.get("link", ""))
    if not match:
        return None
    url: str = urllib.parse.urljoin(client.endpoint, match[1])
    if _origin(url) != _origin(client.endpoint):
        raise client.unusable("the next page of the list of files is on another host", _shown(url))
    return url


def _sha256(client: _Client, commit: str, path: str, entry: Mapping[str, Any]) -> str:
    """SHA-256 of a file: as the hub states it, or of the content if git's digest of that is right."""
    large = entry.get("lfs")
    if isinstance(large, Mapping):
        oid = str(large.get("oid", "")).removeprefix("sha256:")
        if not _SHA256.fullmatch(oid):
            raise client.unusable(f"the large file {path} has no SHA-256", oid[:80] or "nothing")
        return oid
    size = int(entry["size"])
    if size > MAX_SMALL:
        raise client.unusable(f"{path} is too large to be a small file", f"{size} bytes, at most {MAX_SMALL}")
    quoted = urllib.parse.quote(path, safe="/")
    answer = client.get(f"/{client.repository}/resolve/{commit}/{quoted}", path, limit=size)
    body = answer.body
    if len(body) != size:
        raise client.unusable(f"{path} has not the size that the hub states", f"{len(body)} bytes, not {size}")
    oid = hashlib.sha1(b"blob %d\0" % size + body, usedforsecurity=False).hexdigest()
    if oid != entry.get("oid"):
        raise client.unusable(f"{path} has not the digest that the hub states", f"git {oid}, not {entry.get('oid')}")
    return hashlib.sha256(body).hexdigest()


def _origin(url: str) -> tuple[str, str, int]:
    parts = urllib.parse.urlsplit(url)
    port = parts.port or {"https": 443, "http": 80}.get(parts.scheme, 0)
    return parts.scheme, (parts.hostname or "").lower(), port


def _shown(url: str) -> str:
    """An address for a message: without what may be a signature or a password."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"[:200]


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows to http(s) alone, never from https down to http, and leaves the token behind at another origin."""

    max_redirections = MAX_REDIRECTS

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        old, new = _origin(req.full_url), _origin(newurl)
        if new[0] not in ("http", "https") or (old[0] == "https" and new[0] != "https"):
            raise urllib.error.URLError(f"redirected to {_shown(newurl)}, which is not safe to follow")
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None and new == old and req.has_header("Authorization"):
            request.add_unredirected_header("Authorization", str(req.get_header("Authorization")))
        return request


class _Client:
    """Requests about one repository of one hub."""

    def __init__(
        self, endpoint: str, repository: str, token: str | None, timeout_s: float, ca_bundle: str | None
    ) -> None:
        self.endpoint = endpoint_of({}, endpoint)
        self.repository = repository
        self.timeout_s = timeout_s
        self.token = token
        if not _REPOSITORY.fullmatch(repository):
            raise HubError([Problem("repository", "is not a repository's name", repository[:80], "<org>/<name>")])
        if token and not _may_carry_a_token(self.endpoint):
            todo = "use https, or leave the token out"
            raise self.problem("would get the token in clear text", self.endpoint, "an https address", todo)
        context = ssl.create_default_context(cafile=ca_bundle or None)
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _Redirects())

    def problem(self, what: str, found: str = "", expected: str = "", todo: str = "") -> HubError:
        return HubError([Problem(f"{self.endpoint} {self.repository}", what, found, expected, todo)])

    def unusable(self, what: str, found: str) -> HubError:
        todo = "do not pin from this hub; if it is a mirror, compare it with what it mirrors"
        return self.problem(f"cannot be pinned: {what}", found, "", todo)

    def json(self, path: str, what: str) -> Any:
        return self.json_and_headers(path, what)[0]

    def json_and_headers(self, path: str, what: str) -> tuple[Any, Mapping[str, str]]:
        answer = self.get(path, what, limit=MAX_JSON, kind="application/json")
        try:
            return json.loads(answer.body), answer.headers
        except (ValueError, RecursionError) as error:
            found = answer.body[:80].decode("utf-8", "replace")
            raise self.unusable(f"the answer about {what} is no JSON", found) from error

    def get(self, path: str, what: str, *, limit: int, kind: str = "*/*") -> _Answer:
        """The whole of an answer of at most `limit` bytes. Tries again what fails in passing. Raises HubError."""
        url = path if "://" in path else self.endpoint + path
        for number in range(1, TRIES + 1):
            try:
                return self._get(url, what, limit, kind)
            except urllib.error.HTTPError as error:
                with error:
                    if error.code not in _PASSING or number == TRIES:
                        raise self._refused(error, what) from None
            except (OSError, http.client.HTTPException) as error:
                # A certificate that is not trusted now is not trusted in a second either.
                reason = getattr(error, "reason", error)
                if number == TRIES or isinstance(reason, ssl.SSLCertVerificationError):
                    raise self._unreachable(reason, what) from None
            time.sleep(number)
        raise AssertionError("the last try returns or raises")

    def _get(self, url: str, what: str, limit: int, kind: str) -> _Answer:
        # Compressed answers would hide their size.
        headers = {"Accept": kind, "Accept-Encoding": "identity", "User-Agent": "enplace"}
        request = urllib.request.Request(url, headers=headers)
        if self.token:
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        deadline = time.monotonic() + 20 * self.timeout_s
        with self._opener.open(request, timeout=self.timeout_s) as answer:
            body = bytearray()
            while chunk := answer.read1(1 << 20):
                body += chunk
                if len(body) > limit:
                    raise self.unusable(f"the answer about {what} is too large", f"more than {limit} bytes")
                if time.monotonic() > deadline:
                    raise TimeoutError(f"not complete after {20 * self.timeout_s:.0f} s")
            if answer.length:
                raise http.client.IncompleteRead(b"", answer.length)
            return _Answer(bytes(body), {name.lower(): value for name, value in answer.headers.items()})

    def _refused(self, error: urllib.error.HTTPError, what: str) -> HubError:
        code = error.headers.get("X-Error-Code", "")
        said = self._without_token(error.headers.get("X-Error-Message", "") or str(error.reason))
        found = f"HTTP {error.code} {said}"[:300]
        if code == "RevisionNotFound":
            return self.problem(f"has no {what}", found, "a branch, a tag or a commit", "correct the revision")
        if code == "GatedRepo" or error.code == 403:
            todo = f"accept the model's terms at {self.endpoint}/{self.repository} and "
            todo += "use a token of that account" if self.token else "give a token of that account (HF_TOKEN)"
            return self.problem("is gated: the hub does not give it to everybody", found, "access", todo)
        if error.code == 401:
            todo = "correct the repository's name; if it is private, "
            todo += "use a token that may read it" if self.token else "give a token that may read it (HF_TOKEN)"
            return self.problem("is not there, or not for everybody", found, "a repository that can be read", todo)
        if error.code == 404:
            if code == "EntryNotFound":
                return self.unusable(f"{what} is in the list of files and cannot be had", found)
            todo = "correct the repository's name, or the revision; a private repository needs a token"
            return self.problem(f"is not there: {what}", found, "a repository of models", todo)
        todo = "wait a while and run again" if error.code in _PASSING else "see what the hub says"
        return self.problem(f"did not answer about {what}", found, "HTTP 200", todo)

    def _unreachable(self, reason: Any, what: str) -> HubError:
        found = self._without_token(str(reason))[:300] or type(reason).__name__
        todo = "check network, proxy, certificates (enplace_ca_bundle) and the hub's address (HF_ENDPOINT)"
        return self.problem(f"could not be asked about {what}", found, "an answer", todo)

    def _without_token(self, text: str) -> str:
        return text.replace(self.token, "***") if self.token else text


def _may_carry_a_token(endpoint: str) -> bool:
    parts = urllib.parse.urlsplit(endpoint)
    if parts.scheme == "https" or parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False
