"""How much memory is in use on the GPUs, so that a server's share is seen to return when it has ended."""

from __future__ import annotations

from collections.abc import Callable

from labkit import machine
from labkit.units import MIB


def memory_reader(device: str) -> Callable[[], int | None] | None:
    """A function that gives the bytes in use on all visible GPUs, by all processes; None for a CPU.

    The function gives None when nvidia-smi does not answer: unknown is not zero.
    """
    indices = [str(gpu.index) for gpu in machine.detect().gpus] if device == "cuda" else []
    if not indices:
        return None
    argv = ["nvidia-smi", "-i", ",".join(indices), "--query-gpu=memory.used", "--format=csv,noheader,nounits"]

    def read() -> int | None:
        text, _ = machine.tool_output(argv)
        numbers = [line.strip() for line in text.splitlines() if line.strip()]
        return sum(int(number) for number in numbers) * MIB if numbers and all(map(str.isdecimal, numbers)) else None

    return read
