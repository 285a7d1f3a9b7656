"""Write a synthetic PyTorch GPU trace whose right answer is known in closed form.

One profiler step; every cycle of 20 us has two operators, four launches, three compute kernels and one all-reduce, at
offsets with nanosecond digits. The text has the layout that torch 2.11 writes. `make_trace.py OUT [--cycles N]` prints
the answer as JSON; the default gives 200,001 events.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

DEFAULT_CYCLES = 20_000
EVENTS_PER_CYCLE = 10
CYCLE_NS = 20_000
LAUNCH_LEAD_NS = 3_250
# (name, stream, start, end) in ns from the start of the cycle.
KERNELS = (
    ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", 7, 0, 5_137),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float> >(int)", 7, 6_250, 11_625),
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 20, 3_501, 10_376),
    ("triton_poi_fused_native_layer_norm_3", 7, 12_875, 17_999),
)
COMM = 2
ALL_REDUCE_ELEMENTS = 1_048_576


def known_answer(cycles: int = DEFAULT_CYCLES) -> dict[str, float | int]:
    """The right answer, from the four intervals of one cycle by hand.

    The all-reduce runs 3501..10376 (6875 ns). Compute covers 3501..5137 and 6250..10376 of it: 1636 + 4126 = 5762 ns.
    Compute alone is 5137 + 5375 + 5124 = 15636 ns. No kernel reaches into the next cycle.
    """
    return {
        "events": 1 + EVENTS_PER_CYCLE * cycles,
        "n_comm": cycles,
        "n_compute": 3 * cycles,
        "comm_us": 6875 * cycles / 1000,
        "compute_us": 15636 * cycles / 1000,
        "overlap_us": 5762 * cycles / 1000,
        "exposed_comm_us": 1113 * cycles / 1000,
        "overlap_fraction": 5762 / 6875,
        "busy_us": 16749 * cycles / 1000,
        "all_reduce_bytes": 2 * ALL_REDUCE_ELEMENTS * cycles,
    }


def _us(time_ns: int) -> str:
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


def _event(cat: str, name: str, pid: int, tid: int, start_ns: int, dur_ns: int, args: str) -> str:
    return (
        f'  {{\n    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
        f'    "ts": {_us(start_ns)}, "dur": {_us(dur_ns)},\n    "args": {{\n      {args}\n    }}\n  }}'
    )


def _cycle(index: int, base_ns: int) -> list[str]:
    begin = base_ns + index * CYCLE_NS
    first_id = index * 4 + 1
    events = []
    for k, name in enumerate(("aten::linear", "aten::add")):
        args = f'"External id": {first_id + k}, "Ev Idx": 0'
        events.append(_event("cpu_op", name, 4242, 4242, begin - 9_000 + k * 1_500, 1_250, args))
    for k, (name, stream, start, end) in enumerate(KERNELS):
        number = first_id + k
        launch = f'"External id": {number}, "cbid": 211, "correlation": {number}'
        events.append(
            _event("cuda_runtime", "cudaLaunchKernel", 4242, 4242, begin + start - LAUNCH_LEAD_NS, 1_125, launch)
        )
        args = (
            f'"External id": {number}, "queued": 0, "device": 0, "context": 1,\n'
            f'      "stream": {stream}, "correlation": {number},\n'
            '      "registers per thread": 168, "shared memory": 213048,\n      "blocks per SM": 1.000000,'
            ' "warps per SM": 12.000000,\n      "grid": [132, 1, 1], "block": [384, 1, 1],\n'
            '      "est. achieved occupancy %": 19'
        )
        if k == COMM:
            args += (
                f',\n      "Collective name": "allreduce", "In msg nelems": {ALL_REDUCE_ELEMENTS},'
                f' "Out msg nelems": {ALL_REDUCE_ELEMENTS}, "Group size": 2, "dtype": "BFloat16",\n'
                '      "Process Group Name": "0", "Process Group Description": "default_pg",'
                ' "Process Group Ranks": "[0, 1]"'
            )
        events.append(_event("kernel", name, 0, stream, begin + start, end - start, args))
    return events


def write_trace(path: Path, cycles: int = DEFAULT_CYCLES, *, rank: int = 0) -> int:
    """Write the trace of `cycles` cycles (10 events each, plus the step); returns its size in bytes."""
    base_ns = 5_123_527_724_000_000  # a real recording's distance from baseTimeNanoseconds, beyond a float's exact us
    length_ns = cycles * CYCLE_NS + 20_000
    step = _event("user_annotation", "ProfilerStep#1", 4242, 4242, base_ns - 10_000, length_ns, '"External id": 0')
    header = (
        '{\n  "schemaVersion": 1,\n  "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "computeMajor": 9}],\n'
        f'  "distributedInfo": {{"backend": "nccl", "rank": {rank}, "world_size": 2, "pg_count": 1}},\n'
        '  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": 1790857026000000000,\n  "traceEvents": [\n'
    )
    with open(path, "w", encoding="utf-8") as out:
        out.write(header + step)
        for index in range(cycles):
            out.write(",\n" + ",\n".join(_cycle(index, base_ns)))
        out.write('\n  ],\n  "traceName": "synthetic.json"\n}\n')
    return path.stat().st_size


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cycles", type=int, default=DEFAULT_CYCLES)
    args = parser.parse_args()
    size = write_trace(args.out, args.cycles)
    print(json.dumps({"file": str(args.out), "size_bytes": size, "answer": known_answer(args.cycles)}))


if __name__ == "__main__":
    main()
