"""A server that answers like an OpenAI-style one, with tokens at known times: what a load client is measured against.

It computes nothing. Token k of a request is due TTFT + k x ITL after the request's last byte arrived, and every chunk
carries `sent_s`, the moment it was handed to the system (`time.perf_counter`, which on Linux is one clock for all
processes of a machine). So a client's error is known chunk by chunk. The model's name asks for a fault: `mock-error`,
`mock-cut`, `mock-short`, `mock-500`, `mock-html`.

    python -m labkit.launch.mock_server --ttft-ms 20 --itl-ms 20      # prints its port as one line of JSON
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import itertools
import json
import sys
import time
from typing import Any

_OK = (b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
       b"Connection: close\r\n\r\n")


class TokenClock:
    """Sends every due token of every stream; one timer for all of them costs less than one each."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, ttft_s: float, itl_s: float) -> None:
        """Start empty."""
        self.loop, self.ttft_s, self.itl_s = loop, ttft_s, itl_s
        self.due: list[tuple[float, int, _Connection, int]] = []
        self.order = itertools.count()
        self.timer: asyncio.TimerHandle | None = None

    def begin(self, stream: _Connection) -> None:
        """A request is complete: its first token is due after TTFT."""
        heapq.heappush(self.due, (time.perf_counter() + self.ttft_s, next(self.order), stream, 0))
        self.arm()

    def arm(self) -> None:
        """Wake for the earliest token."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.due:
            self.timer = self.loop.call_later(max(0.0, self.due[0][0] - time.perf_counter()), self.send_due)

    def send_due(self) -> None:
        """Send what is due now. A late token does not move the next one: times are those of the plan."""
        self.timer = None
        while self.due and self.due[0][0] <= time.perf_counter():
            when, _, stream, number = heapq.heappop(self.due)
            if stream.send_token(number):
                heapq.heappush(self.due, (when + self.itl_s, next(self.order), stream, number + 1))
        self.arm()


class _Connection(asyncio.Protocol):
    """One connection with one request."""

    def __init__(self, clock: TokenClock) -> None:
        self.clock = clock
        self.received = bytearray()
        self.transport: Any = None
        self.num_tokens, self.num_prompt, self.fault = 0, 0, ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, found, body = self.received.partition(b"\r\n\r\n")
        if not found:
            return
        length = next((int(line.split(b":")[1]) for line in bytes(head).lower().split(b"\r\n")
                       if line.startswith(b"content-length")), 0)
        if len(body) < length:
            return
        if bytes(head).startswith(b"GET"):
            return self.answer(b"200 OK", b"", "text/plain")
        asked = json.loads(bytes(body))
        self.num_tokens, self.num_prompt = asked["max_tokens"], len(asked["prompt"])
        self.fault = asked["model"].partition("-")[2]
        if self.fault == "500":
            return self.answer(b"500 Internal Server Error", b'{"error": {"message": "engine died"}}',
                               "application/json")
        if self.fault == "html":
            return self.answer(b"502 Bad Gateway", b"<html>502</html>", "text/html")
        self.transport.write(_OK)
        self.clock.begin(self)

    def answer(self, status: bytes, body: bytes, kind: str) -> None:
        self.transport.write(b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (
            status, kind.encode(), len(body), body))
        self.transport.close()

    def send_token(self, number: int) -> bool:
        """Send one token; returns whether another one follows."""
        if self.transport.is_closing():
            return False
        if number == 1 and self.fault == "cut":
            self.transport.close()
            return False
        if number == 1 and self.fault == "error":
            self.write(b'event: error\ndata: {"error": {"message": "not enough KV cache", "code": 500}}\n\n')
            return self.finish()
        self.write(b'data: {"choices": [{"index": 0, "text": "a", "token_ids": [7]}], "sent_s": %.9f}\n\n'
                   % time.perf_counter())
        if number + 1 < self.num_tokens - (self.fault == "short"):
            return True
        self.write(b'data: {"choices": [], "usage": {"prompt_tokens": %d, "completion_tokens": %d}}\n\n'
                   b"data: [DONE]\n\n" % (self.num_prompt, number + 1))
        return self.finish()

    def write(self, data: bytes) -> None:
        self.transport.write(b"%x\r\n%s\r\n" % (len(data), data))

    def finish(self) -> bool:
        self.transport.write(b"0\r\n\r\n")
        self.transport.close()
        return False


async def serve(*, ttft_s: float, itl_s: float, port: int = 0) -> None:
    """Serve on 127.0.0.1 until killed; the port (the system's choice for 0) is printed as one line of JSON."""
    loop = asyncio.get_running_loop()
    clock = TokenClock(loop, ttft_s=ttft_s, itl_s=itl_s)
    server = await loop.create_server(lambda: _Connection(clock), "127.0.0.1", port, backlog=2048)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await server.serve_forever()


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
        asyncio.run(serve(ttft_s=asked.ttft_ms / 1e3, itl_s=asked.itl_ms / 1e3, port=asked.port))
    except OSError as error:
        print(f"mock server: port {asked.port}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
