"""Lines as labkit.workers.rmsnorm_bench writes them on a GPU, with times that can be worked out in the head."""

import json

SHAPE, LARGE = "1024x768", "131072x1024"
MOVED = {SHAPE: (2 * 1024 * 768 + 768) * 2, LARGE: (2 * 131072 * 1024 + 1024) * 2}  # 3.147264 MB, 536.872960 MB
COLD = {  # ms; process 0, process 1
    (SHAPE, "fast"): ([0.004, 0.005], [0.005, 0.006]), (SHAPE, "copy"): ([0.004, 0.004], [0.005, 0.003]),
    (LARGE, "fast"): ([0.1250, 0.1250], [0.1250, 0.1250]), (LARGE, "copy"): ([0.1200, 0.1200], [0.1200, 0.1200]),
    (LARGE, "copy_again"): ([0.1212, 0.1212], [0.1212, 0.1212]),
    (LARGE, "compile"): ([0.1225, 0.1225], [0.1225, 0.1225]),
    (SHAPE, "native"): ([0.01, 0.01], [0.01, 0.01]), (LARGE, "native"): ([0.2, 0.2], [0.2, 0.2]),
}  # fmt: skip
STREAM = {
    (SHAPE, "report"): ([0.02, 0.02], [0.02, 0.04]), (SHAPE, "native"): ([0.01, 0.01], [0.01, 0.01]),
    (SHAPE, "fast"): ([0.02, 0.02], [0.02, 0.02]), (LARGE, "report"): ([0.13, 0.13], [0.13, 0.13]),
    (LARGE, "native"): ([0.26, 0.26], [0.26, 0.26]), (LARGE, "fast"): ([0.126, 0.126], [0.126, 0.126]),
    (SHAPE, "composite"): ([0.1, 0.1], [0.1, 0.1]), (LARGE, "composite"): ([0.9, 0.9], [0.9, 0.9]),
}  # fmt: skip
GOOD = {"max_abs_err": 0.001, "max_rel_err": 0.0005, "bound_used": 0.9, "norm_rel_err": 0.0002, "num_bad": 0,
        "unwritten": 0, "guards_touched": 0, "input_changed": 0, "passed": True}  # fmt: skip


def gpu_lines(process=0, rank=0, *, slower=1.0):
    """What one rank writes on a GPU with 60 MB of L2."""
    lines = [{"kind": "device", "rank": rank, "l2_bytes": 60_000_000}]
    if process == 0:
        lines += [{"kind": "check", "what": kernel, "shape": s, "rows_checked": 5, **GOOD}
                  for s in MOVED for kernel in ("report", "fast")]
        lines += [{"kind": "canary", "what": "fast", "rows_wrong": [], "unwritten": 0, "guards_touched": 0}] * 8
        lines += [{"kind": "profile", "shape": s, "provider": p, "kernels": n, "names": [p]} for s in MOVED
                  for p, n in (("report", 1), ("fast", 1), ("native", 1), ("composite", 9), ("compile", 1))]
        lines += [{"kind": "refusal", "what": "liger", "error": "ImportError: no", "shape": s} for s in MOVED]
    floors = {"stream": 0.015, "cold": 0.003, "graph": 0.001}
    lines += [{"kind": "floor", "mode": mode, "ms": [value, value]} for mode, value in floors.items()]
    for shape in MOVED:
        lines.append({"kind": "shape", "shape": shape, "l2_bytes": 60_000_000, "config_label": "tile"})
    for mode, table in (("cold", COLD), ("stream", STREAM)):
        lines += [{"kind": "timing", "mode": mode, "shape": s, "provider": p, "ms": [v * slower for v in ms[process]]}
                  for (s, p), ms in table.items()]
    lines.append({"kind": "compile", "shape": LARGE, "unique_graphs": 1, "graph_breaks": 0, "fell_back": False})
    lines += [{"kind": "recheck", "what": w, "shape": s, **GOOD} for s in MOVED for w in ("report_out", "fast")]
    return [*lines, {"kind": "done", "wall_s": 1.0}]


def write_run(run_dir, *, processes=(0, 1), ranks=(0,), slower=None, more=None):
    for process in processes:
        for rank in ranks:
            path = run_dir / f"p{process}" / f"rank{rank}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = gpu_lines(process, rank, slower=(slower or {}).get(rank, 1.0))
            rows += more(process) if more else []
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
