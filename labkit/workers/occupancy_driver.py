"""Ask the CUDA driver for the occupancy of random kernels, so that a formula can be held against it.

    python -m labkit.workers.occupancy_driver --run-dir D      # reads D/params.json, writes D/rank0.jsonl

Lines by "kind": device (limits as the driver tells them), case (one kernel, its registers, and the driver's answer for
each launch), done. params.json: driver_kernels (how many), launches (of each), seed. Needs the driver, nothing else.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from labkit.workers.cuda_driver import Driver, DriverError
from labkit.workers.random_kernels import HEADER, RandomKernel, draw, draw_launches, ptx_of

KERNELS_PER_MODULE = 32


def ask(driver: Driver, *, num_kernels: int, launches: int, seed: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Random kernels through the driver's compiler, random launches of each through its occupancy calculator.

    Args:
        driver: loaded.
        num_kernels: kernels, all different.
        launches: of each kernel.
        seed: of both.

    Returns: the device's limits, and one case a kernel: `registers`, `static_shared_bytes` (as asked for) and what the
        driver says of both, `launches`: [threads, dynamic shared bytes, opted in, blocks per SM, error number].
    Raises: DriverError.
    """
    rng = random.Random(seed)
    device = driver.use_device(0)
    limits = driver.device_attributes(device)
    cases: list[dict[str, Any]] = []
    for start in range(0, num_kernels, KERNELS_PER_MODULE):
        kernels = [draw(i, rng) for i in range(start, min(start + KERNELS_PER_MODULE, num_kernels))]
        module = driver.load((HEADER + "".join(map(ptx_of, kernels))).encode())
        cases += [_case(driver, module, kernel, rng, launches, limits) for kernel in kernels]
        driver.unload_all()
    return limits, cases


def _case(driver: Driver, module: Any, kernel: RandomKernel, rng: random.Random, launches: int, limits: dict[str, int]
          ) -> dict[str, Any]:  # fmt: skip
    function = driver.function(module, kernel.name)
    told = driver.function_attributes(function)
    most = limits["shared_memory_per_block_bytes"]
    # Those that do not opt in come first: an opt-in cannot be taken back to what it was.
    drawn = draw_launches(kernel, rng, count=launches, most_shared_bytes=most)
    asked, opted = [], False
    for threads, dynamic, opt_in in sorted(drawn, key=lambda launch: launch[2]):
        if opt_in and not opted:
            driver.allow_shared(function, most - kernel.static_shared_bytes)
            opted = True
        asked.append([threads, dynamic, opt_in, *driver.max_blocks(function, threads=threads, dynamic_bytes=dynamic)])
    return {**asdict(kernel), "registers": told["registers"], "local_bytes": told["local_bytes"],
            "driver_static_shared_bytes": told["static_shared_bytes"], "driver_max_threads": told["max_threads"],
            "binary": told["binary"], "launches": asked}  # fmt: skip


def main() -> None:
    """Entry point; see the module docstring."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    run_dir = parser.parse_args().run_dir
    params = json.loads((run_dir / "params.json").read_text(encoding="utf-8"))
    began = time.perf_counter()
    with open(run_dir / "rank0.jsonl", "w", encoding="utf-8") as stream:
        try:
            driver = Driver()
            limits, cases = ask(driver, num_kernels=params["driver_kernels"], launches=params["launches"],
                                seed=params["seed"])  # fmt: skip
        except DriverError as error:
            raise SystemExit(f"occupancy_driver: {error}") from None
        lines: list[dict[str, Any]] = [{"kind": "device", "driver_cuda": driver.version(), **limits}]
        lines += [{"kind": "case", **case} for case in cases]
        lines.append({"kind": "done", "wall_s": time.perf_counter() - began})
        stream.writelines(json.dumps(line, allow_nan=False) + "\n" for line in lines)
    print(f"progress: asked the driver about {len(cases)} kernels in {time.perf_counter() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
