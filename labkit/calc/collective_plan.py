"""The cells of a collective sweep: which processes run, with which settings of the library, on which sizes.

In: what is asked for. Out: one plain mapping a cell, as `labkit.workers.collective_cells` takes it.

    python -m labkit calc collective_plan plan_cells world_size=2 sizes_bytes='[1024]' collectives='["all_reduce"]'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ALGORITHMS = ("Ring", "Tree", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
PROTOCOLS = ("LL", "LL128", "Simple")
LOG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH,TUNING"}
PAIR_SAMPLES = 4
"""Pairs take this many times the samples, so that those that run at once are busy together for most of the time."""
DIRECTIONS = ("send_forward", "send_backward", "send_recv")


def forced_env(combo: str) -> dict[str, str]:
    """Settings that force one pair of algorithm and protocol.

    Args:
        combo: e.g. "Ring+LL128".

    Returns: NCCL_ALGO and NCCL_PROTO.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: the process calls only collectives that have the pair: a plain NCCL_ALGO is for all of them, and Tree, for
        example, has no broadcast.
    Source: NCCL User Guide, environment variables.

    >>> forced_env("Ring+LL128")
    {'NCCL_ALGO': 'Ring', 'NCCL_PROTO': 'LL128'}
    """
    algorithm, _, protocol = combo.partition("+")
    if algorithm not in ALGORITHMS or protocol not in PROTOCOLS:
        raise ValueError(f"combos={combo!r}: expected an algorithm and a protocol, e.g. Ring+LL128")
    return {"NCCL_ALGO": algorithm, "NCCL_PROTO": protocol}


def parse_pairs(text: str) -> list[list[int]]:
    """Pairs of ranks written as in "0-1 2-3".

    Args:
        text: disjoint pairs.

    Returns: a list of two ranks for each.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: nothing.
    Source: the notation of `nvidia-smi topo -m` as labkit keeps it.

    >>> parse_pairs("0-1 2-3")
    [[0, 1], [2, 3]]
    """
    try:
        pairs = [[int(rank) for rank in pair.split("-")] for pair in text.split()]
    except ValueError:
        pairs = []
    ranks = [rank for pair in pairs for rank in pair]
    if not pairs or any(len(pair) != 2 for pair in pairs) or len(set(ranks)) != len(ranks):
        raise ValueError(f"pair_sets={text!r}: expected disjoint pairs of ranks, e.g. '0-1 2-3'")
    return pairs


def plan_cells(
    *, world_size: int, sizes_bytes: Sequence[int], collectives: Sequence[str], factor: int = 4,
    large_bytes: Sequence[int] = (), combos: Sequence[str] = (), channels: Sequence[int] = (),
    channel_bytes: int = 2**28, pair_sets: Sequence[str] = (), pair_bytes: int = 2**26,
    with_directions: bool = False, with_logs: bool = False, num_processes: int = 1, num_warmup: int = 5,
    num_samples: int = 20, timing: str = "eager", timeout_s: float = 60.0,
    env: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Cells in the order they run: each process does all of them once, then those that only log.

    Args:
        world_size: ranks of the sweep.
        sizes_bytes: sizes of every cell.
        collectives: those run as the library chooses; all_reduce alone is forced.
        factor: between sizes; below 4 the other collectives take every second size.
        large_bytes: further sizes for the library's own choice of all_reduce.
        combos: pairs to force, e.g. "Ring+LL".
        channels: numbers of channels to force, with Ring+Simple.
        channel_bytes: the size for that.
        pair_sets: sets of disjoint pairs, e.g. "0-1 2-3", each run alone and then together.
        pair_bytes: the size for pairs and directions.
        with_directions: send between ranks 0 and 1: one way, the other, both.
        with_logs: log the choice for every size, for the library's own and each forced pair; in cells that time
            nothing, or while a graph is replayed, which logs nothing.
        num_processes: fresh processes of each timed cell.
        num_warmup: calls before the first sample.
        num_samples: samples in each process.
        timing: `eager`, `graph`, or `both`.
        timeout_s: deadline of a cell.
        env: settings of all cells.

    Returns: mappings with name, kind, devices, env, forced, sizes ({collective: [bytes]}), num_warmup, num_samples,
        timing, timeout_s, and pairs where there are any. Names are p<process>-<case> and log-<case>.
    Raises: ValueError as `forced_env` and `parse_pairs`.
    Assumes: cases are rotated from process to process, so that none is always first.
    Source: section 4 of the report, its four experiments.

    >>> [cell["name"] for cell in plan_cells(world_size=2, sizes_bytes=[1024], collectives=["all_reduce"],
    ...                                      combos=["Ring+LL"], with_logs=True)]
    ['p0-auto', 'p0-Ring+LL', 'log-auto', 'log-Ring+LL']
    """
    base = {"NCCL_DEBUG": "WARN", **(env or {})}
    common = {"num_warmup": num_warmup, "num_samples": num_samples, "timing": timing, "timeout_s": timeout_s}
    everyone = list(range(world_size))

    def cell(case: str, kind: str = "times", **changes: Any) -> dict[str, Any]:
        return {"name": case, "kind": kind, "devices": everyone, "env": base, "forced": False,
                "sizes": {"all_reduce": list(sizes_bytes)}, **common, **changes}

    single = "eager" if timing == "eager" else "graph"
    coarse = list(sizes_bytes) if factor > 2 else list(sizes_bytes[::2])
    cases = [cell("auto", sizes={
        name: [*sizes_bytes, *large_bytes] if name == "all_reduce" else coarse for name in collectives})]
    cases += [cell(combo, env={**base, **forced_env(combo)}, forced=True, timing=single) for combo in combos]
    for number in channels:
        limits = {f"NCCL_{bound}_{name}": str(number) for bound in ("MIN", "MAX") for name in ("CTAS", "NCHANNELS")}
        cases.append(cell(f"ch{number}", env={**base, **forced_env("Ring+Simple"), **limits, **LOG}, forced=True,
                          sizes={"all_reduce": [channel_bytes]}, timing=single))
    for i, text in enumerate(pair_sets):
        pairs = parse_pairs(text)
        devices = [rank for pair in pairs for rank in pair]
        places = [[2 * k, 2 * k + 1] for k in range(len(pairs))]
        cases.append(cell(f"pairs{i}", "pairs", devices=devices, pairs=places, timing=single,
                          sizes={"all_reduce": [pair_bytes]}, num_samples=PAIR_SAMPLES * num_samples))
    if with_directions:
        cases.append(cell("directions", "pairs", devices=[0, 1], pairs=[[0, 1]], timing=single,
                          sizes={name: [pair_bytes] for name in DIRECTIONS}))
    # Replayed graphs call nothing that could log: there the first process may log what it times.
    log_while_timing = with_logs and single == "graph"
    cells = []
    for process in range(num_processes):
        shift = process % len(cases)
        for case in cases[shift:] + cases[:shift]:
            logs = log_while_timing and process == 0 and case["name"] in combos
            env_of_cell = {**case["env"], **LOG} if logs else case["env"]
            cells.append({**case, "name": f"p{process}-{case['name']}", "env": env_of_cell})
    if with_logs:
        quiet = {"num_warmup": 0, "num_samples": 0, "timing": "eager"}
        cells += [cell(f"log-{case}", env={**base, **LOG, **(forced_env(case) if case != "auto" else {})},
                       forced=case != "auto", **quiet) for case in ("auto", *(() if log_while_timing else combos))]
    return cells
