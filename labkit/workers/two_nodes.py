"""Two link classes on one machine: the ranks split over two network namespaces with a slow wire between them.

Only Gloo groups that are made inside use the wire. Sockets that exist already stay where they are, so the default group
goes on working. Needs root's rights over namespaces; without them `enter` says why and changes nothing.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from labkit.workers.session import Session

CLONE_NEWNET = 0x40000000
WIRE = "lk0"
IFNAME = "GLOO_SOCKET_IFNAME"


@contextmanager
def two_nodes(session: Session, *, mbit_per_s: float) -> Iterator[str | None]:
    """Put the lower and the upper half of the ranks into a namespace each, joined by one wire; leave afterwards.

    Yields: None when it is done, else why it cannot be; then every rank is where it was.
    """
    before = os.environ.get(IFNAME)
    home = None
    try:
        home = os.open("/proc/self/ns/net", os.O_RDONLY)
        refusal = _enter(session, mbit_per_s)
        if refusal is None:
            os.environ[IFNAME] = WIRE
        else:
            _set_namespace(home)
        yield refusal
    except OSError as error:
        if home is not None:
            raise
        yield f"{error.strerror}: /proc/self/ns/net"
    finally:
        if before is None:
            os.environ.pop(IFNAME, None)
        else:
            os.environ[IFNAME] = before
        if home is not None:
            _set_namespace(home)
            os.close(home)


def _enter(session: Session, mbit_per_s: float) -> str | None:
    """Every step is made by all ranks, and all learn of a failure, so that no rank waits for one that gave up."""
    leaders = (0, session.world_size // 2)
    is_leader = session.rank in leaders
    node = int(session.rank >= leaders[1])
    if (refusal := _all_agree(session, _new_namespace() if is_leader else None)) is not None:
        return refusal
    pids = session.gather(os.getpid())
    problem = _command("ip", "link", "set", "lo", "up") if is_leader else None
    if session.rank == 0 and problem is None:
        problem = _command("ip", "link", "add", WIRE, "type", "veth", "peer", "name", WIRE,
                           "netns", str(pids[leaders[1]]))
    if (refusal := _all_agree(session, problem)) is not None:
        return refusal
    problem = None
    if is_leader:
        problem = (_command("ip", "addr", "add", f"10.213.77.{node + 1}/24", "dev", WIRE)
                   or _command("ip", "link", "set", WIRE, "up")
                   or _command("tc", "qdisc", "add", "dev", WIRE, "root", "tbf", "rate", f"{mbit_per_s:g}mbit",
                               "burst", "256kb", "latency", "200ms"))
    else:
        try:
            handle = os.open(f"/proc/{pids[leaders[node]]}/ns/net", os.O_RDONLY)
            problem = _set_namespace(handle)
            os.close(handle)
        except OSError as error:
            problem = f"joining the namespace: {error.strerror}"
    return _all_agree(session, problem)


def _all_agree(session: Session, problem: str | None) -> str | None:
    return next((told for told in session.gather(problem) if told is not None), None)


def _new_namespace() -> str | None:
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "unshare"):
        return "no network namespaces on this system"
    return None if libc.unshare(CLONE_NEWNET) == 0 else f"network namespace: {os.strerror(ctypes.get_errno())}"


def _set_namespace(handle: int) -> str | None:
    libc = ctypes.CDLL(None, use_errno=True)
    return None if libc.setns(handle, CLONE_NEWNET) == 0 else f"namespace: {os.strerror(ctypes.get_errno())}"


def _command(*argv: str) -> str | None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{argv[0]}: {type(error).__name__}"
    return None if done.returncode == 0 else f"{' '.join(argv[:3])}: {done.stderr.strip()[:120] or 'failed'}"
