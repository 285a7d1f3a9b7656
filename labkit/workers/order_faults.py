"""Play broken schedules of collectives on real Gloo ranks and keep what each rank logged, whatever becomes of it.

    python -m labkit.workers.order_faults --run-dir DIR        (DIR holds params.json: cases of schedule and members)

One process a rank, made by fork from this one, which has imported torch already. Each rank writes a line before a call
and one after it, so that a rank that Gloo aborts leaves its log too. Out: `case<i>_rank<k>.jsonl` and `faults.jsonl`
(one line a case: exit codes by rank).
"""

from __future__ import annotations

import json
import os
import signal
import time
import zlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from labkit.workers.session import read_params


def tensor_value(name: str, rank: int) -> int:
    """As `labkit.calc.collective_schedule.tensor_value`, written again: a worker imports no formulas."""
    return zlib.crc32(name.encode()) % 251 * 256 + rank


EVERYBODY = "everybody"
"""Name of one more group, of all ranks: they start together, so that a busy machine costs no deadline."""
CONNECT_TIMEOUT = timedelta(seconds=60)


def play_rank(rank: int, calls: list[dict[str, Any]], members: dict[str, list[int]], *, store_path: Path,
              log_path: Path, timeout_s: float) -> None:
    """Make this rank's groups in the common order, then its calls, blocking, until the end or an error."""
    store = dist.FileStore(str(store_path), -1)  # pyright: ignore[reportPrivateImportUsage]
    world = sorted({member for ranks in members.values() for member in ranks})
    groups = {}
    for name, ranks in {**members, EVERYBODY: world}.items():
        if rank in ranks:
            groups[name] = dist.ProcessGroupGloo(
                dist.PrefixStore(name, store),  # pyright: ignore[reportPrivateImportUsage]
                ranks.index(rank), len(ranks), CONNECT_TIMEOUT)
    groups[EVERYBODY].barrier().wait()
    options = dist.AllreduceOptions()
    options.timeout = timedelta(seconds=timeout_s)
    counts: dict[str, int] = {}
    with open(log_path, "w", encoding="utf-8") as stream:
        def write(**values: Any) -> None:
            stream.write(json.dumps(values) + "\n")
            stream.flush()

        for index, call in enumerate(calls):
            counts[call["group"]] = counts.get(call["group"], 0) + 1
            write(event="call", index=index, seq=counts[call["group"]], **call)
            tensor = torch.full(call["shape"], float(tensor_value(call["tensor"], rank)))
            try:
                groups[call["group"]].allreduce([tensor], options).wait()
            except RuntimeError as error:
                write(event="error", index=index, error=str(error).splitlines()[0][:200])
                return
            values = tensor.unique().tolist()
            write(event="done", index=index, values=[int(value) for value in values[:4]])
        write(event="end")


def start_case(number: int, case: dict[str, Any], run_dir: Path, timeout_s: float) -> list[int]:
    """Fork one process a rank; returns their ids."""
    store_path = run_dir / f"case{number}.store"
    pids = []
    for rank, calls in enumerate(case["schedule"]):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                play_rank(rank, calls, case["members"], store_path=store_path, timeout_s=timeout_s,
                          log_path=run_dir / f"case{number}_rank{rank}.jsonl")
                code = 0
            finally:
                os._exit(code)  # no clean-up of the parent's state in the child
        pids.append(pid)
    return pids


def wait_all(pids: list[int], deadline: float) -> list[int]:
    """Exit code of each process (a signal is negative); those past the deadline are ended."""
    codes: dict[int, int] = {}
    while len(codes) < len(pids):
        for pid in pids:
            if pid not in codes:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    codes[pid] = os.waitstatus_to_exitcode(status)
                elif time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return [codes[pid] for pid in pids]


@record
def main() -> None:
    """Play every case, some at a time."""
    run_dir, params = read_params()
    torch.set_num_threads(1)
    cases, timeout_s = params["cases"], params["call_timeout_s"]
    with open(run_dir / "faults.jsonl", "w", encoding="utf-8") as stream:
        for first in range(0, len(cases), params["num_at_once"]):
            batch = range(first, min(first + params["num_at_once"], len(cases)))
            started = {number: start_case(number, cases[number], run_dir, timeout_s) for number in batch}
            deadline = time.monotonic() + params["case_deadline_s"]
            for number, pids in started.items():
                codes = wait_all(pids, deadline)
                stream.write(json.dumps({"kind": "case", "case": number, "exit_codes": codes}) + "\n")
                stream.flush()
                (run_dir / f"case{number}.store").unlink(missing_ok=True)
            print(f"progress: {batch.stop} of {len(cases)} broken schedules played on real ranks", flush=True)


if __name__ == "__main__":
    main()
