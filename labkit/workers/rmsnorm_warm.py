"""Compile the kernels of a run in several processes at once, before the run checks and times them in one.

    python -m labkit.workers.rmsnorm_warm --run-dir D --shard 0 --of 8

Each process makes every `of`-th check and tunable setting once, on few rows; Triton keeps what it compiles in its disk
cache, where the run then finds it. Nothing here is judged: what fails here fails again, and is told, in the run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

FEW_ROWS = 16
TIMEOUT_S = 60


def warm_in_parallel(run_dir: Path, meanwhile: Callable[[], Any]) -> float:
    """Start the processes, do something else meanwhile, wait for all; returns seconds.

    Starts none on small hosts or beside other ranks.
    """
    began = time.perf_counter()
    num = min(10, (os.cpu_count() or 1) - 2)
    if num < 4 or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        meanwhile()
        return time.perf_counter() - began
    argv = [sys.executable, "-m", "labkit.workers.rmsnorm_warm", "--run-dir", str(run_dir), "--of", str(num), "--shard"]
    running = [subprocess.Popen([*argv, str(shard)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
               for shard in range(num)]  # fmt: skip
    meanwhile()
    for process in running:
        try:
            process.wait(timeout=max(1.0, began + TIMEOUT_S - time.perf_counter()))
        except subprocess.TimeoutExpired:  # the run compiles the rest itself
            process.kill()
            process.wait()
    return time.perf_counter() - began


def jobs(params: dict[str, Any], device: str) -> Iterator[Callable[[], Any]]:
    """Every check on few rows, then every setting that the shape cache may try."""
    from labkit.workers.rmsnorm_autotune import backward_shortlist, forward_shortlist
    from labkit.workers.rmsnorm_bench import all_cases, parse_shape
    from labkit.workers.rmsnorm_fast import rmsnorm_fast
    from labkit.workers.rmsnorm_grad import rmsnorm_backward

    for _, _, run, _ in all_cases({**params, "max_rows": FEW_ROWS}, device):
        yield run
    for text in params["cache_shapes"]:
        rows, hidden, dtype = parse_shape(text)
        x = torch.zeros(FEW_ROWS, hidden, dtype=dtype, device=device)
        w, rstd, out = torch.ones_like(x[0]), torch.ones(FEW_ROWS, device=device), torch.empty_like(x)
        if text in params["backward_shapes"]:
            for config in backward_shortlist(x, x, out):
                yield partial(rmsnorm_backward, x, x, w, rstd, dx=out, config=config)
        if text in params["shapes"]:
            for config in forward_shortlist(x, out, rows=rows):
                yield partial(rmsnorm_fast, x, w, out=out, config=config)


def main() -> None:
    """Entry point; see the module docstring."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--shard", type=int, required=True)
    parser.add_argument("--of", type=int, required=True)
    args = parser.parse_args()
    params = json.loads((args.run_dir / "params.json").read_text(encoding="utf-8"))
    with torch.no_grad():
        for index, job in enumerate(jobs(params, params["device"])):
            if index % args.of == args.shard:
                with suppress(Exception):
                    job()


if __name__ == "__main__":
    main()
