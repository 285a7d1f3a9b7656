"""FSDP's wrap tree: which collectives one training step makes, in which order, how large, and what a rank keeps.

In: parameters of a transformer as `labkit.calc.tinygpt` lists them, the name of a case, ranks. Out: plain values.

A case is named by what is wrapped ("root", or every "block" and the root), when backward asks for the next block's
parameters ("PRE", "POST", "NONE"), and a switch: "block+PRE+no-limiter". Names that start with "fsdp2 " are of FSDP2.

    python -m labkit calc fsdp collective_counts case="block+PRE"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

from labkit.calc._require import require_int

WRAPS = ("root", "block")
PREFETCHES = ("PRE", "POST", "NONE")
SWITCHES = {"fsdp1": ("no-limiter",), "fsdp2": ("kept", "forward")}
"""no-limiter: any number of gathers in flight; kept: blocks stay whole after forward; forward: gathered one ahead."""
MATMULS_PER_BLOCK = 4
"""QKV, projection and two of the MLP; backward has two for each."""
ALIGNMENT_BYTES = 16
"""FSDP1 starts every parameter of a flat one at such an address."""


def fsdp_case(*, name: str) -> dict[str, Any]:
    """What a case's name says.

    Args:
        name: e.g. "root+PRE", "block+PRE+no-limiter", "fsdp2 block+PRE+kept".

    Returns: {"name", "api": "fsdp1" or "fsdp2", "wrap", "prefetch", "is_limited" (all-gathers in flight are limited; an
        FSDP1 switch that is on by default, which FSDP2 does not have), "keeps_parameters", "prefetches_forward"}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Source: the report's case names, section 13.1; torch.distributed.fsdp.

    >>> fsdp_case(name="block+PRE+no-limiter")["is_limited"], fsdp_case(name="fsdp2 root+PRE")["api"]
    (False, 'fsdp2')
    """
    api = "fsdp2" if name.startswith("fsdp2 ") else "fsdp1"
    wrap, _, rest = name.removeprefix("fsdp2 ").partition("+")
    prefetch, _, switch = rest.partition("+")
    if wrap not in WRAPS or prefetch not in PREFETCHES or switch not in ("", *SWITCHES[api]):
        raise ValueError(f"name={name!r}: expected [fsdp2 ]root|block+PRE|POST|NONE, and for {api} at most one of "
                         f"{', '.join('+' + known for known in SWITCHES[api])}")
    return {"name": name, "api": api, "wrap": wrap, "prefetch": prefetch,
            "is_limited": api == "fsdp1" and switch != "no-limiter",
            "keeps_parameters": switch == "kept", "prefetches_forward": switch == "forward"}


def wrap_units(*, parameters: Sequence[Sequence[Any]], wrap: str) -> dict[str, list[list[Any]]]:
    """Units of a wrap tree and the parameters each of them gathers.

    A parameter belongs to the innermost wrapped module that holds it; the root takes what is left.

    Args:
        parameters: [name, shape] in registration order; blocks are named "blocks.<i>.".
        wrap: "root", or "block": every block and the root.

    Returns: {"root": [[name, shape], ...], "blocks.0": ..., ...}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Source: Zhao et al., "PyTorch FSDP", VLDB 2023, section 3.2 (FlatParameter construction from the wrap tree).

    >>> wrap_units(parameters=[["tok.weight", [9, 2]], ["blocks.0.w", [2]]], wrap="block")["blocks.0"]
    [['blocks.0.w', [2]]]
    """
    if wrap not in WRAPS:
        raise ValueError(f"wrap={wrap!r}: expected {' or '.join(WRAPS)}")
    units: dict[str, list[list[Any]]] = {"root": []}
    for name, shape in parameters:
        is_in_block = wrap == "block" and name.startswith("blocks.")
        unit = ".".join(name.split(".")[:2]) if is_in_block else "root"
        units.setdefault(unit, []).append([name, list(shape)])
    return units


def message_elements(*, parameters: Sequence[Sequence[Any]], num_ranks: int, api: str, element_bytes: int = 4) -> int:
    """Elements of one unit's all-gather (what comes out) and reduce-scatter (what goes in), padding included.

    FSDP2 shards each parameter along its first dimension and pads that to a multiple of the ranks. FSDP1 joins the
    parameters into one flat one, each starting at a 16-byte boundary, and pads the end.

    Args:
        parameters: [name, shape] of one unit.
        num_ranks: that shard, >= 1.
        api: "fsdp1" or "fsdp2".
        element_bytes: of an element in forward and backward, for FSDP1's boundaries.

    Returns: elements, a multiple of `num_ranks`.
    Raises: ValueError naming the argument, the value got, what was expected.
    Source: torch 2.13, `_fsdp_collectives.py` and `_flat_param.py`; compared with every call of a run.

    >>> message_elements(parameters=[["a", [3, 2]], ["b", [5]]], num_ranks=2, api="fsdp2")
    14
    """
    n = require_int("num_ranks", num_ranks, least=1)
    return sum(size for _, size, _ in _pieces(parameters, n, api, element_bytes))


def shard_elements(
    *, parameters: Sequence[Sequence[Any]], num_ranks: int, api: str, element_bytes: int = 4
) -> list[int]:
    """Elements of one unit that each rank keeps, padding not counted.

    Args:
        parameters: [name, shape] of one unit.
        num_ranks: that shard, >= 1.
        api: "fsdp1" or "fsdp2".
        element_bytes: as `message_elements`.

    Returns: by rank.
    Raises: ValueError naming the argument, the value got, what was expected.
    Source: as `message_elements`.

    >>> shard_elements(parameters=[["a", [3, 2]], ["b", [5]]], num_ranks=2, api="fsdp2")
    [7, 4]
    """
    n = require_int("num_ranks", num_ranks, least=1)
    kept = [0] * n
    if api == "fsdp2":
        for _, (rows, *rest) in parameters:
            share = -(-rows // n)
            for rank in range(n):
                kept[rank] += max(0, min(share, rows - rank * share)) * prod(rest)
        return kept
    chunk, start = message_elements(parameters=parameters, num_ranks=n, api=api, element_bytes=element_bytes) // n, 0
    for is_padding, size, _ in _pieces(parameters, n, api, element_bytes):
        for rank in range(n):
            inside = min(start + size, (rank + 1) * chunk) - max(start, rank * chunk)
            kept[rank] += 0 if is_padding else max(0, inside)
        start += size
    return kept


def _pieces(
    parameters: Sequence[Sequence[Any]], num_ranks: int, api: str, element_bytes: int
) -> list[tuple[bool, int, str]]:
    """(is padding, elements, name) of a unit's message."""
    if api not in SWITCHES:
        raise ValueError(f"api={api!r}: expected fsdp1 or fsdp2")
    if api == "fsdp2":
        return [(False, -(-shape[0] // num_ranks) * num_ranks * prod(shape[1:]), name) for name, shape in parameters]
    aligned, total = ALIGNMENT_BYTES // element_bytes, 0
    pieces: list[tuple[bool, int, str]] = []
    for name, shape in parameters:
        padding = -total % aligned
        pieces += [(True, padding, "")] * bool(padding) + [(False, prod(shape), name)]
        total += padding + prod(shape)
    return [*pieces, (True, -total % num_ranks, "")]


def step_calls(*, case: str, num_layers: int) -> list[list[Any]]:
    """Every collective of one training step, in the order in which it is asked for.

    Forward gathers the root, then each block before its turn. Backward starts with the root's parameters at hand; each
    block is gathered again, one block early (PRE: before the block above computes its gradients; POST: after), or when
    it is needed (NONE). A unit's gradients are scattered as soon as all of them are there, the root's last.

    Args:
        case: name, as `fsdp_case`.
        num_layers: blocks, >= 1.

    Returns: [["forward" or "backward", "all_gather" or "reduce_scatter", unit, matrix products before it], ...]; the
        products tell PRE from POST, whose order is the same.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: one micro-batch; parameters stay as they are between forward and backward of the root unit.
    Source: torch 2.13, `_fully_shard` and `_runtime_utils.py`; compared call by call in every run.

    >>> [call[1:3] for call in step_calls(case="block+NONE", num_layers=1)]
    [['all_gather', 'root'], ['all_gather', 'blocks.0'], ['all_gather', 'blocks.0'], ['reduce_scatter', 'blocks.0'], \
['reduce_scatter', 'root']]
    """
    plan = fsdp_case(name=case)
    layers = require_int("num_layers", num_layers, least=1)
    before_head = MATMULS_PER_BLOCK * layers + 1
    after_head = before_head + 2
    end = after_head + 2 * MATMULS_PER_BLOCK * layers
    calls: list[list[Any]] = [["forward", "all_gather", "root", 0]]
    if plan["wrap"] == "root":
        return [*calls, ["backward", "reduce_scatter", "root", end]]
    for i in range(layers):
        early = 1 if plan["prefetches_forward"] and i else 0
        calls.append(["forward", "all_gather", f"blocks.{i}", MATMULS_PER_BLOCK * (i - early)])
    for i in reversed(range(layers)):
        start = after_head + 2 * MATMULS_PER_BLOCK * (layers - 1 - i)
        done = start + 2 * MATMULS_PER_BLOCK
        if not plan["keeps_parameters"]:
            is_first, gathers = i == layers - 1, plan["prefetch"]
            if is_first:
                calls.append(["backward", "all_gather", f"blocks.{i}", before_head if gathers == "PRE" else after_head])
            if i and gathers != "NONE":
                calls.append(["backward", "all_gather", f"blocks.{i - 1}", start if gathers == "PRE" else done])
        calls.append(["backward", "reduce_scatter", f"blocks.{i}", done])
        if i and plan["prefetch"] == "NONE" and not plan["keeps_parameters"]:
            calls.append(["backward", "all_gather", f"blocks.{i - 1}", done])
    return [*calls, ["backward", "reduce_scatter", "root", end]]


def collective_counts(*, case: str, num_layers: int = 12) -> dict[str, int]:
    """All-gathers and reduce-scatters of one training step.

    Args:
        case: name, as `fsdp_case`.
        num_layers: blocks, >= 1.

    Returns: {"ag", "rs", "forward_ag", "backward_ag"}; with blocks wrapped 2L + 1 and L + 1, with the root alone 1
        and 1.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `step_calls`.
    Source: report section 13.3; PyTorch FSDP paper, section 3.2.

    >>> collective_counts(case="block+PRE"), collective_counts(case="root+PRE")["ag"]
    ({'ag': 25, 'rs': 13, 'forward_ag': 13, 'backward_ag': 12}, 1)
    """
    names = [(phase, op) for phase, op, *_ in step_calls(case=case, num_layers=num_layers)]
    forward, backward = names.count(("forward", "all_gather")), names.count(("backward", "all_gather"))
    return {"ag": forward + backward, "rs": names.count(("backward", "reduce_scatter")), "forward_ag": forward,
            "backward_ag": backward}


def units_alive(*, case: str, num_layers: int = 12) -> dict[str, int]:
    """How many units hold whole parameters at the worst moment of a step.

    Args:
        case: name, as `fsdp_case`.
        num_layers: blocks, >= 1.

    Returns: {"root": 1, "blocks": number of blocks}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: a block's parameters are freed when its computation is over; the host runs in step with the device.
    Source: FSDP notes in the torch documentation, "FSDP Prefetch Nuances".

    >>> units_alive(case="block+PRE"), units_alive(case="fsdp2 block+PRE+kept")["blocks"]
    ({'root': 1, 'blocks': 2}, 12)
    """
    plan = fsdp_case(name=case)
    layers = require_int("num_layers", num_layers, least=1)
    if plan["wrap"] == "root":
        return {"root": 1, "blocks": 0}
    ahead = 2 if plan["prefetch"] == "PRE" or plan["prefetches_forward"] else 1
    return {"root": 1, "blocks": layers if plan["keeps_parameters"] else min(ahead, layers)}


def unit_bytes(
    *, parameters: Sequence[Sequence[Any]], case: str, num_ranks: int, element_bytes: int = 4
) -> dict[str, int]:
    """Bytes of each unit's message: what a gather brings together and a scatter sums.

    Args:
        parameters: [name, shape] of the model, in registration order.
        case: name, as `fsdp_case`.
        num_ranks: that shard, >= 1.
        element_bytes: of a gathered parameter and of a gradient on the wire.

    Returns: unit -> bytes, padding included.
    Raises: ValueError naming the argument, the value got, what was expected.
    Source: as `message_elements`.

    >>> unit_bytes(parameters=[["tok.weight", [9, 2]], ["blocks.0.w", [2]]], case="fsdp2 block+PRE", num_ranks=2)
    {'root': 80, 'blocks.0': 8}
    """
    plan = fsdp_case(name=case)
    units: Mapping[str, list[list[Any]]] = wrap_units(parameters=parameters, wrap=plan["wrap"])
    return {name: element_bytes * message_elements(
        parameters=unit, num_ranks=num_ranks, api=plan["api"], element_bytes=element_bytes)
        for name, unit in units.items()}


def in_order(*, cases: Iterable[str]) -> list[str]:
    """Cases as tables and figures show them: FSDP1 before FSDP2, root before block, by prefetch, the baseline last.

    Args:
        cases: names, e.g. the keys of a record, which JSON keeps in alphabetical order.

    Returns: the same names.
    Raises: ValueError for a name that is neither a case nor "alone".
    Source: the order of the report's table in section 13.2.

    >>> in_order(cases=["alone", "fsdp2 block+PRE", "block+NONE", "root+PRE", "block+PRE"])
    ['root+PRE', 'block+PRE', 'block+NONE', 'fsdp2 block+PRE', 'alone']
    """
    def place(case: str) -> tuple[int, int, int, str]:
        if case == "alone":
            return (2, 0, 0, case)
        plan = fsdp_case(name=case)
        return (int(plan["api"] == "fsdp2"), WRAPS.index(plan["wrap"]), PREFETCHES.index(plan["prefetch"]), case)

    return sorted(cases, key=place)
