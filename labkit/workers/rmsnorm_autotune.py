"""Tuning at run time through the shape cache: what is tried, how it is timed, and the key it is kept under."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import triton

from labkit.workers import rmsnorm_cache as cache
from labkit.workers import rmsnorm_timing as timing
from labkit.workers.json_lines import JsonLines
from labkit.workers.rmsnorm_fast import VECTOR_BYTES, Config, choose, fits, num_multiprocessors, rows_aligned
from labkit.workers.rmsnorm_grad import GradConfig, default_grad, fits_grad

ROUNDS = 7


def cache_key(x: torch.Tensor, direction: str) -> cache.Key:
    """The shape cache's key for a (rows, hidden) tensor; direction is `forward` or `backward`."""
    gpu = torch.cuda.get_device_name(x.device) if x.is_cuda else "interpreter"
    return cache.Key(gpu=gpu, dtype=str(x.dtype).removeprefix("torch."), hidden=x.shape[1],
                     rows_bucket=cache.rows_bucket(x.shape[0]), direction=direction, source=cache.source_hash(),
                     triton=triton.__version__)  # fmt: skip


def backward_shortlist(dy: torch.Tensor, x: torch.Tensor, dx: torch.Tensor) -> list[GradConfig]:
    """The rule's setting, then few of each kind: threads with one or two vectors, tiles in flight, order, programs."""
    first = default_grad(dy, x, dx)
    vector, found = VECTOR_BYTES // x.element_size(), [first]
    for vectors in (2, 1):
        warps = min(32, max(1, first.block // (32 * vector * vectors)))
        fit = max(1, 32 // warps)
        for stages in (3, 4) if first.kind == "grad" else (1, 3):
            for group in (0, vector if first.kind == "shifted" else 1):
                for per_sm in (fit, 2 * fit, 4 * fit) if group == 0 else (2 * fit, 4 * fit, 8 * fit):
                    found.append(replace(first, num_warps=warps, stages=stages, group=group, per_sm=per_sm))
    if first.block >= 16384:  # too many registers: the weight again from cache, fewer tiles in flight
        found += [replace(config, keep_w=False, stages=stages) for config in found[:1] for stages in (1, 2, 3)]
    return [config for config in dict.fromkeys(found) if fits_grad(config, x, dy, dx)]


def forward_shortlist(x: torch.Tensor, out: torch.Tensor, *, rows: int | None = None) -> list[Config]:
    """The rule's setting for `rows` (those of x if not given), then, for rows off the 16-byte grid, more orders."""
    elem_bytes, vector = x.element_size(), VECTOR_BYTES // x.element_size()
    first = choose(rows=rows or x.shape[0], hidden=x.shape[1], elem_bytes=elem_bytes, is_aligned=rows_aligned(x, out),
                   num_sms=num_multiprocessors(x))  # fmt: skip
    found = [first]
    if first.kind == "shifted":
        for per_thread in (4, 2):
            warps = min(16, max(1, first.block // (32 * per_thread * vector)))
            for stages in (1, 3):
                for per_sm in (64, 128, 256):
                    found.append(replace(first, num_warps=warps, stages=stages, group=vector, per_sm=per_sm))
                found.append(replace(first, num_warps=warps, stages=stages, group=0, per_sm=64 // warps))
    return [config for config in dict.fromkeys(found) if fits(config, x, out)]


def tuned_setting(
    direction: str, text: str, x: torch.Tensor, candidates: Sequence[Any], call: Callable[[Any], timing.Call], *,
    from_dict: Callable[..., Any], lines: JsonLines, flush: Callable[[], object],
) -> Any:  # fmt: skip
    """The setting of a shape from the cache, or the fastest candidate, which is then kept; writes a `cache` line.

    Args:
        direction: `forward` or `backward`.
        text: the shape, for the line.
        x: the input.
        candidates: settings, the rule's first.
        call: makes the call of a setting.
        from_dict: makes a setting from its fields.
        lines: where the line goes.
        flush: fills the L2 cache with something else.
    """

    def time_all(settings: Sequence[Any]) -> list[list[float]]:
        calls: dict[str, timing.Call] = {}
        for setting in settings:
            try:
                call(setting)(0)
                torch.cuda.synchronize()
                calls[setting.label()] = call(setting)
            except Exception as error:  # too much shared memory, say: the others are still tried
                lines.refuse(f"setting {setting.label()}", error, shape=text)
        names, found = list(calls), {}
        for at in range(0, len(names), 8):  # few at a time: the host must stay ahead of the GPU
            part = {name: calls[name] for name in names[at : at + 8]}
            found |= timing.cold_samples(part, rounds=ROUNDS, flush=flush)
        return [found.get(setting.label(), []) for setting in settings]

    found = cache.tuned(cache_key(x, direction), candidates, time_all, from_dict=from_dict)
    lines.write("cache", direction=direction, shape=text, was_tuned=found.was_tuned, num_timings=found.num_timings,
                chosen=found.config.label(), default=candidates[0].label(), ms=found.ms)  # fmt: skip
    return found.config
