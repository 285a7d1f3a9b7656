"""The file that rccl-tests writes with `-x FILE -Z json` or `-Z csv`: one record for each side of each size.

It has no footer and no list of devices: how many processes and GPUs took part stands in every record. `nodes` and
`ranksPerNode` are left out, since the program divides the number of processes by itself.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from typing import Any

from labkit.analyze.nccl_tests import count, number, verdict

_OPS = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
        "alltoall": "all_to_all", "alltoallv": "all_to_all_v", "sendrecv": "send_recv",
        "allreducebias": "all_reduce_bias"}
_KEYS = {"collective": "name", "inplace": "inPlace", "algbw": "algBw", "busbw": "busBw", "#wrong": "wrong"}


def is_records(value: Any) -> bool:
    """Whether a JSON value is such a list."""
    return isinstance(value, list) and bool(value) and all(isinstance(record, dict) for record in value) and (
        value[0].keys() >= {"size", "inPlace", "busBw"})


def csv_records(lines: Sequence[str]) -> list[dict[str, Any]]:
    """Records of the CSV form; [] if no line is its header."""
    start = next((i for i, line in enumerate(lines) if line.strip().startswith("numCycle,collective,")), None)
    if start is None:
        return []
    names = [_KEYS.get(name, name) for name in next(csv.reader([lines[start].strip()]))]
    cells = (next(csv.reader([line.strip()]), []) for line in lines[start + 1 :])
    return [dict(zip(names, row)) for row in cells if len(row) == len(names) and count(row[0]) is not None]


def read_records(records: Sequence[dict[str, Any]], *, cut: bool = False) -> dict[str, Any]:
    """One run of one collective, as `nccl_tests_text.parse_text` gives it, with `num_cycle` in each row.

    Args:
        records: as `is_records` or `csv_records` finds them.
        cut: the file ends inside.
    """
    rows: list[dict[str, Any]] = []
    for record in records:
        if "busBw" not in record:  # the last one of a file that is cut
            continue
        side = {"time_us": number(record.get("time")), "algbw": number(record.get("algBw")),
                "busbw": number(record.get("busBw")), "wrong": count(record.get("wrong"))}
        about = {"size": count(record.get("size")), "count": None, "type": record.get("type"),
                 "redop": record.get("redop"), "root": None, "num_cycle": count(record.get("numCycle"))}
        in_place = str(record.get("inPlace")).strip().lower() in ("1", "true")
        if in_place and rows and rows[-1]["in_place"] is None and all(rows[-1][key] == about[key] for key in about):
            rows[-1]["in_place"] = side
        else:
            rows.append(about | {"out_of_place": None if in_place else side, "in_place": side if in_place else None})
    ops = {_OPS.get(str(record.get("name")).lower(), str(record.get("name")).lower()) for record in records}
    ranks = {_ranks(record) for record in records}
    nranks = ranks.pop() if len(ranks) == 1 else None
    answer: dict[str, Any] = {
        "op": ops.pop() if len(ops) == 1 else None, "vendor": "amd", "library": "rccl", "nranks": nranks,
        "nranks_total": nranks, "groups": None, "hosts": None, "devices": [], "config": {}, "time_kind": "device",
        "rows": rows, "oob": None, "avg_busbw": None, "bandwidth_check": None, "finished": not cut,
        **verdict(rows, oob=None, oob_ok=None, bandwidth_check=None, validation=None, finished=False),
        "error": "cut off: the file does not end" if cut else None,
    }
    answer["usable"] = answer["usable_rows"] > 0 and answer["passed"] is not False and nranks != 1
    return answer


def _ranks(record: dict[str, Any]) -> int | None:
    """GPUs that took part: processes times the GPUs of each; the program calls processes ranks."""
    per_process = count(record.get("gpusPerRank", record.get("gpus")))
    processes = count(record.get("ranks", 1))
    return per_process * processes if per_process and processes else None
