# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The server under test: asked through the `openai` client, and by plain HTTP for what that client does not cover.

Every question ends: at its deadline, at a limit on bytes, or with a CheckFailed that says what came instead.
The client is imported when a Server is first used, never when this file is.
"""

from __future__ import annotations

import http.client
import json
import math
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils.files import Failure
from ansible_collections.enplace.inference.plugins.module_utils.ready import StayHere

# One reply, counted as it arrives. The largest honest one (20 logprobs for 512 tokens) has well under 1 MB.
MAX_REPLY_BYTES = 16 * 1024 * 1024
MAX_SHOWN = 300
CHAT = "POST /v1/chat/completions"
FINISHED = "vllm:request_success_total"
TOKENS = "vllm:generation_tokens_total"
STARTED = "process_start_time_seconds"
# The engine counts a request a moment after it has answered.
COUNTED_S = 5.0


# What servers answer where they have no such path.
NO_SUCH_PATH = (404, 405, 501)


class CheckFailed(Failure):
    """A check's demand that does not hold, with the evidence gathered until then.

    status: that of the HTTP answer it stands for; 0 for none.
    """

    def __init__(self, what: str, expected: str = "", found: Any = "", todo: str = "", **evidence: Any) -> None:
        super().__init__(masked(what), expected=masked(expected), found=shown(found), todo=todo)
        self.evidence = evidence
        self.status = 0


class Deadline:
    """A point in time that every question of one check shares. Thread-safe."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds left; raises CheckFailed when there are none."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise self.passed()
        return left

    def left_or_zero(self) -> float:
        """Seconds left, 0 when there are none."""
        return max(0.0, self._end - time.monotonic())

    def passed(self) -> CheckFailed:
        """What is raised when the deadline has passed."""
        return CheckFailed(
            "the deadline passed",
            f"an end within {self.seconds:g} s",
            "the server was still not done",
            "look into the server's journal; raise deadline_s only if this host is known to need longer",
        )


# Keys that this process asks with. A server may send one back, in an error or in a reply, and replies become evidence.
_keys: set[str] = set()


def masked(value: Any) -> Any:
    """A value with every key that this process asks with replaced by ***, in texts and in all that is made of them."""
    if isinstance(value, str):
        for key in _keys:
            for spelled in (key, urllib.parse.quote(key, safe="")):
                value = value.replace(spelled, "***")
        return value
    if isinstance(value, dict):
        return {masked(name): masked(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [masked(item) for item in value]
    return value


def shown(value: Any) -> str:
    """A value as text for a message, without keys, cut to a readable length."""
    # Before it is cut: the start of a key is a secret as well.
    text = masked(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({len(text)} characters)"


def within(deadline: Deadline, function: Callable[[], Any]) -> Any:
    """The function's result, or CheckFailed at the deadline.

    It runs in a thread of its own that is left behind then: a read that never returns cannot be ended from outside.
    """
    return together([function], deadline)[0]


class Caught:
    """A context that ends quietly with an error and keeps it: `with Caught() as caught: ...`, then `caught.error`.

    For errors that are to be raised in another thread, or that are a result: whatever a reply makes the code of a check
    stumble over is a failed check.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __enter__(self) -> Caught:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, Exception):
            self.error = error
        return self.error is not None


def together(functions: list[Callable[[], Any]], deadline: Deadline) -> list[Any]:
    """Results of all functions, run at once in a thread each; raises the first error, or CheckFailed when late."""
    results: list[Any] = [None] * len(functions)
    errors: list[Exception] = []

    def run(index: int) -> None:
        with Caught() as caught:
            results[index] = functions[index]()
        if caught.error is not None:
            errors.append(caught.error)

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(deadline.left_or_zero())
    if errors:
        raise errors[0]
    if any(thread.is_alive() for thread in threads):
        raise deadline.passed()
    return results


@dataclass(frozen=True)
class Vitals:
    """What tells whether the process stayed the same: its start (seconds since 1970), the requests it finished, and the
    tokens it generated."""

    started: float | None
    finished: float | None
    tokens: float | None = None

    @property
    def told(self) -> bool:
        """Whether there is anything by which one process is known from the next."""
        return self.started is not None or self.finished is not None

    def as_text(self) -> str:
        """All three, for a message."""
        return f"{STARTED} {self.started}, {FINISHED} {self.finished}, {TOKENS} {self.tokens}"

    def since(self, before: Vitals) -> str:
        """Why this is not the process that `before` was taken of; empty if nothing speaks against it."""
        if not self.told:
            return (
                "no process_start_time_seconds and no vllm:request_success_total in /metrics: a restart would go unseen"
            )
        if self.started != before.started:
            return (
                f"the process was started anew (process_start_time_seconds {before.started} before, {self.started} now)"
            )
        if (self.finished is None) != (before.finished is None):
            return "vllm:request_success_total came or went: a restart"
        if self.finished is not None and before.finished is not None and self.finished < before.finished:
            return (
                f"vllm:request_success_total fell from {before.finished:g} to {self.finished:g}: the server restarted"
            )
        return ""

    def missing(self, before: Vitals, answered: int) -> str:
        """Why these completions were not the engine's own; empty if it counted as many, or does not count at all."""
        if self.finished is None or before.finished is None or self.finished - before.finished >= answered:
            return ""
        return (
            f"{answered} completions arrived, but the engine finished only "
            f"{self.finished - before.finished:g} requests: something else answered"
        )


@dataclass(frozen=True)
class Series:
    """One line of /metrics: its exact name, its labels and its value, always a finite number."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse_series(text: str) -> list[Series]:
    """The series of a Prometheus text page; what is no number is left out."""
    found: list[Series] = []
    for line in text.splitlines():
        match = re.match(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)", line)
        if not match:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if math.isfinite(value):
            labels = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2] or "")
            found.append(Series(match[1], dict(labels), value))
    return found


def parse_metrics(text: str) -> dict[str, float]:
    """Series of a Prometheus text page, summed over their labels: `{name: value}`; what is no number is left out."""
    return _totals(parse_series(text))


def _totals(series: Iterable[Series]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for one in series:
        totals[one.name] = totals.get(one.name, 0.0) + one.value
    return totals


class Metrics:
    """One reading of /metrics. Names are exact: a counter ends in _total, and its _created series is another."""

    def __init__(self, text: str) -> None:
        self.series = parse_series(text)
        self._sums = _totals(self.series)

    def total(self, name: str) -> float | None:
        """The sum of a series over its labels; None where it is absent."""
        return self._sums.get(name)

    def labels(self, name: str) -> list[Mapping[str, str]]:
        """The labels of every line of a series."""
        return [one.labels for one in self.series if one.name == name]

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """A series summed for each value of one label."""
        sums: dict[str, float] = {}
        for one in self.series:
            if one.name == name and label in one.labels:
                sums[one.labels[label]] = sums.get(one.labels[label], 0.0) + one.value
        return sums

    @property
    def finished(self) -> float | None:
        """Requests that the engine has finished."""
        return self._sums.get(FINISHED, self._sums.get(FINISHED.removesuffix("_total")))


def at(reply: Any, *path: Any) -> Any:
    """The value at a path of keys and positions; CheckFailed names the part that the reply lacks."""
    value = reply
    for index, step in enumerate(path):
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            where = ".".join(str(part) for part in path[: index + 1])
            raise CheckFailed("the reply lacks a part", where, reply, "is this an OpenAI-compatible server?") from None
    return value


def whole(reply: Any, *path: Any) -> int:
    """The whole number at a path, not negative."""
    value = at(reply, *path)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise CheckFailed(f"{'.'.join(map(str, path))} is no count", "a whole number from 0", value)
    return value


class Server:
    """One server as one check sees it: its address, the model's name, and a deadline for all questions together.

    The key, empty for a server without one, is masked in all messages of this process from then on.
    """

    def __init__(self, url: str, model: str, deadline: Deadline, key: str = "") -> None:
        self.url = url.rstrip("/")
        self.model = model
        self.deadline = deadline
        self._key = key
        if key:
            _keys.add(key)
        self._lock = threading.Lock()
        self._answered = 0
        self._client: Any = None

    @property
    def answered(self) -> int:
        """Completions that arrived whole."""
        return self._answered

    def close(self) -> None:
        """End all connections."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    # ---- plain HTTP

    def get(self, path: str) -> str:
        """The body at a path, as text."""
        return self._plain(path, None)

    def get_json(self, path: str) -> Any:
        """The body at a path, as data."""
        return _json(path, self.get(path))

    def status_without_key(self, path: str) -> int:
        """The HTTP status of a path for those who have no key; a question is asked where one is generated for."""
        question = {"model": self.model, "messages": _conversation("Hello"), "max_tokens": 1}
        try:
            Server(self.url, self.model, self.deadline)._plain(path, None if path == "/v1/models" else question)
        except CheckFailed as failure:
            refused = re.match(r"HTTP (\d+)", failure.found)
            if refused is None:
                raise
            return int(refused[1])
        return 200

    def token_count(self, messages: Any) -> int:
        """Prompt tokens of a conversation as /tokenize counts them; a text is one message of the user."""
        return whole(self._tokenized(messages), "count")

    def prompt_tokens(self, messages: Any) -> list[int]:
        """Ids of the prompt tokens of a conversation."""
        return _token_ids(self._tokenized(messages))

    def tokens(self, text: str) -> list[int]:
        """Ids of the tokens of a text by itself, with no template and no special tokens around it."""
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        return _token_ids(_json("/tokenize", self._plain("/tokenize", body)))

    def _tokenized(self, messages: Any) -> Any:
        body = {"model": self.model, "messages": _conversation(messages), "add_generation_prompt": True}
        return _json("/tokenize", self._plain("/tokenize", body))

    def metrics(self) -> Metrics:
        """/metrics as it is now."""
        return Metrics(self.get("/metrics"))

    def metrics_after(self, before: Metrics, answered: int) -> Metrics:
        """/metrics once the engine has counted so many requests more than `before`, which takes it a moment."""
        end = time.monotonic() + COUNTED_S
        while True:
            now = self.metrics()
            if before.finished is None or now.finished is None:
                raise CheckFailed(f"/metrics has no {FINISHED}", FINISHED, "none", "are the metrics switched off?")
            if now.finished - before.finished >= answered:
                return now
            if time.monotonic() > end:
                found = f"{now.finished - before.finished:g} more in {COUNTED_S:g} s"
                raise CheckFailed("the engine did not count the requests it answered", f"{answered} more", found)
            time.sleep(0.05)

    def vitals(self) -> Vitals:
        """Healthy, or CheckFailed; and what tells one process from the next, all None where there are no such paths."""
        try:
            self.get("/health")
            metrics = self.metrics()
        except CheckFailed as error:
            if error.status in NO_SUCH_PATH:
                return Vitals(None, None)
            raise
        return Vitals(metrics.total(STARTED), metrics.finished, metrics.total(TOKENS))

    def _plain(self, path: str, body: dict[str, Any] | None) -> str:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers={"Content-Type": "application/json"})
        if self._key:
            request.add_unredirected_header("Authorization", f"Bearer {self._key}")
        # No proxy: http_proxy in the environment must not send a question about this host elsewhere.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), StayHere)
        try:
            with opener.open(request, timeout=self.deadline.left()) as reply:
                parts: list[bytes] = []
                size = 0
                while True:
                    part = reply.read1(65536)
                    size += len(part)
                    if not part:
                        return b"".join(parts).decode("utf-8")
                    if size > MAX_REPLY_BYTES:
                        raise _too_large(path)
                    parts.append(part)
                    self.deadline.left()
        except urllib.error.HTTPError as error:
            raise _status(path, error.code, error.read(MAX_REPLY_BYTES).decode("utf-8", "replace")) from None
        except UnicodeDecodeError as error:
            raise CheckFailed(f"the reply from {path} is not text", "UTF-8", str(error)) from None
        except TimeoutError:
            raise self.deadline.passed() from None
        except (OSError, http.client.HTTPException) as error:
            raise self._no_answer(path, error) from None

    # ---- the client

    def models(self) -> list[Any]:
        """What /v1/models lists, as data."""
        listed = self._ask("/v1/models", lambda client: client.models.list())
        models = at(listed, "data")
        if not isinstance(models, list):
            raise CheckFailed("the reply from /v1/models has no list", "data: [...]", listed)
        return models

    def chat(self, messages: Any, **options: Any) -> dict[str, Any]:
        """One plain completion, as data. Options of vLLM that the client does not know go in `extra`."""
        reply = self._ask(CHAT, lambda client: client.chat.completions.create(**self._request(messages, options)))
        at(reply, "choices", 0, "message")
        self._count()
        return reply

    def refusal(self, messages: Any, **options: Any) -> tuple[int, str]:
        """The HTTP status with which a completion is refused, and the error's message; 200 if it is answered.

        Options are those of `chat`, and `model` for another one's name.
        """
        import openai

        request = self._request(messages, options)
        try:
            self._ask(CHAT, lambda client: client.chat.completions.create(**request))
        except CheckFailed as failure:
            cause = failure.__cause__
            if isinstance(cause, openai.APIStatusError):
                return int(cause.status_code), _message(cause.response.text)
            raise
        self._count()
        return 200, ""

    def stream(self, messages: Any, **options: Any) -> Iterator[dict[str, Any]]:
        """The chunks of one streamed completion with usage at its end, as data."""
        request = {**self._request(messages, options), "stream": True, "stream_options": {"include_usage": True}}
        chunks = 0
        try:
            for chunk in self._open().chat.completions.create(**request):
                self.deadline.left()
                chunks += 1
                yield _data(CHAT, chunk)
        except GeneratorExit:
            raise
        except CheckFailed:
            raise
        except Exception as error:
            raise self._explain(CHAT, error) from error
        if not chunks:
            found = "a body without any"
            raise CheckFailed(f"the reply from {CHAT} is not JSON in events", "chunks of a completion", found)
        self._count()

    def _request(self, messages: Any, options: dict[str, Any]) -> dict[str, Any]:
        own = dict(options)
        extra = own.pop("extra", None)
        request = {"model": self.model, "messages": _conversation(messages), **own}
        return {**request, "extra_body": extra} if extra else request

    def _ask(self, path: str, call: Callable[[Any], Any]) -> dict[str, Any]:
        try:
            return _data(path, call(self._open()))
        except CheckFailed:
            raise
        except Exception as error:
            raise self._explain(path, error) from error

    def _count(self) -> None:
        with self._lock:
            self._answered += 1

    def _open(self) -> Any:
        import openai

        left = self.deadline.left()
        with self._lock:
            if self._client is None:
                # The client's own defaults would follow redirects and proxies, read without limit and ask twice.
                # Certificates are loaded only where there is TLS: it takes longer than a completion of a small model.
                plain = openai.DefaultHttpxClient(
                    trust_env=False,
                    follow_redirects=False,
                    verify=self.url.startswith("https:"),
                    event_hooks={"response": [self._bound]},
                )
                self._client = openai.OpenAI(
                    base_url=f"{self.url}/v1",
                    api_key=self._key or "none",
                    max_retries=0,
                    http_client=plain,
                    default_headers={"Accept-Encoding": "identity"},
                )
            return self._client.with_options(timeout=left)

    def _bound(self, response: Any) -> None:
        """Wrap a response's stream so that it ends at the deadline and at the limit on bytes."""
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            raise CheckFailed("the reply is compressed", "Content-Encoding identity, as asked", encoding)
        inner, deadline = response.stream, self.deadline
        kind = next(base for base in type(inner).__mro__ if base.__name__ == "SyncByteStream")

        class Bounded(kind):  # type: ignore[misc, valid-type]
            def __iter__(self) -> Iterator[bytes]:
                size = 0
                for part in inner:
                    size += len(part)
                    if size > MAX_REPLY_BYTES:
                        raise _too_large(CHAT)
                    deadline.left()
                    yield part

            def close(self) -> None:
                inner.close()

        response.stream = Bounded()

    def _explain(self, path: str, error: Exception) -> CheckFailed:
        """What an exception of the client means."""
        import openai

        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, CheckFailed):
                return cause
            cause = cause.__cause__
        if isinstance(error, openai.APIStatusError):
            return _status(path, int(error.status_code), error.response.text)
        if isinstance(error, openai.APITimeoutError):
            return self.deadline.passed()
        if isinstance(error, openai.APIConnectionError):
            return self._no_answer(path, error.__cause__ or error)
        if isinstance(error, UnicodeDecodeError):
            return CheckFailed(f"the reply from {path} is not text", "UTF-8", str(error))
        if isinstance(error, ValueError):
            return CheckFailed(f"the reply from {path} is not JSON", "JSON", str(error))
        if isinstance(error, openai.APIError):
            return CheckFailed(f"the reply from {path} is an error", "a completion", error.message)
        return CheckFailed(f"no reply could be read from {path}", "a reply", f"{type(error).__name__}: {error}")

    def _no_answer(self, path: str, error: BaseException) -> CheckFailed:
        reason = getattr(error, "reason", error)
        return CheckFailed(
            f"no answer from {self.url}",
            f"an answer to {path.split()[-1]}",
            f"{type(reason).__name__}: {reason}",
            "see whether the unit runs and listens there; the server's journal says why it does not",
        )


def _conversation(messages: Any) -> Any:
    return [{"role": "user", "content": messages}] if isinstance(messages, str) else messages


def _message(body: str) -> str:
    """The message of an error, empty where the body has none."""
    try:
        data = json.loads(body)
    except ValueError:
        return ""
    error = data.get("error") if isinstance(data, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return str(masked(message.strip())) if isinstance(message, str) else ""


def _token_ids(reply: Any) -> list[int]:
    ids = at(reply, "tokens")
    if not isinstance(ids, list) or not ids or not all(isinstance(one, int) for one in ids):
        raise CheckFailed("/tokenize gives no token ids", "tokens: [...], at least one", ids)
    return ids


def _data(path: str, reply: Any) -> dict[str, Any]:
    if isinstance(reply, (str, bytes)):
        raise CheckFailed(f"the reply from {path} is not JSON", "Content-Type application/json", reply)
    if not hasattr(reply, "to_dict"):
        raise CheckFailed(f"the reply from {path} is no object", "a JSON object", reply)
    data: dict[str, Any] = reply.to_dict(mode="python", warnings=False)
    return data


def _json(path: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise CheckFailed(f"the reply from {path} is not JSON", "JSON", f"{error} in {text}") from None


def _status(path: str, status: int, body: str) -> CheckFailed:
    todo = {
        401: "the key is not the server's" if _keys else "the server wants a key: enplace_api_key_file names its file",
        404: "see whether the address and the model's name are right",
    }.get(status, "the server's journal says why")
    failed = CheckFailed(f"{path} was refused", "HTTP 200", f"HTTP {status}: {body}", todo)
    failed.status = status
    return failed


def _too_large(path: str) -> CheckFailed:
    return CheckFailed(f"the reply from {path} is too large", f"at most {MAX_REPLY_BYTES} bytes", "more")
