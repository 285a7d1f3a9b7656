"""What a load needs of a server, and sending one to it.

`labkit.launch.vllm_server.VllmServer` is such a server, and so are stand-ins of tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from labkit.launch.load_client import Load, LoadClientError, send_load
from labkit.launch.load_plan import Request
from labkit.launch.supervise import LaunchError


class Server(Protocol):
    """A server that runs."""

    host: str
    port: int
    model: str
    """Name under which its model is served."""

    @property
    def log(self) -> Path:
        """Its output."""
        ...

    def log_text(self) -> str:
        """Everything it has said."""
        ...

    def scrape(self) -> str:
        """Text of its metrics page; LaunchError when there is none."""
        ...

    def post(self, path: str) -> int:
        """Status of a POST; 0 without an answer."""
        ...

    def raise_if_dead(self) -> None:
        """LaunchError when it runs no more."""
        ...


def send_to(server: Server, plan: Sequence[Request], *, concurrency: int | None, **options: Any) -> Load:
    """`send_load` to a server; a client that cannot be believed fails the run that it belongs to.

    Args:
        server: where to.
        plan: requests.
        concurrency: in flight at most; None for an open loop.
        options: more arguments of `send_load`.

    Raises: ValueError as `send_load`; LaunchError, naming the server's log, in place of LoadClientError.
    """
    try:
        return send_load(plan, host=server.host, port=server.port, model=server.model, concurrency=concurrency,
                         **options)
    except LoadClientError as error:
        told = f"load on server {server.log.parent.name}: {error}"
        raise LaunchError(told, log_path=server.log, error=str(error)) from None
