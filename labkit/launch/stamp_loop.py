"""The sockets of the load client: connect, send, stamp what comes back. Nothing is parsed here.

One selector loop over raw sockets. Stamps are the kernel's where it gives them (Linux, SO_TIMESTAMPNS): the moment the
bytes arrived at this machine, however late this process came to read them. Elsewhere it is the moment of reading.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

TICK_S = 0.01
"""How often deadlines and the wish to stop are looked at; how late this happens is the loop's lag."""
_TIMESTAMPNS = 35 if sys.platform == "linux" else None
"""SO_TIMESTAMPNS and the type of its message; Python has no name for it."""
_TIMESPEC = struct.Struct("qq")
RECEIVE_BYTES = 65536
"""A larger buffer is mapped and unmapped at every call, which costs more than the reading."""
STAMP_BYTES = 64
"""Room for the kernel's stamp."""


@dataclass(slots=True, kw_only=True)
class Answer:
    """Everything that was seen of one request. Times are seconds of `time.perf_counter`."""

    index: int
    planned_s: float | None
    """When it was to be sent; None in a closed loop."""
    sent_s: float = 0.0
    """When its bytes were handed to the system, before anything could come back."""
    ended_s: float = 0.0
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    """(time, bytes) as they arrived, HTTP header and framing included."""
    error: str | None = None
    """Of the connection: refused, reset, timed out. What the server said stands in the pieces."""


class _Connection:
    """One request on its way."""

    __slots__ = ("answer", "deadline", "is_connected", "last_s", "rest", "sock")

    def __init__(self, sock: socket.socket, answer: Answer, payload: bytes, deadline: float) -> None:
        self.sock, self.answer, self.rest, self.deadline = sock, answer, memoryview(payload), deadline
        self.is_connected = False
        self.last_s = 0.0


class StampLoop:
    """Runs one plan; made anew for each."""

    def __init__(self, payloads: Sequence[bytes], answers: Sequence[Answer], *, host: str, port: int, timeout_s: float,
                 should_stop: Callable[[], bool]) -> None:
        """Look the server up; nothing is sent yet.

        Args:
            payloads: whole HTTP requests.
            answers: one for each payload; filled in place.
            host: name or address of the server.
            port: of the server.
            timeout_s: of one request.
            should_stop: asked every TICK_S.

        Raises: OSError when the host has no address.
        """
        self.payloads, self.answers, self.timeout_s, self.should_stop = payloads, answers, timeout_s, should_stop
        self.family, self.address = look_up(host, port)
        self.lags: list[float] = []
        self.num_by_kernel = self.num_by_client = 0
        """Pieces by whose stamp they bear."""
        self.is_stopped = False
        self._selector = selectors.DefaultSelector()
        self._active: dict[int, _Connection] = {}
        """By file number, in the order of opening."""
        self._offset_ns = clock_offset_ns()
        self._due = time.perf_counter() + TICK_S

    def run_closed(self, concurrency: int) -> None:
        """A place takes the next request when its last one has ended. The first are connected before any is sent."""
        waiting = deque(range(len(self.payloads)))
        for _ in range(min(concurrency, len(waiting))):
            self._open(waiting.popleft())
        while any(not connection.is_connected for connection in self._active.values()) and not self.is_stopped:
            self._poll(TICK_S, hold=True)
        for connection in list(self._active.values()):
            if connection.answer.error is None:
                self._send(connection)
        while (self._active or waiting) and not self.is_stopped:
            while waiting and len(self._active) < concurrency:
                self._open(waiting.popleft())
            self._poll(TICK_S)

    def run_open(self, times: Sequence[float], begun: float) -> None:
        """Each request at its time, seconds after `begun`, however many are on their way."""
        waiting = deque(sorted(range(len(times)), key=lambda index: (times[index], index)))
        while (self._active or waiting) and not self.is_stopped:
            while waiting and (due := begun + times[waiting[0]]) <= time.perf_counter():
                index = waiting.popleft()
                self.answers[index].planned_s = due
                self._open(index)
            self._poll(max(0.0, begun + times[waiting[0]] - time.perf_counter()) if waiting else TICK_S)

    def close(self) -> float:
        """Give every socket back; returns by how many seconds the system's clock was set meanwhile."""
        for connection in list(self._active.values()):
            self._end(connection, "stopped")
        self._selector.close()
        return abs(clock_offset_ns() - self._offset_ns) * 1e-9

    def _open(self, index: int) -> None:
        sock = socket.socket(self.family, socket.SOCK_STREAM)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ask_for_stamps(sock)
        connection = _Connection(sock, self.answers[index], self.payloads[index],
                                 time.perf_counter() + self.timeout_s)
        self._active[sock.fileno()] = connection
        self._selector.register(sock, selectors.EVENT_WRITE, connection)
        code = sock.connect_ex(self.address)
        if code not in (0, errno.EINPROGRESS):
            self._end(connection, _told(OSError(code, errno.errorcode.get(code, "?"))))

    def _poll(self, timeout_s: float, *, hold: bool = False) -> None:
        """Wait for the next events and take them; with `hold` a new connection does not send yet."""
        until_tick = max(0.0, self._due - time.perf_counter())
        for key, events in self._selector.select(min(timeout_s, until_tick)):
            if events & selectors.EVENT_READ:
                self._read(key.data)
            else:
                self._writable(key.data, hold)
        now = time.perf_counter()
        if now >= self._due:
            self.lags.append(now - self._due)
            self._look_around(now)
            self._due = time.perf_counter() + TICK_S

    def _look_around(self, now: float) -> None:
        self.is_stopped = self.is_stopped or self.should_stop()
        for connection in list(self._active.values()) if self.is_stopped else self._late(now):
            what = "end" if connection.answer.sent_s else "connection"
            self._end(connection, "stopped" if self.is_stopped else f"no {what} within {self.timeout_s:g} s")

    def _late(self, now: float) -> list[_Connection]:
        return [connection for connection in self._active.values() if now >= connection.deadline]

    def _writable(self, connection: _Connection, hold: bool) -> None:
        if not connection.is_connected:
            code = connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                return self._end(connection, _told(OSError(code, errno.errorcode.get(code, "?"))))
            connection.is_connected = True
            if hold:
                self._selector.modify(connection.sock, selectors.EVENT_READ, connection)
                return None
        return self._send(connection)

    def _send(self, connection: _Connection) -> None:
        """As much of the request as the system takes now; the rest when it takes more."""
        if not connection.answer.sent_s:
            connection.answer.sent_s = connection.last_s = time.perf_counter()
            connection.deadline = connection.last_s + self.timeout_s
        try:
            connection.rest = connection.rest[connection.sock.send(connection.rest):]
        except BlockingIOError:
            pass
        except OSError as error:
            return self._end(connection, _told(error))
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.rest else 0)
        self._selector.modify(connection.sock, wanted, connection)
        return None

    def _read(self, connection: _Connection) -> None:
        try:
            data, extra, _, _ = connection.sock.recvmsg(RECEIVE_BYTES, STAMP_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            return self._end(connection, _told(error))
        when = time.perf_counter()
        if not data:
            return self._end(connection, None)
        stamp = kernel_stamp_s(extra, self._offset_ns)
        if stamp is None:
            self.num_by_client += 1
        else:
            self.num_by_kernel += 1
            when = min(max(stamp, connection.last_s), when)
        connection.last_s = when
        connection.answer.pieces.append((when, data))

    def _end(self, connection: _Connection, error: str | None) -> None:
        if error is None and not connection.answer.sent_s:
            error = "ConnectionResetError: closed before the request was sent"
        connection.answer.ended_s = time.perf_counter()
        connection.answer.error = error
        del self._active[connection.sock.fileno()]
        self._selector.unregister(connection.sock)
        connection.sock.close()


def look_up(host: str, port: int) -> tuple[int, Any]:
    """(family, address) of a server; of several the first that takes a connection, as `localhost` may be two.

    Raises: OSError when the host has no address.
    """
    found = [(family, address) for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    for family, address in found if len(found) > 1 else []:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.settimeout(2.0)
            probe.connect(address)
            return family, address
    return found[0]


def ask_for_stamps(sock: socket.socket) -> None:
    """Have the kernel say with each reading when the last of its bytes arrived, where it can."""
    if _TIMESTAMPNS is not None:
        with contextlib.suppress(OSError):  # a sandbox without it: the reader stamps
            sock.setsockopt(socket.SOL_SOCKET, _TIMESTAMPNS, 1)


def kernel_stamp_s(extra: list[tuple[int, int, bytes]], offset_ns: int) -> float | None:
    """The kernel's stamp beside what `recvmsg` read, on `time.perf_counter`; None without one.

    Args:
        extra: ancillary data of `recvmsg(..., STAMP_BYTES)`.
        offset_ns: of `clock_offset_ns`.
    """
    if not extra or extra[0][1] != _TIMESTAMPNS or len(extra[0][2]) != _TIMESPEC.size:
        return None
    seconds, nanos = _TIMESPEC.unpack(extra[0][2])
    return (seconds * 1_000_000_000 + nanos - offset_ns) * 1e-9


def clock_offset_ns() -> int:
    """Wall clock less `time.perf_counter`, ns: the best of a few readings, each between two of the other clock."""
    found = []
    for _ in range(5):
        before = time.perf_counter_ns()
        wall = time.time_ns()
        after = time.perf_counter_ns()
        found.append((after - before, wall - (before + after) // 2))
    return min(found)[1]


def _told(error: OSError) -> str:
    """`ConnectionRefusedError: [Errno 111] ECONNREFUSED`: OSError takes the class from the number."""
    return f"{type(error).__name__}: {error}"
