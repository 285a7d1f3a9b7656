"""Small all-reduce worker of the launcher's tests; params.json says how it should misbehave.

{"steps": int, "step_s": seconds, "backend": "gloo" or "nccl", "fail": {"<rank>": what}} with what one of "raise",
"exit", "kill", "hang", "ignore_term_hang" and "orphan" (leave a child in a session of its own).
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


def misbehave(what: str, rank: int) -> None:
    """Do the one bad thing that was asked for."""
    if what == "raise":
        raise ValueError(f"boom on rank {rank}")
    if what == "exit":
        print(f"rank {rank} gives up")
        sys.exit(3)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "ignore_term_hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if what in ("hang", "ignore_term_hang"):
        print(f"rank {rank} stops here")
        time.sleep(600)
    if what == "orphan":
        subprocess.Popen(["sleep", "600"], start_new_session=True)


@record
def main() -> None:
    """Reduce a vector `steps` times, check it, write rank<k>.jsonl."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    run_dir = parser.parse_args().run_dir
    params = json.loads((run_dir / "params.json").read_text())
    rank = int(os.environ["RANK"])
    backend = params.get("backend", "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(backend)
    try:
        lines = []
        for step in range(params["steps"]):
            if step == params["steps"] // 2 and str(rank) in params.get("fail", {}):
                misbehave(params["fail"][str(rank)], rank)
            vector = torch.full((8,), float(rank), device=device)
            dist.all_reduce(vector)
            expected = float(sum(range(dist.get_world_size())))
            if not torch.equal(vector.cpu(), torch.full((8,), expected)):
                raise RuntimeError(f"rank {rank}: wrong sum")
            lines.append({"kind": "step", "step": step, "sum": float(vector[0]), "threads": torch.get_num_threads()})
            print(f"step {step} done")
            time.sleep(params.get("step_s", 0.0))
        (run_dir / f"rank{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
