"""What every case of the FSDP lab will do: calls, bytes, memory of a rank, and which communication nothing can hide.

In: sizes of the model, cases, ranks, bytes of an element on the wire. Out: plain values by case.

    python -m labkit calc fsdp_prediction fsdp_prediction cases='["block+PRE"]' num_ranks=8
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit.calc._require import require_int, require_number
from labkit.calc.collectives import ring_bytes_per_rank
from labkit.calc.fsdp import (
    collective_counts,
    fsdp_case,
    shard_elements,
    step_calls,
    unit_bytes,
    units_alive,
    wrap_units,
)
from labkit.calc.tinygpt import tinygpt_parameters

STATE_BYTES = {"parameters": 4, "gradients": 4, "optimizer": 8}
"""Of one element that a rank keeps: float32 all, and AdamW's two moments."""


def exposed_time_s(
    *, calls: Sequence[Sequence[Any]], comm_s: Mapping[str, float], block_s: float, head_s: float, num_layers: int,
) -> dict[str, float]:
    """Communication of one step and the part of it that no computation covers, on two queues.

    Computation runs in order, and waits for the parameters of the unit it needs. Communication runs in order, one call
    at a time, and starts no earlier than it is asked for. So the order of `calls` decides alone what is hidden.

    Args:
        calls: as `labkit.calc.fsdp.step_calls`.
        comm_s: unit -> time of a gather or of a scatter of it, s.
        block_s: forward of one block, s; backward takes twice that.
        head_s: forward of the head, s; backward takes twice that.
        num_layers: blocks, >= 1.

    Returns: {"comm_s", "exposed_s", "step_s"}; seconds.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: a host in step with the device (it asks for a collective when computation reaches that place, not before);
        gather and scatter of a unit take equally long; no optimizer.
    Source: two queues with one dependency each, as in the FSDP notes of the torch documentation; checked in tests
        against a simulation in small steps.

    >>> calls = step_calls(case="block+NONE", num_layers=1)
    >>> exposed_time_s(calls=calls, comm_s={"root": 2.0, "blocks.0": 1.0}, block_s=1.0, head_s=1.0, num_layers=1)
    {'comm_s': 7.0, 'exposed_s': 7.0, 'step_s': 13.0}
    """
    layers = require_int("num_layers", num_layers, least=1)
    block, head = require_number("block_s", block_s, least=0), require_number("head_s", head_s, least=0)
    # Computation as pieces: (matrix products before it, units it needs, duration).
    pieces = [(4 * i, f"blocks.{i}", block) for i in range(layers)] + [(4 * layers, "root", head)]
    pieces += [(4 * layers + 1, "root", 2 * head)]
    pieces += [(4 * layers + 3 + 8 * (layers - 1 - i), f"blocks.{i}", 2 * block) for i in reversed(range(layers))]
    waiting = list(calls)
    now = busy_until = overlap = 0.0
    gathered: dict[str, float] = {}
    running: list[tuple[float, float]] = []

    def ask(upto: int) -> None:
        """Put every call that is asked for by now on the communication queue."""
        nonlocal busy_until
        while waiting and waiting[0][3] <= upto:
            _, op, unit, _ = waiting.pop(0)
            start = max(now, busy_until)
            busy_until = start + comm_s[unit]
            running.append((start, busy_until))
            if op == "all_gather":
                gathered[unit] = busy_until

    computed: list[tuple[float, float]] = []
    for before, unit, duration in pieces:
        ask(before)
        now = max(now, gathered["root"], gathered.get(unit, 0.0))
        computed.append((now, now + duration))
        now += duration
    ask(10**9)
    for start, end in running:
        overlap += sum(max(0.0, min(end, stop) - max(start, begin)) for begin, stop in computed)
    total = sum(end - start for start, end in running)
    return {"comm_s": total, "exposed_s": total - overlap, "step_s": max(now, busy_until)}


def fsdp_prediction(
    *, cases: Sequence[str], num_ranks: int, element_bytes: int = 4, num_layers: int = 12, hidden: int = 768,
    vocab_size: int = 32000, num_positions: int = 256,
) -> dict[str, Any]:
    """Calls, bytes and memory of every case.

    Args:
        cases: names, as `labkit.calc.fsdp.fsdp_case`.
        num_ranks: that shard, >= 1.
        element_bytes: of gathered parameters and of gradients on the wire: 2 or 4.
        num_layers: as `labkit.calc.tinygpt.tinygpt_parameters`, like the three arguments after it.
        hidden: width.
        vocab_size: rows of the token table.
        num_positions: rows of the position table.

    Returns: num_parameters; units (by wrap); block_decomposition; by case: calls ([phase, collective, bytes, matrix
        products before it]), collectives ({"ag", "rs"}), gather_bytes, scatter_bytes (sums of messages),
        wire_bytes_per_rank (sent by a rank), loopback_floor_bytes (the same over gloo, which sends a reduce-scatter as
        an all-reduce), state_bytes ({"parameters", "gradients", "optimizer"} by rank),
        gathered_bytes (whole parameters alive at once), memory_floor_bytes (that and the largest rank's state without
        gradients: what every step has to hold).
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: float32 shards, AdamW, tied head, ring collectives.
    Source: `labkit.calc.fsdp`; report sections 13.1 to 13.3.

    >>> found = fsdp_prediction(cases=["root+PRE", "block+PRE"], num_ranks=8, element_bytes=2)
    >>> found["collectives"]["block+PRE"], found["units"]
    ({'ag': 25, 'rs': 13}, {'root': 1, 'block': 13})
    """
    if element_bytes not in (2, 4):
        raise ValueError(f"element_bytes={element_bytes!r}: expected 2 or 4")
    parameters = tinygpt_parameters(
        num_layers=num_layers, hidden=hidden, vocab_size=vocab_size, num_positions=num_positions)
    found: dict[str, Any] = {name: {} for name in (
        "calls", "collectives", "gather_bytes", "scatter_bytes", "wire_bytes_per_rank", "loopback_floor_bytes",
        "state_bytes", "gathered_bytes", "memory_floor_bytes")}
    for case in cases:
        plan = fsdp_case(name=case)
        sizes = unit_bytes(parameters=parameters, case=case, num_ranks=num_ranks, element_bytes=element_bytes)
        calls = [[phase, op, sizes[unit], before]
                 for phase, op, unit, before in step_calls(case=case, num_layers=num_layers)]
        counts = collective_counts(case=case, num_layers=num_layers)
        sums = {op: sum(size for _, name, size, _ in calls if name == op) for op in ("all_gather", "reduce_scatter")}
        shares = [shard_elements(parameters=unit, num_ranks=num_ranks, api=plan["api"], element_bytes=element_bytes)
                  for unit in wrap_units(parameters=parameters, wrap=plan["wrap"]).values()]
        elements = [sum(of_rank) for of_rank in zip(*shares)]
        alive = units_alive(case=case, num_layers=num_layers)
        found["calls"][case] = calls
        found["collectives"][case] = {"ag": counts["ag"], "rs": counts["rs"]}
        found["gather_bytes"][case], found["scatter_bytes"][case] = sums["all_gather"], sums["reduce_scatter"]
        ring = {op: ring_bytes_per_rank(op, size_bytes=size, world_size=num_ranks) if num_ranks > 1 else 0
                for op, size in sums.items()}
        found["wire_bytes_per_rank"][case] = sum(ring.values())
        found["loopback_floor_bytes"][case] = ring["all_gather"] + 2 * ring["reduce_scatter"]
        found["state_bytes"][case] = {
            kind: [size * count for count in elements] for kind, size in STATE_BYTES.items()}
        found["gathered_bytes"][case] = sizes["root"] + alive["blocks"] * sizes.get("blocks.0", 0)
        found["memory_floor_bytes"][case] = found["gathered_bytes"][case] + max(elements) * (
            STATE_BYTES["parameters"] + STATE_BYTES["optimizer"])
    block = collective_counts(case="block+PRE", num_layers=num_layers)
    return {
        "num_parameters": sum(row[1][0] * (row[1][1] if len(row[1]) > 1 else 1) for row in parameters),
        "units": {wrap: len(wrap_units(parameters=parameters, wrap=wrap)) for wrap in ("root", "block")},
        "block_decomposition": {name: block[name] for name in ("forward_ag", "backward_ag", "rs")},
        **found,
    }


def exposed_by_case(
    *, cases: Sequence[str], parameters: Sequence[Sequence[Any]], num_ranks: int, element_bytes: int,
    busbw_bytes_per_s: float, block_s: float, head_s: float, num_layers: int,
) -> dict[str, dict[str, float]]:
    """`exposed_time_s` of every case on a known link, for a device that computes at its measured ceiling.

    Args:
        cases: names, as `labkit.calc.fsdp.fsdp_case`.
        parameters: [name, shape] of the model.
        num_ranks: that shard, >= 2.
        element_bytes: on the wire.
        busbw_bytes_per_s: bus bandwidth of a large collective, > 0.
        block_s: forward of one block, s.
        head_s: forward of the head, s.
        num_layers: blocks, >= 1.

    Returns: {"comm_floor_ms", "exposed_floor_ms", "step_floor_ms"}: case -> ms.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `exposed_time_s`; no latency, so small messages cost only their bytes.
    Source: bus bandwidth as nccl-tests defines it: time = (n - 1) / n * bytes / busbw.

    >>> rows = [["tok.weight", [8, 1]], ["blocks.0.w", [4]]]
    >>> exposed_by_case(cases=["root+PRE"], parameters=rows, num_ranks=2, element_bytes=2, busbw_bytes_per_s=12.0,
    ...                 block_s=0.0, head_s=0.0, num_layers=1)["comm_floor_ms"]
    {'root+PRE': 2000.0}
    """
    rate = require_number("busbw_bytes_per_s", busbw_bytes_per_s, above=0)
    n = require_int("num_ranks", num_ranks, least=2)
    found: dict[str, dict[str, float]] = {"comm_floor_ms": {}, "exposed_floor_ms": {}, "step_floor_ms": {}}
    for case in cases:
        sizes = unit_bytes(parameters=parameters, case=case, num_ranks=n, element_bytes=element_bytes)
        times = exposed_time_s(
            calls=step_calls(case=case, num_layers=num_layers), num_layers=num_layers, block_s=block_s, head_s=head_s,
            comm_s={unit: (n - 1) / n * size / rate for unit, size in sizes.items()})
        for name, part in (("comm_floor_ms", "comm_s"), ("exposed_floor_ms", "exposed_s"), ("step_floor_ms", "step_s")):
            found[name][case] = times[part] * 1e3
    return found
