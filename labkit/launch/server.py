"""What a load needs of a server; `labkit.launch.vllm_server.VllmServer` has it, and so do stand-ins of tests."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


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
