"""Lines as labkit.workers.gemm_bench writes them, from a made-up machine that obeys the model to the last digit.

Memory 2e12 bytes/s, bf16 4e14 FLOP/s, an empty call 2 us: the ridge is 200 FLOP/byte.
"""

import json

from labkit.analyze.gemm_model import cases

SHAPE, CASE = "up 4096x2048", "up bf16"
RATES = {"bytes_per_s": 2e12, "flop_per_s": {"bf16": 4e14}, "floor_s": 2e-6}
ROWS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]
FOUND = cases([SHAPE], ["bf16"])
K, N = 4096, 2048


def time_ms(m, *, bandwidth=2e12, rate=4e14, floor_s=2e-6):
    """The ideal machine, spelled out."""
    moved, flop = 2 * (m * K + K * N + m * N), 2 * m * K * N
    return 1e3 * (floor_s + max(moved / bandwidth, flop / rate))


def ceiling_lines(count=2):
    side = 8192
    return [
        {"kind": "ceiling", "what": "floor", "work": 0.0, "ms": [0.002] * count},
        {"kind": "ceiling", "what": "copy", "work": 2e9, "ms": [1.25] * count},
        {"kind": "ceiling", "what": "read", "work": 1e9, "ms": [0.5] * count},
        {"kind": "ceiling", "what": "gemm bf16", "work": 2.0 * side**3, "ms": [2.0 * side**3 / 4e14 * 1e3] * count},
    ]


def sweep_lines(process=0, *, time=time_ms, count=20):
    lines = [{"kind": "device", "device": "cuda", "cache_bytes": 2**20, "num_threads": 1, "num_sms": 132}]
    if process == 0:
        where = {"case": CASE, "mode": "dense"}
        for m in (1, 5, 33):
            lines.append({"kind": "exact", "num_bad": 0, "rows": m, **where})
            lines.append({"kind": "bound", "num_bad": 0, "rows": m, "bound_used": 0.5, "norm_rel_err": 1e-3, **where})
        flop, moved = 2 * 33 * K * N, 2 * (33 * K + K * N + 33 * N)
        lines.append({"kind": "count", "case": CASE, "rows": 33, "flop": flop, "bytes": moved})
        name = "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT"
        lines += [{"kind": "kernel", "case": CASE, "rows": m, "names": [name]} for m in (1024, 1025)]
    lines += ceiling_lines()
    for m in ROWS:
        half = [time(m)] * (count // 2)
        lines += [{"kind": "timing", "case": CASE, "mode": "cold", "rows": m, "round": r, "ms": half} for r in (0, 1)]
    lines += [{"kind": "timing", "case": CASE, "mode": "graph", "rows": m, "ms": [time_ms(m, floor_s=0)] * 4}
              for m in ROWS]  # fmt: skip
    lines.append({"kind": "timing", "case": CASE, "mode": "warm", "rows": 1, "ms": [0.004] * 4})
    for m, ms in ((1024, 0.1), (1025, 0.18)):
        lines.append({"kind": "timing", "case": CASE, "mode": "fine", "rows": m, "ms": [ms] * 4})
    for mode, ms in (("grouped", 0.05), ("skewed", 0.06), ("loop", 0.1)):
        lines += [{"kind": "timing", "case": CASE, "mode": mode, "rows": m, "ms": [ms] * 4} for m in (1, 16)]
    return [*lines, {"kind": "done", "wall_s": 1.0}]


def write_lines(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
