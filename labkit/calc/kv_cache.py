"""KV cache: bytes per token for every attention layout, capacity in blocks and tokens, concurrency.

In: model shape, bytes per element, cache bytes, block size. Out: bytes, blocks, tokens, ratios.

    python -m labkit calc kv_cache capacity_tokens cache_bytes=1073741824 kv_bytes_per_token=57344
"""

from __future__ import annotations

from labkit.calc._require import require_int, require_number


def kv_bytes_per_token(
    *, num_layers: int, num_kv_heads: int | None = None, head_dim: int | None = None, v_head_dim: int | None = None,
    kv_lora_rank: int | None = None, qk_rope_head_dim: int | None = None, bytes_per_element: float = 2,
) -> float:
    """Cache bytes that one token takes, all layers, before any tensor-parallel split.

    Multi-head, grouped-query and multi-query attention differ only in `num_kv_heads`. Latent attention (MLA) caches
    one latent and one rotary key per layer, without the factor 2 and without heads.

    Args:
        num_layers: layers with attention, >= 1.
        num_kv_heads: heads whose K and V are cached, >= 1; not for MLA.
        head_dim: width of a key head, >= 1 (not hidden / heads); not for MLA.
        v_head_dim: width of a value head; None: as the key.
        kv_lora_rank: MLA: width of the latent, >= 1.
        qk_rope_head_dim: MLA: width of the rotary key, >= 0.
        bytes_per_element: bytes of one cached element, > 0 (2 for 16 bits, 1 for fp8).

    Returns: bytes per token.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: one layout in all layers (no sliding window, no state-space layers); quantisation scales not counted.
    Source: 2 x layers x kv_heads x head_dim x bytes; MLA: DeepSeek-V2 paper, layers x (d_c + d_h^R) x bytes.

    >>> kv_bytes_per_token(num_layers=28, num_kv_heads=4, head_dim=128)
    57344
    >>> kv_bytes_per_token(num_layers=27, kv_lora_rank=512, qk_rope_head_dim=64)
    31104
    """
    require_int("num_layers", num_layers, least=1)
    require_number("bytes_per_element", bytes_per_element, above=0)
    if kv_lora_rank is not None or qk_rope_head_dim is not None:
        if num_kv_heads is not None or head_dim is not None or v_head_dim is not None:
            raise ValueError("num_kv_heads, head_dim, v_head_dim: expected None with kv_lora_rank: MLA caches no heads")
        rank = require_int("kv_lora_rank", kv_lora_rank, least=1)
        return num_layers * (rank + require_int("qk_rope_head_dim", qk_rope_head_dim, least=0)) * bytes_per_element
    heads, width = require_int("num_kv_heads", num_kv_heads, least=1), require_int("head_dim", head_dim, least=1)
    v_width = width if v_head_dim is None else require_int("v_head_dim", v_head_dim, least=1)
    return num_layers * heads * (width + v_width) * bytes_per_element


def kv_heads_per_rank(*, num_kv_heads: int, tensor_parallel: int) -> int:
    """KV heads that each rank of a tensor-parallel group caches.

    Args:
        num_kv_heads: heads of the model, >= 1.
        tensor_parallel: ranks, >= 1; divides the heads or is a multiple of them.

    Returns: heads; never under 1: with more ranks than heads each head is cached more than once.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: heads are split over ranks; MLA's latent has no heads and is cached whole on every rank.
    Source: vLLM, `ModelConfig.get_num_kv_heads`.

    >>> [kv_heads_per_rank(num_kv_heads=4, tensor_parallel=tp) for tp in (1, 2, 4, 8)]
    [4, 2, 1, 1]
    """
    require_int("num_kv_heads", num_kv_heads, least=1)
    tp = require_int("tensor_parallel", tensor_parallel, least=1)
    if num_kv_heads % tp and tp % num_kv_heads:
        raise ValueError(f"tensor_parallel={tp!r}: expected a divisor or a multiple of num_kv_heads={num_kv_heads}")
    return max(1, num_kv_heads // tp)


def capacity_blocks(*, cache_bytes: int, kv_bytes_per_token: float, block_tokens: int = 16) -> int:
    """Whole blocks that fit into the cache memory.

    Args:
        cache_bytes: memory given to the cache, bytes, >= 0 (vLLM's `1G` is 2**30).
        kv_bytes_per_token: all layers, > 0.
        block_tokens: tokens of a block, >= 1.

    Returns: blocks; the engine keeps one of them for itself (see `usable_blocks`).
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: one kind of cache, no alignment padding.
    Source: vLLM `get_num_blocks`; report sections 8 and 14.1.

    >>> capacity_blocks(cache_bytes=2**30, kv_bytes_per_token=57344)
    1170
    """
    require_int("cache_bytes", cache_bytes, least=0)
    require_number("kv_bytes_per_token", kv_bytes_per_token, above=0)
    return int(cache_bytes // (kv_bytes_per_token * require_int("block_tokens", block_tokens, least=1)))


def capacity_tokens(*, cache_bytes: int, kv_bytes_per_token: float, block_tokens: int = 16) -> int:
    """Tokens that fit into the cache memory, in whole blocks, as vLLM's log prints it.

    Args:
        cache_bytes: memory given to the cache, bytes, >= 0.
        kv_bytes_per_token: all layers, > 0.
        block_tokens: tokens of a block, >= 1.

    Returns: tokens.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `capacity_blocks`.
    Source: blocks x block size.

    >>> [capacity_tokens(cache_bytes=n * 2**30, kv_bytes_per_token=57344) for n in (1, 4)]
    [18720, 74896]
    """
    return block_tokens * capacity_blocks(
        cache_bytes=cache_bytes, kv_bytes_per_token=kv_bytes_per_token, block_tokens=block_tokens
    )


def usable_blocks(*, num_blocks: int) -> int:
    """Blocks that requests can hold.

    Args:
        num_blocks: blocks of the cache, >= 1.

    Returns: blocks; vLLM's null block, a placeholder, is not handed out.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: vLLM V1's block pool.
    Source: vLLM `BlockPool.null_block`; erratum E08 of the report.

    >>> usable_blocks(num_blocks=1170)
    1169
    """
    return require_int("num_blocks", num_blocks, least=1) - 1


def blocks_for(*, num_tokens: int, block_tokens: int = 16) -> int:
    """Blocks that one sequence of this length holds.

    Args:
        num_tokens: tokens in the cache, >= 0.
        block_tokens: tokens of a block, >= 1.

    Returns: blocks, the last one perhaps partly filled.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: no block shared with another sequence.
    Source: ceil(tokens / block).

    >>> blocks_for(num_tokens=1536), blocks_for(num_tokens=1537)
    (96, 97)
    """
    return -(-require_int("num_tokens", num_tokens, least=0) // require_int("block_tokens", block_tokens, least=1))


def max_concurrency(*, num_blocks: int, max_tokens: int, block_tokens: int = 16) -> float:
    """Sequences of the greatest length that fit at once, as vLLM's log prints it.

    Args:
        num_blocks: blocks of the cache, >= 0.
        max_tokens: tokens of such a sequence, >= 1.
        block_tokens: tokens of a block, >= 1.

    Returns: sequences, not rounded.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: no shared prefix; shorter sequences fit in larger numbers.
    Source: blocks / blocks of one sequence, vLLM `get_max_concurrency_for_kv_cache_config`.

    >>> round(max_concurrency(num_blocks=1170, max_tokens=2048), 2)
    9.14
    """
    require_int("max_tokens", max_tokens, least=1)
    needed = blocks_for(num_tokens=max_tokens, block_tokens=block_tokens)
    return require_int("num_blocks", num_blocks, least=0) / needed


def sequence_bytes(
    *, num_tokens: int, full_layers: int, window_layers: int = 0, window_tokens: int | None = None,
    num_kv_heads: int | None = None, head_dim: int | None = None, v_head_dim: int | None = None,
    kv_lora_rank: int | None = None, qk_rope_head_dim: int | None = None, bytes_per_element: float = 2,
    state_bytes: float = 0,
) -> float:
    """Cache bytes of one sequence by its length, where only some layers keep all of it.

    A windowed layer keeps the last tokens of its window; a linear-attention or state-space layer keeps a state of
    constant size. Both stop growing, full layers do not.

    Args:
        num_tokens: length of the sequence, >= 0.
        full_layers: layers with full attention, >= 0.
        window_layers: layers with a sliding window, >= 0.
        window_tokens: tokens of the window, >= 1; needed with window layers.
        num_kv_heads: as `kv_bytes_per_token`.
        head_dim: as `kv_bytes_per_token`.
        v_head_dim: as `kv_bytes_per_token`.
        kv_lora_rank: as `kv_bytes_per_token`.
        qk_rope_head_dim: as `kv_bytes_per_token`.
        bytes_per_element: as `kv_bytes_per_token`.
        state_bytes: of all constant-size layers together, >= 0.

    Returns: bytes.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: old tokens of a window are freed at once (engines free whole blocks, and some do not free at all).
    Source: per layer and token x (full S + windowed min(S, w)) + state.

    >>> [sequence_bytes(num_tokens=n, full_layers=12, window_layers=12, window_tokens=128, num_kv_heads=8, head_dim=64)
    ...  // 1024 for n in (128, 8192)]
    [6144, 199680]
    """
    tokens, full = require_int("num_tokens", num_tokens, least=0), require_int("full_layers", full_layers, least=0)
    one = kv_bytes_per_token(
        num_layers=1, num_kv_heads=num_kv_heads, head_dim=head_dim, v_head_dim=v_head_dim, kv_lora_rank=kv_lora_rank,
        qk_rope_head_dim=qk_rope_head_dim, bytes_per_element=bytes_per_element,
    )
    kept = full * tokens
    if require_int("window_layers", window_layers, least=0):
        kept += window_layers * min(tokens, require_int("window_tokens", window_tokens, least=1))
    return kept * one + require_number("state_bytes", state_bytes, least=0)


def sequences_that_fit(
    *, cache_bytes: int, num_tokens: int, full_layers: int, window_layers: int = 0, window_tokens: int | None = None,
    num_kv_heads: int | None = None, head_dim: int | None = None, v_head_dim: int | None = None,
    kv_lora_rank: int | None = None, qk_rope_head_dim: int | None = None, bytes_per_element: float = 2,
    state_bytes: float = 0,
) -> int:
    """Sequences of one length that fit into the cache memory, for any mix of layers.

    Args:
        cache_bytes: memory given to the cache, bytes, >= 0.
        num_tokens: length of each sequence, >= 1.
        full_layers: as `sequence_bytes`.
        window_layers: as `sequence_bytes`.
        window_tokens: as `sequence_bytes`.
        num_kv_heads: as `kv_bytes_per_token`.
        head_dim: as `kv_bytes_per_token`.
        v_head_dim: as `kv_bytes_per_token`.
        kv_lora_rank: as `kv_bytes_per_token`.
        qk_rope_head_dim: as `kv_bytes_per_token`.
        bytes_per_element: as `kv_bytes_per_token`.
        state_bytes: as `sequence_bytes`.

    Returns: whole sequences.
    Raises: ValueError naming the argument, the value got, what was expected; also when a sequence takes no memory.
    Assumes: as `sequence_bytes`; blocks of one token, nothing shared.
    Source: floor(cache / `sequence_bytes`).

    >>> sequences_that_fit(cache_bytes=2**30, num_tokens=2048, full_layers=28, num_kv_heads=4, head_dim=128)
    9
    """
    one = sequence_bytes(
        num_tokens=require_int("num_tokens", num_tokens, least=1), full_layers=full_layers,
        window_layers=window_layers, window_tokens=window_tokens, num_kv_heads=num_kv_heads, head_dim=head_dim,
        v_head_dim=v_head_dim, kv_lora_rank=kv_lora_rank, qk_rope_head_dim=qk_rope_head_dim,
        bytes_per_element=bytes_per_element, state_bytes=state_bytes,
    )
    if not one:
        raise ValueError("full_layers=0: expected at least one layer that caches, or state_bytes above 0")
    return int(require_int("cache_bytes", cache_bytes, least=0) // one)
