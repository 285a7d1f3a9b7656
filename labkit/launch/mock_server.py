"""A server that answers like an OpenAI-style one, with tokens at known times: what a load client is measured against.

It computes nothing. Token k of a request is due TTFT + k x ITL after the request's last byte arrived (the kernel's
stamp, where it gives one), and every chunk carries `sent_s`, the moment it was handed to the system
(`time.perf_counter`, which on Linux is one clock for all processes of a machine). So a client's error is known chunk by
chunk, and so is how late the server itself was. `GET /times` tells the same from outside, by `x-request-id`. The
model's name asks for a fault: `mock-error`, `mock-cut`, `mock-short`, `mock-500`, `mock-html`.

    python -m labkit.launch.mock_server --ttft-ms 20 --itl-ms 20      # prints its port as one line of JSON
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import itertools
import json
import re
import selectors
import socket
import sys
import time
from typing import Any

from labkit.launch.stamp_loop import RECEIVE_BYTES, STAMP_BYTES, ask_for_stamps, clock_offset_ns, kernel_stamp_s

_HEAD = (b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
         b"Connection: close\r\n\r\n")
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_NAME = re.compile(rb"(?i)\r\nx-request-id: *(\S+)")
_ACCEPTS = 64
"""Connections taken in one go; tokens that are due come in between."""


class MockServer:
    """One thread, one selector, one heap of due tokens."""

    def __init__(self, *, ttft_s: float, itl_s: float, port: int = 0) -> None:
        """Listen on 127.0.0.1; OSError when the port is taken."""
        self.ttft_s, self.itl_s = ttft_s, itl_s
        self.times: list[dict[str, Any]] = []
        self.due: list[tuple[float, int, _Connection, int]] = []
        self.selector = selectors.DefaultSelector()
        self._order = itertools.count()
        self._offset_ns = clock_offset_ns()
        self._listener = socket.create_server(("127.0.0.1", port), backlog=2048)
        self._listener.setblocking(False)
        self.selector.register(self._listener, selectors.EVENT_READ, None)

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._listener.getsockname()[1]

    def serve(self) -> None:
        """Until killed."""
        while True:
            wait = self.due[0][0] - time.perf_counter() if self.due else None
            for key, events in self.selector.select(wait if wait is None else max(0.0, wait)):
                if key.data is None:
                    self._accept()
                elif events & selectors.EVENT_WRITE:
                    key.data.flush()
                else:
                    key.data.readable(self._offset_ns)
            self._send_due()

    def begin(self, connection: _Connection, arrived_s: float) -> None:
        """A request is complete: its first token is due TTFT after its arrival."""
        heapq.heappush(self.due, (arrived_s + self.ttft_s, next(self._order), connection, 0))

    def _accept(self) -> None:
        for _ in range(_ACCEPTS):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ask_for_stamps(sock)
            self.selector.register(sock, selectors.EVENT_READ, _Connection(self, sock))

    def _send_due(self) -> None:
        """Send what is due now. A late token does not move the next one: times are those of the plan."""
        now = time.perf_counter()
        while self.due and self.due[0][0] <= now:
            when, _, connection, number = heapq.heappop(self.due)
            if connection.send_token(number):
                heapq.heappush(self.due, (when + self.itl_s, next(self._order), connection, number + 1))


class _Connection:
    """One connection with one request."""

    def __init__(self, server: MockServer, sock: socket.socket) -> None:
        self.server, self.sock = server, sock
        self.received, self.pending = bytearray(), bytearray()
        self.is_asked = self.is_closing = self.is_closed = False
        self.num_tokens, self.num_prompt, self.fault = 0, 0, ""
        self.sent_s: list[float] = []

    def readable(self, offset_ns: int) -> None:
        try:
            data, extra, _, _ = self.sock.recvmsg(RECEIVE_BYTES, STAMP_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data, extra = b"", []
        now = time.perf_counter()
        if not data:
            return self.close()
        if self.is_asked:
            return None
        self.received += data
        head, found, body = self.received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not found or len(body) < (int(length[1]) if length else 0):
            return None
        self.is_asked = True
        stamp = kernel_stamp_s(extra, offset_ns)
        self.answer(bytes(head), bytes(body), now if stamp is None else min(stamp, now))
        return None

    def answer(self, head: bytes, body: bytes, arrived_s: float) -> None:
        """Begin the answer to a whole request."""
        if head.startswith(b"GET"):
            is_times = head.split(b" ", 2)[1] == b"/times"
            text = json.dumps(self.server.times).encode() if is_times else b""
            return self.answer_whole(b"200 OK", text, b"application/json" if is_times else b"text/plain")
        asked = json.loads(body)
        self.num_tokens, self.num_prompt = asked["max_tokens"], len(asked["prompt"])
        self.fault = asked["model"].partition("-")[2]
        if self.fault == "500":
            return self.answer_whole(b"500 Internal Server Error", b'{"error": {"message": "engine died"}}',
                                     b"application/json")
        if self.fault == "html":
            return self.answer_whole(b"502 Bad Gateway", b"<html>502</html>", b"text/html")
        name = _NAME.search(head)
        self.server.times.append({"id": name[1].decode("latin-1") if name else "", "arrived_s": arrived_s,
                                  "sent_s": self.sent_s})
        return self.server.begin(self, arrived_s)

    def answer_whole(self, status: bytes, body: bytes, kind: bytes) -> None:
        self.is_closing = True
        self.write(b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (
            status, kind, len(body), body))

    def send_token(self, number: int) -> bool:
        """Send one token; returns whether another one follows."""
        if self.is_closed:
            return False
        if number == 1 and self.fault == "cut":
            self.close()
            return False
        if number == 1 and self.fault == "error":
            return self.finish(_framed(
                b'event: error\ndata: {"error": {"message": "not enough KV cache", "code": 500}}\n\n'))
        now = time.perf_counter()
        self.sent_s.append(now)
        # The header goes with the first token: on its own it would cost the server's core as much as a token.
        token = (b"" if number else _HEAD) + _framed(
            b'data: {"choices": [{"index": 0, "text": "a", "token_ids": [7]}], "sent_s": %.9f}\n\n' % now)
        if number + 1 < self.num_tokens - (self.fault == "short"):
            self.write(token)
            return True
        return self.finish(token + _framed(
            b'data: {"choices": [], "usage": {"prompt_tokens": %d, "completion_tokens": %d}}\n\ndata: [DONE]\n\n'
            % (self.num_prompt, number + 1)))

    def finish(self, data: bytes) -> bool:
        self.is_closing = True
        self.write(data + b"0\r\n\r\n")
        return False

    def write(self, data: bytes) -> None:
        """Send, or keep what the system does not take: a slow client must not hold up the others."""
        if self.pending:
            self.pending += data
            return
        try:
            rest = data[self.sock.send(data):]
        except BlockingIOError:
            rest = data
        except OSError:
            return self.close()
        if rest:
            self.pending += rest
            self.server.selector.modify(self.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, self)
        elif self.is_closing:
            self.close()
        return None

    def flush(self) -> None:
        data, self.pending = bytes(self.pending), bytearray()
        self.server.selector.modify(self.sock, selectors.EVENT_READ, self)
        self.write(data)

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.server.selector.unregister(self.sock)
            self.sock.close()


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Answer like an OpenAI-style server, with tokens at known times.")
    parser.add_argument("--ttft-ms", type=float, default=20.0)
    parser.add_argument("--itl-ms", type=float, default=20.0)
    parser.add_argument("--port", type=int, default=0)
    asked = parser.parse_args()
    for name, value in (("--ttft-ms", asked.ttft_ms), ("--itl-ms", asked.itl_ms)):
        if not value >= 0:
            parser.error(f"{name} {value}: expected at least 0")
    try:
        server = MockServer(ttft_s=asked.ttft_ms / 1e3, itl_s=asked.itl_ms / 1e3, port=asked.port)
    except OSError as error:
        print(f"mock server: port {asked.port}: {error.strerror}", file=sys.stderr)
        return 1
    print(json.dumps({"port": server.port}), flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
