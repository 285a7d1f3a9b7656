"""DistributedDataParallel: predict the reducer's buckets exactly, then collectives and bytes, before anything runs.

In: parameters as [name, shape] or [name, shape, dtype] in registration order (a tied parameter appears once).
Out: plain lists and dicts of bytes and counts. The rule was read in torch 2.13 and holds from 2.11:

1. The reducer walks the parameters in an order, keeps one open bucket per dtype, adds each parameter whole, and closes
   the bucket as soon as its size is at or above the limit. A limit is therefore soft: no parameter is ever cut.
2. The first bucket of a dtype has a smaller limit, 1 MiB, but only if no cap was given (the default cap is 25 MiB).
3. The first backward pass runs before the true order is known. Unless unused parameters are looked for, everything of
   one dtype then goes into one bucket, whatever the cap says.
4. At the next forward pass the buckets are rebuilt in the order in which the gradients became ready.

    python -m labkit calc ddp tinygpt_bucket_counts caps_mib=[1,4,25,100]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from labkit.calc._require import require_choice, require_int, require_number
from labkit.calc.collectives import ring_bytes_per_rank
from labkit.calc.tinygpt import tinygpt_parameters

MIB = 2**20
DEFAULT_CAP_BYTES = 25 * MIB
DEFAULT_FIRST_BUCKET_BYTES = MIB
NO_LIMIT = sys.maxsize

BYTES_PER_ELEMENT = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "complex64": 8, "complex128": 16,
}


def num_parameters(*, parameters: Sequence[Sequence[Any]]) -> int:
    """Number of elements of all parameters.

    Args:
        parameters: [name, shape] or [name, shape, dtype], each name once.

    Returns: elements.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: a tied parameter is listed once.
    Source: product of each shape, added up.

    >>> num_parameters(parameters=[["w", [2, 3]], ["b", [2]]])
    8
    """
    return sum(entry["num_elements"] for entry in _entries(parameters))


def gradient_bytes(*, parameters: Sequence[Sequence[Any]]) -> int:
    """Bytes that one synchronised backward pass reduces: every gradient once.

    Args:
        parameters: [name, shape] or [name, shape, dtype], each name once.

    Returns: bytes.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: gradients have the parameters' dtype (no communication hook, no mixed-precision reduce).
    Source: torch reducer: a bucket's buffer has the parameters' scalar type.

    >>> gradient_bytes(parameters=[["w", [2, 3]], ["b", [2], "bfloat16"]])
    28
    """
    return sum(entry["bytes"] for entry in _entries(parameters))


def initial_buckets(
    *, parameters: Sequence[Sequence[Any]], bucket_cap_mib: float | None = None, find_unused_parameters: bool = False,
    static_graph: bool = False, sparse: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Buckets of the first backward pass, before the rebuild, in the order of the reducer's log.

    Without a search for unused parameters (the usual case) the cap is ignored: one bucket per dtype. With it, the cap
    applies to the registration order and these buckets stay for good.

    Args:
        parameters: [name, shape] or [name, shape, dtype] in registration order.
        bucket_cap_mib: DDP's `bucket_cap_mb`, which is in MiB; None is the default, 25 with a first bucket of 1.
        find_unused_parameters: as given to DDP.
        static_graph: as given to DDP.
        sparse: names of parameters with sparse gradients; each is a bucket of its own.

    Returns: [{"names", "num_elements", "bytes", "limit_bytes"}, ...]; limit_bytes None means no limit.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: one device; `bucket_cap_mb_list` not used.
    Source: torch/nn/parallel/distributed.py (2.13), `compute_bucket_size_limits` and `_ddp_init_helper`.

    >>> buckets = initial_buckets(parameters=tinygpt_parameters(), bucket_cap_mib=25)
    >>> len(buckets), round(buckets[0]["bytes"] / 2**20, 1)
    (1, 419.4)
    """
    entries = _entries(parameters, sparse)
    if static_graph or not find_unused_parameters:
        limits = [NO_LIMIT]
    else:
        limits = _limits(bucket_cap_mib)
    buckets = _assign(entries, limits)
    place = {entry["name"]: i for i, entry in enumerate(entries)}
    # torch sorts by the first member's index, then reverses to approximate the order of the backward pass.
    buckets.sort(key=lambda bucket: min(place[name] for name in bucket["names"]))
    return buckets[::-1]


def rebuilt_buckets(
    *, parameters: Sequence[Sequence[Any]], bucket_cap_mib: float | None = None,
    ready_order: Sequence[str] | None = None, sparse: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Buckets of every synchronised backward pass after the first, in the order in which they fill.

    Args:
        parameters: [name, shape] or [name, shape, dtype] in registration order.
        bucket_cap_mib: DDP's `bucket_cap_mb`, which is in MiB; None is the default, 25 with a first bucket of 1.
        ready_order: names in the order in which gradients become ready on rank 0; None is reverse registration order,
            right for a model that uses its parameters in the order in which it registers them.
        sparse: names of parameters with sparse gradients; each is a bucket of its own.

    Returns: [{"names", "num_elements", "bytes", "limit_bytes"}, ...].
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: one device, every parameter gets a gradient, no search for unused parameters (that switches the rebuild
        off), DDP_SET_LAST_BUCKET_CAP unset. With several dtypes torch leaves the order of unfilled last buckets open.
    Source: torch/csrc/distributed/c10d/reducer.cpp, `rebuild_buckets` and `compute_bucket_assignment_by_size`.

    >>> [b["bytes"] // 2**20 for b in rebuilt_buckets(
    ...     parameters=[["a", [2**18]], ["b", [2**18, 30]], ["c", [2**18]]], bucket_cap_mib=25)]
    [31, 1]
    """
    entries = _entries(parameters, sparse)
    by_name = {entry["name"]: entry for entry in entries}
    order = list(ready_order) if ready_order is not None else list(by_name)[::-1]
    if sorted(order) != sorted(by_name):
        odd = sorted(set(order) ^ set(by_name)) or sorted({name for name in order if order.count(name) > 1})
        raise ValueError(f"ready_order={odd[:3]!r}...: expected every parameter name exactly once")
    return _assign([by_name[name] for name in order], _limits(bucket_cap_mib))


def bucket_sizes_bytes(
    *, parameters: Sequence[Sequence[Any]], bucket_cap_mib: float | None = None, stage: str = "rebuilt",
    ready_order: Sequence[str] | None = None,
) -> list[int]:
    """Sizes of the buckets as `DDP._get_ddp_logging_data()` prints them.

    Args:
        parameters: [name, shape] or [name, shape, dtype] in registration order.
        bucket_cap_mib: DDP's `bucket_cap_mb`, which is in MiB; None is the default, 25 with a first bucket of 1.
        stage: "initial" (log key `bucket_sizes`, first backward) or "rebuilt" (`rebuilt_bucket_sizes`, all later ones).
        ready_order: see `rebuilt_buckets`; not allowed with stage "initial".

    Returns: bytes of each bucket, in the log's order.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `initial_buckets` and `rebuilt_buckets`, without unused parameters.
    Source: as there.

    >>> bucket_sizes_bytes(parameters=[["a", [1024]], ["b", [1024]]], bucket_cap_mib=1)
    [8192]
    """
    if require_choice("stage", stage, ("initial", "rebuilt")) == "initial":
        if ready_order is not None:
            raise ValueError("ready_order: expected None with stage='initial', which does not know the ready order")
        return [b["bytes"] for b in initial_buckets(parameters=parameters, bucket_cap_mib=bucket_cap_mib)]
    buckets = rebuilt_buckets(parameters=parameters, bucket_cap_mib=bucket_cap_mib, ready_order=ready_order)
    return [b["bytes"] for b in buckets]


def tinygpt_bucket_counts(
    *, caps_mib: Sequence[float] = (1, 4, 25, 100), tied: bool = True, linear_bias: bool = False,
    layernorm_bias: bool = True, num_positions: int = 512,
) -> dict[str, int]:
    """Number of rebuilt buckets of the report's TinyGPT for each cap.

    Args:
        caps_mib: caps to try, MiB, each > 0.
        tied: head shares the token table.
        linear_bias: Linear layers have a bias.
        layernorm_bias: LayerNorms have a bias.
        num_positions: rows of the position table.

    Returns: {"1 MiB": count, ...}, keyed as the claims are.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: float32 gradients, reverse registration order.
    Source: `rebuilt_buckets`; report section 3.4.

    >>> tinygpt_bucket_counts()
    {'1 MiB': 50, '4 MiB': 37, '25 MiB': 13, '100 MiB': 4}
    """
    parameters = tinygpt_parameters(
        tied=tied, linear_bias=linear_bias, layernorm_bias=layernorm_bias, num_positions=num_positions
    )
    return {
        f"{cap:g} MiB": len(bucket_sizes_bytes(parameters=parameters, bucket_cap_mib=cap))
        for cap in caps_mib
    }


def tinygpt_largest_bucket_mib(
    *, caps_mib: Sequence[float] = (1, 4, 25, 100), tied: bool = True, linear_bias: bool = False,
    layernorm_bias: bool = True, num_positions: int = 512,
) -> dict[str, float]:
    """Largest rebuilt bucket of the report's TinyGPT for each cap, in MiB.

    Args:
        caps_mib: caps to try, MiB, each > 0.
        tied: head shares the token table.
        linear_bias: Linear layers have a bias.
        layernorm_bias: LayerNorms have a bias.
        num_positions: rows of the position table.

    Returns: {"1 MiB": MiB, ...}, exact.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: float32 gradients, reverse registration order.
    Source: `rebuilt_buckets`; report section 3.4.

    >>> tinygpt_largest_bucket_mib(caps_mib=[1, 100])
    {'1 MiB': 93.75, '100 MiB': 108.046875}
    """
    parameters = tinygpt_parameters(
        tied=tied, linear_bias=linear_bias, layernorm_bias=layernorm_bias, num_positions=num_positions
    )
    return {
        f"{cap:g} MiB": max(bucket_sizes_bytes(parameters=parameters, bucket_cap_mib=cap)) / MIB
        for cap in caps_mib
    }


def collectives_per_step(*, num_buckets: int, num_micro_steps: int = 1, no_sync_scope: str = "none") -> int:
    """AllReduce calls of one optimizer step, after the rebuild.

    DDP arms the reducer in forward, so `no_sync` counts only where it covers the forward pass. It is meant to cover
    forward and backward of every micro-step but the last.

    Args:
        num_buckets: rebuilt buckets, >= 1.
        num_micro_steps: backward passes per optimizer step, >= 1.
        no_sync_scope: what `no_sync` covers in all micro-steps but the last: "none", "both", "forward" or "backward".

    Returns: calls per step.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: no search for unused parameters (it adds one small AllReduce per synchronised backward), no hook.
    Source: torch/nn/parallel/distributed.py, `no_sync` and `_pre_forward`; report sections 3.5 and 3.6.

    >>> [collectives_per_step(num_buckets=13, num_micro_steps=8, no_sync_scope=s) for s in ("both", "none", "backward")]
    [13, 104, 104]
    """
    require_int("num_buckets", num_buckets, least=1)
    require_int("num_micro_steps", num_micro_steps, least=1)
    require_choice("no_sync_scope", no_sync_scope, ("none", "both", "forward", "backward"))
    num_synchronised = 1 if no_sync_scope in ("both", "forward") else num_micro_steps
    return num_synchronised * num_buckets


def wire_bytes_per_rank(*, sizes_bytes: Sequence[int], world_size: int, num_synchronised: int = 1) -> float:
    """Bytes that each rank sends in one optimizer step if every bucket is reduced by a ring.

    Args:
        sizes_bytes: bucket sizes, each >= 0.
        world_size: ranks, >= 1.
        num_synchronised: backward passes that are reduced per optimizer step, >= 0.

    Returns: bytes sent (as many are received).
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: ring all-reduce of evenly divisible buckets; other algorithms move other amounts.
    Source: 2 (n - 1) / n of the message per rank, Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009.

    >>> wire_bytes_per_rank(sizes_bytes=[800, 800], world_size=8)
    2800.0
    """
    require_int("world_size", world_size, least=1)
    require_int("num_synchronised", num_synchronised, least=0)
    for size in sizes_bytes:
        require_int("sizes_bytes", size, least=0)
    return num_synchronised * ring_bytes_per_rank("all_reduce", size_bytes=sum(sizes_bytes), world_size=world_size)


def _assign(entries: Sequence[dict[str, Any]], limits: Sequence[int]) -> list[dict[str, Any]]:
    """The reducer's rule on parameters in a given order; `limits`: the first bucket of a dtype, then all later ones."""
    done: list[dict[str, Any]] = []
    open_buckets: dict[str, dict[str, Any]] = {}
    num_closed: dict[str, int] = {}
    for entry in entries:
        if entry["sparse"]:
            done.append(_bucket([entry], None))
            continue
        dtype = entry["dtype"]
        limit = limits[min(num_closed.get(dtype, 0), len(limits) - 1)]
        bucket = open_buckets.setdefault(dtype, {"members": [], "limit": limit})
        bucket["members"].append(entry)
        if sum(member["bytes"] for member in bucket["members"]) >= limit:
            done.append(_bucket(bucket["members"], limit))
            del open_buckets[dtype]
            num_closed[dtype] = num_closed.get(dtype, 0) + 1
    return done + [_bucket(bucket["members"], bucket["limit"]) for bucket in open_buckets.values()]


def _bucket(members: Sequence[dict[str, Any]], limit: int | None) -> dict[str, Any]:
    return {
        "names": [member["name"] for member in members],
        "num_elements": sum(member["num_elements"] for member in members),
        "bytes": sum(member["bytes"] for member in members),
        "limit_bytes": None if limit == NO_LIMIT else limit,
    }


def _limits(bucket_cap_mib: float | None) -> list[int]:
    """[limit of the first bucket, limit of the others] in bytes."""
    if bucket_cap_mib is None:
        return [DEFAULT_FIRST_BUCKET_BYTES, DEFAULT_CAP_BYTES]
    return [int(require_number("bucket_cap_mib", bucket_cap_mib, above=0) * MIB)]


def _entries(parameters: Sequence[Sequence[Any]], sparse: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Checked parameters with their element counts and bytes."""
    entries = []
    for parameter in parameters:
        if isinstance(parameter, str) or len(parameter) not in (2, 3) or isinstance(parameter[1], str):
            raise ValueError(f"parameters: got {parameter!r}, expected [name, shape] or [name, shape, dtype]")
        name, shape = parameter[0], parameter[1]
        dtype = parameter[2] if len(parameter) == 3 else "float32"
        if dtype not in BYTES_PER_ELEMENT:
            raise ValueError(f"parameters: {name} has dtype {dtype!r}, expected one of {', '.join(BYTES_PER_ELEMENT)}")
        num_elements = 1
        for length in shape:
            require_int(f"parameters: shape of {name}", length, least=0)
            num_elements *= length
        entries.append({
            "name": name, "dtype": dtype, "num_elements": num_elements, "sparse": name in sparse,
            "bytes": num_elements * BYTES_PER_ELEMENT[dtype],
        })
    names = [entry["name"] for entry in entries]
    if not names:
        raise ValueError("parameters=[]: expected at least one")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"parameters: {twice!r} appears twice, expected each once (a tied parameter is reduced once)")
    return entries
