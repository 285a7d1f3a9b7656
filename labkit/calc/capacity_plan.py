"""How many requests fit into a GPU's KV cache: from memory to blocks, to the engine's printed figure, to no preemption.

In: bytes of the GPU and of the weights, bytes a token, block size, lengths of the workload. Out: a plan.

    python -m labkit calc capacity_plan serving_plan kv_bytes_per_token=57344 cache_bytes=1073741824 max_num_seqs=32
"""

from __future__ import annotations

from typing import Any

from labkit.calc._require import require_fraction, require_int, require_number
from labkit.calc.kv_cache import capacity_blocks, usable_blocks
from labkit.calc.scheduler import SchedulerConfig
from labkit.calc.scheduler_runs import largest_concurrency


def cache_bytes_left(
    *, gpu_bytes: int, weight_bytes: int, other_bytes: int = 0, utilisation: float = 0.9,
) -> int:
    """Memory that an engine keeps for the KV cache when it is told a share of the GPU and no bytes.

    Args:
        gpu_bytes: of the whole GPU as the driver reports it, >= 1.
        weight_bytes: of the weights on this GPU, >= 0.
        other_bytes: activations of the largest step, CUDA graphs, what others hold, >= 0; the engine measures it.
        utilisation: share of the GPU the engine may take in all, above 0 to 1 (`gpu_memory_utilization`).

    Returns: bytes; 0 when nothing is left.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: one GPU; the engine's own measurement of `other_bytes` differs by some percent from run to run.
    Source: vLLM `determine_available_memory`: share of the GPU minus weights, peak of activations and the rest.

    >>> cache_bytes_left(gpu_bytes=32 * 2**30, weight_bytes=15 * 2**30, other_bytes=2**30, utilisation=0.9) / 2**30
    12.799999999813735
    """
    share = require_int("gpu_bytes", gpu_bytes, least=1) * require_fraction("utilisation", utilisation, zero=False)
    taken = require_int("weight_bytes", weight_bytes, least=0) + require_int("other_bytes", other_bytes, least=0)
    return max(0, int(share) - taken)


def printed_concurrency(*, num_blocks: int, block_tokens: int, max_model_len: int) -> float:
    """What the engine's log calls maximum concurrency: how often the longest possible request fits.

    Args:
        num_blocks: of the cache, >= 0, the block that is never given out included, as the engine counts here.
        block_tokens: tokens of a block, >= 1.
        max_model_len: longest request, tokens, >= 1.

    Returns: ratio, not rounded.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: one kind of cache. Nothing is said of requests that are shorter, and nothing of preemption.
    Source: vLLM `get_max_concurrency_for_kv_cache_config`; report sections 8 and 14.1.

    >>> [round(printed_concurrency(num_blocks=n, block_tokens=16, max_model_len=2048), 2) for n in (1170, 14075)]
    [9.14, 109.96]
    """
    longest = require_int("max_model_len", max_model_len, least=1)
    each = -(-longest // require_int("block_tokens", block_tokens, least=1))
    return require_int("num_blocks", num_blocks, least=0) / each


def serving_plan(
    *, kv_bytes_per_token: float, cache_bytes: int | None = None, num_blocks: int | None = None,
    block_tokens: int = 16, prompt_tokens: int = 1024, output_tokens: int = 512, max_model_len: int = 2048,
    max_num_seqs: int = 256, max_num_batched_tokens: int = 2048, num_requests: int | None = None,
    waves: int = 4,
) -> dict[str, Any]:
    """Requests of one shape that a cache serves without a preemption.

    Args:
        kv_bytes_per_token: all layers on this GPU, > 0.
        cache_bytes: memory of the cache, >= 0: given, or of `cache_bytes_left`; expected without `num_blocks`.
        num_blocks: blocks of the cache, >= 0, where the engine was told their number.
        block_tokens: tokens of a block, >= 1.
        prompt_tokens: of each request, >= 1; all prompts differ.
        output_tokens: of each request, >= 1.
        max_model_len: longest request that the engine takes, tokens.
        max_num_seqs: requests that run at a time at most, >= 1.
        max_num_batched_tokens: tokens of a step, >= 1.
        num_requests: sent in all; if not given, `waves` times the concurrency that is tried.
        waves: >= 1; 1: released together, and nobody follows.

    Returns: blocks, tokens, printed_concurrency, blocks_per_request (at its end), safe_concurrency (none is preempted
        whatever the order of arrival), quiet_concurrency (none is preempted when that many arrive together and each
        that ends is followed by the next; some of them may wait to be admitted), limited_by: `cache`, `max_num_seqs`,
        `admission` (more than are safe wait at the door, so that none is preempted), `request` (not even one fits).
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `largest_concurrency`; prefix caching off, or nothing shared.
    Source: floor(usable blocks / blocks a request), `largest_concurrency`; interview question 8, report 14.1.

    >>> plan = serving_plan(kv_bytes_per_token=57344, cache_bytes=2**30, max_num_seqs=32, num_requests=16)
    >>> plan["blocks"], plan["tokens"], plan["safe_concurrency"], plan["quiet_concurrency"], plan["limited_by"]
    (1170, 18720, 12, 12, 'cache')
    """
    if (cache_bytes is None) == (num_blocks is None):
        raise ValueError("cache_bytes, num_blocks: expected one of the two")
    require_int("max_num_seqs", max_num_seqs, least=1)
    total = require_int("prompt_tokens", prompt_tokens, least=1) + require_int("output_tokens", output_tokens, least=1)
    if total > require_int("max_model_len", max_model_len, least=1):
        raise ValueError(f"max_model_len={max_model_len!r}: expected at least {total}, prompt and output together")
    if num_blocks is None:
        num_blocks = capacity_blocks(cache_bytes=cache_bytes or 0, kv_bytes_per_token=kv_bytes_per_token,
                                     block_tokens=block_tokens)
    require_number("kv_bytes_per_token", kv_bytes_per_token, above=0)
    each = -(-(total - 1) // require_int("block_tokens", block_tokens, least=1))  # nobody needs the last keys
    usable = usable_blocks(num_blocks=num_blocks) if num_blocks else 0
    safe = min(max_num_seqs, usable // each)
    quiet = safe and largest_concurrency(
        prompt_tokens=prompt_tokens, output_tokens=output_tokens, num_requests=num_requests,
        waves=waves,
        config=SchedulerConfig(num_blocks=num_blocks, block_size=block_tokens, max_num_seqs=max_num_seqs,
                               max_num_batched_tokens=max_num_batched_tokens, enable_prefix_caching=False))
    limit = "cache" if quiet < max_num_seqs else "max_num_seqs" if safe == max_num_seqs else "admission"
    return {
        "blocks": num_blocks, "tokens": num_blocks * block_tokens,
        "printed_concurrency": printed_concurrency(num_blocks=num_blocks, block_tokens=block_tokens,
                                                   max_model_len=max_model_len),
        "blocks_per_request": each, "safe_concurrency": safe, "quiet_concurrency": quiet,
        "limited_by": limit if safe else "request",
    }
