"""Lines as labkit.workers.launch_chain writes them, from a made-up GPU host whose costs can be added in the head.

An operator costs 4 us on the host and 1 us (16 elements) or 40 us (2^22) on the GPU; a graph 5 us and 1.5 us a node.
"""

import json

SIZES, LENGTHS = (16, 4194304), (1, 2, 8, 32)
WORK_US = {16: 1.0, 4194304: 40.0}
VARIANTS = ("eager", "paired", "graph", "kernel", "compiled")
OPS = {"eager": lambda n: n, "paired": lambda n: -(-n // 2), "graph": lambda n: n, "kernel": lambda n: 1,
       "compiled": lambda n: 1}  # fmt: skip


def wall_us(name, size, n):
    work = WORK_US[size]
    if name in ("eager", "paired"):
        return 2 + OPS[name](n) * max(4.0, work)
    if name == "graph":
        return 5 + n * max(1.5, work)
    return {"kernel": 10.0, "compiled": 50.0}[name] + work


def lines_of(process=0, *, time=wall_us, count=20):
    lines = [{"kind": "device", "num_threads": 1}]
    for size in SIZES:
        for n in LENGTHS:
            made = [v for v in VARIANTS if v != "compiled" or (n in (8, 32) and size == 16)]
            if process == 0:
                lines.append({"kind": "closed_form", "num_bad": 0, "size": size, "length": n})
                lines += [{"kind": "exact", "num_bad": 0, "variant": v, "size": size, "length": n} for v in made[1:]]
            lines += [{"kind": "timing", "variant": v, "size": size, "length": n, "wall_us": [time(v, size, n)] * count,
                       "issue_us": [4.0 * OPS[v](n)] * count} for v in made]  # fmt: skip
    if process == 0:
        lines += [{"kind": "ops", "variant": v, "length": 32, "count": OPS[v](32)} for v in ("eager", "paired")]
        lines += [{"kind": "kernels", "variant": v, "length": 32, "kernels": OPS[v](32)} for v in VARIANTS]
        lines.append({"kind": "compile_time", "size": 16, "length": 8, "wall_s": 3.0})
    return [*lines, {"kind": "done", "wall_s": 1.0}]


def write_run(run_dir, *, processes=(0, 1), lines=lines_of):
    for process in processes:
        path = run_dir / f"p{process}" / "rank0.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines(process)))
