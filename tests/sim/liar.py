# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""A simulated OpenAI-compatible server that tells one lie at a time, to prove that each check can fail.

Nothing here is a model: a table of answers, a token for every letter, and made-up probabilities. It speaks the part of
vLLM's interface that the checks use, and without a lie it tells the truth about itself.
"""

from __future__ import annotations

import argparse
import gzip
import http.server
import json
import math
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any

ANSWERS = {
    "What is 17 + 25? Reply with the number only.": "42",
    "What is 9 times 8? Reply with the number only.": "72",
    "How many days are in a leap year? Reply with the number only.": "366",
    "What is the capital of France? Reply with one word.": "Paris",
    "Which planet is known as the red planet? Reply with one word.": "Mars",
    "What is the chemical symbol for gold? Reply with the symbol only.": "Au",
    "Translate 'good morning' into Spanish. Reply with the translation only.": "Buenos días",
    "Translate 'thank you' into German. Reply with the translation only.": "Danke",
}
OTHERWISE = "In the harbor."
END = 0  # token id of the end of a reply
FILLER = " and so on"

# Lies about what is served, and how. Each breaks one thing; all else stays true.
LIES = {
    "wrong_version": "another engine version",
    "wrong_model": "another model's name",
    "wrong_context": "another context length",
    "other_model_answers": "completions that name another model",
    "any_name": "answers to any model's name",
    "wrong_answer": "one wrong answer",
    "inside_a_number": "the answer only as part of a larger number",
    "says_everything": "every reply holds all answers",
    "cut_short": "finish_reason length although the answer is there",
    "empty_text": "HTTP 200 with empty text",
    "crossed_rows": "with several in flight, each gets its neighbour's answer",
    "wrong_in_batch": "with several in flight, wrong answers",
    "one_at_a_time": "one stream after another, never a batch",
    "no_ignore_eos": "ignores ignore_eos",
    "top_capped": "at most 5 top_logprobs",
    "no_logprobs": "no logprobs at all",
    "shifted_rows": "logprob rows shifted by one token",
    "missing_row": "one logprob row too few",
    "placeholder": "-9999 among the values",
    "doubled_entries": "the same entry twice",
    "unsorted": "entries out of order",
    "certain": "probabilities that add up to more than 1",
    "not_finite": "NaN among the values",
    "frames_as_tokens": "counts frames of a stream as tokens",
    "prompt_off_by_one": "one prompt token too many",
    "wrong_total": "a total that is no sum",
    "no_usage_in_stream": "a stream without usage",
    "constant_usage": "the same counts for everything",
    "tokenize_wrong": "/tokenize that counts words",
    "stream_cut": "a stream that ends without a finish_reason",
    "stream_error": "an error object inside a stream",
    "stream_endless": "a stream that never ends",
    "restarts": "a new process start time after every completion",
    "counter_falls": "request counter that starts anew",
    "answers_from_elsewhere": "completions the engine never finished",
    "no_metrics": "/metrics without anything that identifies the process",
    "unhealthy_after": "/health 503 once a completion was answered",
}
# Lies of the wire: nothing that a completion should be.
WIRE = {
    "gigabyte": "a reply without end",
    "trickle": "a byte now and then, without end",
    "stall": "no answer at all",
    "invalid_json": "half a JSON object",
    "invalid_utf8": "bytes that are no text",
    "html": "a web page with HTTP 200",
    "json_list": "a list where an object belongs",
    "compressed": "gzip that nobody asked for",
    "broken_off": "a connection that breaks in the middle",
    "error_500": "HTTP 500",
    "error_401": "HTTP 401",
    "redirect": "HTTP 302 to somewhere else",
}


class Simulated:
    """The server, on a free port of loopback. `with Simulated("top_capped") as server: server.url`."""

    def __init__(
        self,
        lie: str = "",
        *,
        model: str = "enplace/smoke",
        version: str = "0.28.0",
        context: int = 4096,
        port: int = 0,
        pace_s: float = 0.001,
    ) -> None:
        if lie and lie not in LIES and lie not in WIRE:
            raise ValueError(f"no such lie: {lie}; known are {', '.join([*LIES, *WIRE])}")
        self.lie = lie
        self.model = model
        self.version = version
        self.context = context
        self.pace_s = pace_s
        self.asked: list[str] = []
        self.stopping = threading.Event()
        self.started = 1_700_000_000.0
        self.finished = 3
        self.in_flight = 0
        self.lock = threading.Lock()
        self.one_at_a_time = threading.Lock()
        simulated = self

        class Handler(_Handler):
            server_is = simulated

        self.http = _Http(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        self._thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Simulated:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopping.set()
        self.http.shutdown()
        self.http.server_close()
        self._thread.join()

    def reply_to(self, question: str, crowd: int) -> str:
        """The text for one prompt; `crowd` is the number of requests in flight, this one among them."""
        answer = ANSWERS.get(question, OTHERWISE)
        if self.lie == "wrong_answer" and answer == "Mars":
            return "Venus"
        if self.lie == "inside_a_number" and answer == "42":
            return "1420"
        if self.lie == "says_everything":
            return ", ".join(ANSWERS.values())
        if self.lie == "empty_text":
            return ""
        if crowd > 1 and self.lie == "wrong_in_batch":
            return "!!!!"
        if crowd > 1 and self.lie == "crossed_rows" and question in ANSWERS:
            keys = list(ANSWERS)
            return ANSWERS[keys[(keys.index(question) + 1) % len(keys)]]
        return answer


def ids_of(text: str) -> list[int]:
    """A token for every letter."""
    return [ord(letter) for letter in text]


def prompt_ids(messages: list[dict[str, Any]]) -> list[int]:
    """Tokens of a conversation: its text with a role before each message."""
    return ids_of("".join(f"<{message['role']}>{message.get('content') or ''}" for message in messages) + "<assistant>")


class _Http(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients leave when they have seen enough; that is no error here."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are written apart; the second would wait for an acknowledgement
    server_is: Simulated

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        me = self.server_is
        me.asked.append(f"GET {self.path}")
        if self.path == "/health":
            bad = me.lie == "unhealthy_after" and me.finished > 3
            self._send(503 if bad else 200, b"", "text/plain")
        elif self.path == "/version":
            self._json({"version": "0.27.1" if me.lie == "wrong_version" else me.version})
        elif self.path == "/metrics":
            self._send(200, self._metrics().encode(), "text/plain")
        elif self.path == "/v1/models":
            name = "enplace/other" if me.lie == "wrong_model" else me.model
            context = 2048 if me.lie == "wrong_context" else me.context
            self._json({"object": "list", "data": [{"id": name, "object": "model", "max_model_len": context}]})
        else:
            self._json({"error": {"message": "no such path"}}, 404)

    def do_POST(self) -> None:
        me = self.server_is
        me.asked.append(f"POST {self.path}")
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        if self.path == "/tokenize":
            ids = prompt_ids(body["messages"])
            words = sum(len(str(message["content"]).split()) for message in body["messages"])
            self._json({"count": words if me.lie == "tokenize_wrong" else len(ids), "tokens": ids})
        elif self.path == "/v1/chat/completions":
            if me.lie in WIRE:
                self._wire()
            elif body["model"] != me.model and me.lie != "any_name":
                self._json({"error": {"message": f"The model {body['model']} does not exist.", "code": 404}}, 404)
            else:
                self._complete(body)
        else:
            self._json({"error": {"message": "no such path"}}, 404)

    # ---- completions

    def _complete(self, body: dict[str, Any]) -> None:
        me = self.server_is
        with me.lock:
            me.in_flight += 1
        try:
            # A moment for the others that were sent at the same time, so that a batch is a batch.
            time.sleep(10 * me.pace_s)
            question = str(body["messages"][-1]["content"])
            text = me.reply_to(question, me.in_flight)
            ids = [*ids_of(text), END]
            limit = int(body.get("max_tokens") or 64)
            if body.get("ignore_eos") and me.lie != "no_ignore_eos":
                while len(ids) < limit:
                    ids += ids_of(FILLER)
            finish = "stop" if len(ids) <= limit and not body.get("ignore_eos") else "length"
            ids = ids[:limit]
            if me.lie == "cut_short":
                finish = "length"
            if body.get("stream"):
                if me.lie == "one_at_a_time":
                    with me.one_at_a_time:
                        self._stream(body, ids, finish)
                else:
                    self._stream(body, ids, finish)
            else:
                self._plain(body, ids, finish)
        finally:
            with me.lock:
                me.in_flight -= 1

    def _finished(self) -> None:
        me = self.server_is
        with me.lock:
            if me.lie != "answers_from_elsewhere":
                me.finished += 1
            if me.lie == "restarts":
                me.started += 1
            if me.lie == "counter_falls":
                me.finished = 0

    def _plain(self, body: dict[str, Any], ids: list[int], finish: str) -> None:
        me = self.server_is
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": _text(ids)},
            "finish_reason": finish,
            "logprobs": None,
        }
        reply = self._head(body, "chat.completion")
        if body.get("return_token_ids"):
            choice["token_ids"] = ids
            reply["prompt_token_ids"] = prompt_ids(body["messages"])
        if body.get("logprobs") and me.lie != "no_logprobs":
            choice["logprobs"] = {"content": self._rows(ids, int(body.get("top_logprobs") or 0))}
        reply["choices"] = [choice]
        reply["usage"] = self._usage(body, len(ids))
        self._finished()
        self._json(reply)

    def _stream(self, body: dict[str, Any], ids: list[int], finish: str) -> None:
        me = self.server_is
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        head = self._head(body, "chat.completion.chunk")
        first = {**head, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
        if body.get("return_token_ids"):
            first["prompt_token_ids"] = prompt_ids(body["messages"])
        self._frame(first)
        frames = [ids[index : index + 2] for index in range(0, len(ids), 2)]  # as with a draft: two tokens at once
        for index, part in enumerate(frames):
            time.sleep(me.pace_s)
            last = index == len(frames) - 1 and me.lie != "stream_cut"
            choice: dict[str, Any] = {
                "index": 0,
                "delta": {"content": _text(part)},
                "finish_reason": finish if last else None,
            }
            if body.get("return_token_ids"):
                choice["token_ids"] = part
            self._frame({**head, "choices": [choice]})
        if me.lie == "stream_error":
            self._frame({"error": {"message": "EngineCore encountered an issue", "code": 500}})
        while me.lie == "stream_endless" and not me.stopping.is_set():
            time.sleep(me.pace_s)
            self._frame({**head, "choices": [{"index": 0, "delta": {"content": "x"}, "token_ids": [120]}]})
        self._finished()
        if me.lie not in ("no_usage_in_stream", "stream_cut"):
            count = len(frames) if me.lie == "frames_as_tokens" else len(ids)
            self._frame({**head, "choices": [], "usage": self._usage(body, count)})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _head(self, body: dict[str, Any], kind: str) -> dict[str, Any]:
        me = self.server_is
        name = "enplace/other" if me.lie == "other_model_answers" else body["model"]
        return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": name}

    def _usage(self, body: dict[str, Any], completion: int) -> dict[str, int]:
        me = self.server_is
        prompt = len(prompt_ids(body["messages"])) + (me.lie == "prompt_off_by_one")
        if me.lie == "constant_usage":
            prompt, completion = 20, 8
        total = prompt + completion + (me.lie == "wrong_total")
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}

    def _rows(self, ids: list[int], top: int) -> list[dict[str, Any]]:
        me = self.server_is
        rows = [self._row(token, min(top, 5) if me.lie == "top_capped" else top) for token in ids]
        if me.lie == "shifted_rows":
            rows = rows[1:] + rows[:1]
        if me.lie == "missing_row":
            rows = rows[:-1]
        return rows

    def _row(self, token: int, top: int) -> dict[str, Any]:
        me = self.server_is
        names = [f"token_id:{token + index}" for index in range(top)]
        values = [math.log(0.5**index / 3) for index in range(1, top + 1)]
        if me.lie == "placeholder":
            values[-1] = -9999.0
        if me.lie == "doubled_entries":
            names[-1] = names[0]
        if me.lie == "unsorted":
            values[1], values[2] = values[2], values[1]
        if me.lie == "certain":
            values = [-0.001 * index for index in range(1, top + 1)]
        if me.lie == "not_finite":
            values[-1] = math.nan
        entries = [{"token": name, "logprob": value, "bytes": None} for name, value in zip(names, values, strict=True)]
        return {"token": names[0], "logprob": values[0], "bytes": None, "top_logprobs": entries}

    def _metrics(self) -> str:
        me = self.server_is
        if me.lie == "no_metrics":
            return "python_info 1.0\n"
        return (
            "# TYPE vllm:request_success counter\n"
            f'vllm:request_success_total{{finished_reason="stop"}} {me.finished}.0\n'
            'vllm:request_success_total{finished_reason="length"} 0.0\n'
            'vllm:request_success_created{finished_reason="stop"} 1.7e+09\n'
            f"process_start_time_seconds {me.started}\n"
        )

    # ---- the wire

    def _wire(self) -> None:
        me = self.server_is
        if me.lie == "invalid_json":
            self._send(200, b'{"choices": [', "application/json")
        elif me.lie == "invalid_utf8":
            self._send(200, b'{"choices": "\xff\xfe"}', "application/json")
        elif me.lie == "html":
            self._send(200, b"<html>Welcome</html>", "text/html")
        elif me.lie == "json_list":
            self._send(200, b"[1, 2, 3]", "application/json")
        elif me.lie == "error_500":
            self._json({"error": {"message": "EngineCore encountered an issue"}}, 500)
        elif me.lie == "error_401":
            self._json({"error": "Unauthorized"}, 401)
        elif me.lie == "redirect":
            self.send_response(302)
            self.send_header("Location", "/health")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif me.lie == "compressed":
            content = gzip.compress(b" " * 1_000_000)
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        elif me.lie == "stall":
            me.stopping.wait(60)
        else:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "1000000000")
            self.end_headers()
            for part in self._unending():
                if me.stopping.is_set():
                    return
                self.wfile.write(part)
        self.close_connection = True

    def _unending(self) -> Iterator[bytes]:
        me = self.server_is
        yield b'{"choices": "'
        if me.lie == "broken_off":
            return
        while True:
            if me.lie == "trickle":
                time.sleep(0.05)
            yield b"x" if me.lie == "trickle" else b"x" * 1_000_000

    # ---- replies

    def _frame(self, data: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(data).encode() + b"\n\n")
        self.wfile.flush()

    def _json(self, data: Any, status: int = 200) -> None:
        self._send(status, json.dumps(data).encode(), "application/json")

    def _send(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _text(ids: list[int]) -> str:
    return "".join(chr(token) for token in ids if token != END)


def main() -> None:
    parser = argparse.ArgumentParser(description="a simulated server that tells one lie; no lie: an honest one")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--lie", default="", choices=["", *LIES, *WIRE])
    options = parser.parse_args()
    with Simulated(options.lie, port=options.port) as server:
        print(f"simulated server at {server.url}, lie: {options.lie or 'none'}", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
