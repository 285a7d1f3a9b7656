"""The analyzer on a real two-rank gloo recording, against slow code that shares nothing with it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from labkit.analyze.trace import analyze_trace, trace_events
from labkit.analyze.trace_ranks import analyze_trace_dir

FOLDER = Path(__file__).parent / "data" / "trace_gloo"
# Four 256x256 linear layers with bias, float32: what DDP reduces in a step.
GRADIENT_BYTES = 4 * (256 * 256 + 256) * 4


def recorded(rank):
    events = json.loads((FOLDER / f"rank{rank}.json").read_text(), parse_float=str, parse_int=str)["traceEvents"]
    return [event for event in events if event["ph"] == "X"]


def ns(text):
    """Decimal text in us to ns, by moving the point."""
    whole, _, fraction = text.partition(".")
    return int(whole + fraction.ljust(3, "0"))


def span(event):
    return ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])


def coverage(rank):
    """Length by set of classes, sweeping over every edge: who is inside a gloo call, who in an operator."""
    events = recorded(rank)
    comm = [(span(e), e["tid"]) for e in events if e["name"].startswith("gloo:")]
    loops = {tid for _, tid in comm}
    enqueue = [(span(e), e["tid"]) for e in events if e["name"].startswith("c10d::")]
    ops = [(span(e), e["tid"]) for e in events if e["cat"] == "cpu_op" and e["tid"] not in loops]
    edges = sorted({t for pieces in (comm, enqueue, ops) for piece, _ in pieces for t in piece})
    totals = {"comm": 0, "compute": 0, "overlap": 0}
    for left, right in pairwise(edges):
        in_comm = any(a <= left and right <= b for (a, b), _ in comm)
        threads = {tid for (a, b), tid in ops if a <= left and right <= b}
        waiting = {tid for (a, b), tid in enqueue if a <= left and right <= b}
        in_compute = bool(threads - waiting)
        totals["comm"] += (right - left) * in_comm
        totals["compute"] += (right - left) * in_compute
        totals["overlap"] += (right - left) * (in_comm and in_compute)
    return totals


@pytest.mark.parametrize("rank", [0, 1])
def test_times_match_a_sweep_over_every_edge(rank):
    answer, slow = analyze_trace(FOLDER / f"rank{rank}.json"), coverage(rank)
    assert round(answer["comm_us"] * 1000) == slow["comm"]
    assert round(answer["compute_us"] * 1000) == slow["compute"]
    assert round(answer["overlap_us"] * 1000) == slow["overlap"]
    assert 0 < slow["overlap"] < slow["comm"]  # the recording does have both


@pytest.mark.parametrize("rank", [0, 1])
def test_counts_and_bytes_of_each_step(rank):
    answer = analyze_trace(FOLDER / f"rank{rank}.json")
    assert (answer["rank"], answer["world_size"], answer["backend"], answer["device_kind"]) == (rank, 2, "gloo", "cpu")
    assert list(answer["steps"]) == ["2", "3"] and answer["outside_steps"]["n_comm"] == 0
    for step in answer["steps"].values():
        counts = {name: entry["count"] for name, entry in step["collectives"].items()}
        assert counts == {"all_reduce": 2, "all_gather": 1, "barrier": 1}
        assert step["collectives"]["all_reduce"]["bytes"] == GRADIENT_BYTES
        assert step["collectives"]["barrier"]["bytes"] is None


def test_table_and_summary_agree():
    table, answer = trace_events(FOLDER / "rank0.json"), analyze_trace(FOLDER / "rank0.json")
    comm = table[table["cls"] == "comm"]
    assert len(comm) == answer["n_comm"] and comm["dur_ns"].sum() == round(answer["comm_sum_us"] * 1000)
    assert (table["cls"] == "compute").sum() == answer["n_compute"]
    assert set(comm["collective"]) == {"all_reduce", "all_gather", "barrier"}


def test_wait_and_transfer_over_both_ranks():
    answer = analyze_trace_dir([FOLDER])
    gloo = {r: [e for e in recorded(r) if e["name"].startswith("gloo:")] for r in (0, 1)}
    total, waits = 0, {"0": 0, "1": 0}
    for name in sorted({e["name"] for e in gloo[0]}):
        calls = [sorted((e for e in gloo[r] if e["name"] == name), key=lambda e: ns(e["ts"])) for r in (0, 1)]
        for mine, other in zip(*calls, strict=True):
            fastest = min(ns(mine["dur"]), ns(other["dur"]))
            total += fastest
            waits["0"] += ns(mine["dur"]) - fastest
            waits["1"] += ns(other["dur"]) - fastest
    assert round(answer["collective_min_us"] * 1000) == total
    assert {rank: round(us * 1000) for rank, us in answer["wait_us"].items()} == waits
    assert answer["num_matched"] == 8 and answer["warnings"] == []
