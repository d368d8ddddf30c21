# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""A proxy before a real server, which passes everything on as it is, or with one fault.

What a check says of a table of answers (tests/sim/liar.py) need not hold for a model: here the server is a real one,
and one behaviour of it is broken on the way. The faults are in tests/matrix/faults.py.
"""

from __future__ import annotations

import contextlib
import copy
import http.client
import http.server
import json
import threading
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

CHAT = "/v1/chat/completions"
# A header that speaks of one connection, or of a body that may be another one here.
OWN_HEADERS = ("connection", "content-length", "host", "keep-alive", "transfer-encoding")
SLOWEST_S = 600


@dataclass(eq=False)
class Ask:
    """One request on its way.

    Attributes:
        body: what is asked, if that is JSON. A fault changes it in place.
        original: the same as the client sent it.
        others: the requests that were on their way when this one came.
        kept: what a fault remembers of this request.
    """

    method: str
    path: str
    body: Any
    original: Any
    others: list[Ask]
    kept: dict[str, Any] = field(default_factory=dict)

    @property
    def chat(self) -> bool:
        """Whether it asks for a completion."""
        return self.path == CHAT

    @property
    def plain(self) -> bool:
        """Whether it asks for a text and nothing more."""
        besides = {"model", "messages", "temperature", "max_tokens", "cache_salt"}
        return self.chat and set(self.original) <= besides

    @property
    def stream(self) -> bool:
        return bool(self.chat and self.original.get("stream"))


class Fault:
    """What is done to what passes. This one does nothing; each method is one place to break something at."""

    proxy: Proxy

    def asked(self, ask: Ask) -> None:
        """Change a request before the server sees it."""

    def instead(self, ask: Ask) -> tuple[int, Any] | None:
        """An HTTP status and a body, where the server is not to be asked at all."""
        return None

    def around(self, ask: Ask) -> contextlib.AbstractContextManager[None]:
        """Entered before the server is asked, left when its answer was passed on."""
        return contextlib.nullcontext()

    def answered(self, ask: Ask, reply: Any) -> Any:
        """The JSON body to pass on for one that the server gave with HTTP 200."""
        return reply

    def streamed(self, ask: Ask, chunk: Any) -> list[Any]:
        """The chunks to pass on for one that came. CutOff ends the stream."""
        return [chunk]

    def ended(self, ask: Ask) -> list[Any]:
        """The chunks to pass on at the end of a stream."""
        return []

    def metrics(self, page: str) -> str:
        """The page of /metrics to pass on."""
        return page


class CutOffError(Exception):
    """Nothing more is passed on, and the connection ends."""


class Proxy:
    """The proxy, on a free port of loopback: `with Proxy(server, fault) as proxy: proxy.url`."""

    def __init__(self, server: str, fault: Fault | None = None) -> None:
        address = urllib.parse.urlsplit(server)
        self.host, self.port = address.hostname or "", address.port or 80
        self.fault = fault
        self.dead = False  # From then on every connection ends without an answer.
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        self.under_way: list[Ask] = []
        proxy = self

        class Handler(_Handler):
            is_of = proxy

        self.http = _Http(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        self._thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        if fault is not None:
            fault.proxy = self

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopping.set()
        self.http.shutdown()
        self.http.server_close()
        self._thread.join()

    @contextlib.contextmanager
    def asking(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> Iterator[http.client.HTTPResponse]:
        """The server's answer. Whoever leaves before its end hangs up on the server."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=SLOWEST_S)
        try:
            connection.request(method, path, body, headers)
            yield connection.getresponse()
        finally:
            connection.close()


class _Http(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients leave when they have seen enough; that is no error here."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    is_of: Proxy

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self._pass(None)

    def do_POST(self) -> None:
        self._pass(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def _pass(self, sent: bytes | None) -> None:
        proxy = self.is_of
        body = _json(sent)
        with proxy.lock:
            ask = Ask(self.command, self.path, body, copy.deepcopy(body), list(proxy.under_way))
            proxy.under_way.append(ask)
        try:
            self._pass_with(proxy.fault or Fault(), ask, sent)
        except CutOffError:
            self.close_connection = True
        finally:
            with proxy.lock:
                proxy.under_way.remove(ask)

    def _pass_with(self, fault: Fault, ask: Ask, sent: bytes | None) -> None:
        proxy = self.is_of
        if proxy.dead:
            raise CutOffError
        with fault.around(ask):
            fault.asked(ask)
            own = fault.instead(ask)
            if own is not None:
                self._whole(own[0], [("Content-Type", "application/json")], json.dumps(own[1]).encode())
                return
            if ask.body != ask.original:
                sent = json.dumps(ask.body).encode()
            headers = {name: value for name, value in self.headers.items() if name.lower() not in OWN_HEADERS}
            with proxy.asking(ask.method, ask.path, sent, headers) as reply:
                kept = [(name, value) for name, value in reply.getheaders() if name.lower() not in OWN_HEADERS]
                if reply.getheader("Content-Type", "").startswith("text/event-stream"):
                    self._head(reply.status, [*kept, ("Transfer-Encoding", "chunked")])
                    self._events(fault, ask, reply)
                    return
                content = reply.read()
            self._whole(reply.status, kept, _changed(fault, ask, reply.status, content))

    def _events(self, fault: Fault, ask: Ask, reply: http.client.HTTPResponse) -> None:
        """Pass a stream on, each event as it comes."""
        while True:
            event = b""
            while line := reply.readline():
                event += line
                if not line.strip():
                    break
            chunk = _json(event.strip().removeprefix(b"data:"))
            if isinstance(chunk, dict):
                passed = fault.streamed(ask, copy.deepcopy(chunk))
                if passed != [chunk]:
                    event = b"".join(map(_event, passed))
            elif b"[DONE]" in event:
                event = b"".join(map(_event, fault.ended(ask))) + event
            if event:
                self._piece(event)
            if not line:
                break
        self._piece(b"")

    def _head(self, status: int, headers: list[tuple[str, str]]) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()

    def _whole(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self._head(status, [*headers, ("Content-Length", str(len(content)))])
        self.wfile.write(content)

    def _piece(self, content: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))


def _changed(fault: Fault, ask: Ask, status: int, content: bytes) -> bytes:
    """The content to pass on for what the server gave."""
    if ask.path == "/metrics":
        return fault.metrics(content.decode()).encode()
    reply = _json(content) if status == 200 else None
    if reply is None:
        return content
    passed = fault.answered(ask, copy.deepcopy(reply))
    return content if passed == reply else json.dumps(passed).encode()


def _event(chunk: Any) -> bytes:
    return b"data: %s\n\n" % json.dumps(chunk).encode()


def _json(content: bytes | None) -> Any:
    """What a body says, None where it is no JSON."""
    try:
        return json.loads(content or b"")
    except ValueError:
        return None
