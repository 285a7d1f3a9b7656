"""Prefix caching: which tokens can be reused, chained block keys, collisions, what sharing saves.

In: tokens, block size, hash width, sessions. Out: tokens, keys, probabilities, ratios.

    python -m labkit calc prefix_cache reusable_tokens shared_tokens=100
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

from labkit.calc._require import require_int


def reusable_tokens(*, shared_tokens: int, block_tokens: int = 16, prompt_tokens: int | None = None) -> int:
    """Cached tokens that a request can use: whole blocks, and never its last token.

    Args:
        shared_tokens: leading tokens that are cached, >= 0.
        block_tokens: tokens of a block, >= 1.
        prompt_tokens: length of the prompt, >= shared_tokens; None: longer than what is shared.

    Returns: tokens.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: only full blocks are indexed; the last prompt token is run again to get logits, in a block-aligned cache.
    Source: c floor(min(n, prompt - 1) / c); interview question 3, erratum E19.

    >>> reusable_tokens(shared_tokens=100), reusable_tokens(shared_tokens=64, prompt_tokens=64)
    (96, 48)
    """
    shared = require_int("shared_tokens", shared_tokens, least=0)
    if prompt_tokens is not None:
        shared = min(shared, require_int("prompt_tokens", prompt_tokens, least=max(1, shared)) - 1)
    return shared // require_int("block_tokens", block_tokens, least=1) * block_tokens


def block_keys(*, tokens: Sequence[int], block_tokens: int = 16, salt: str = "") -> list[str]:
    """Key of every full block: a hash over the key before it and its own tokens; the salt enters the first one.

    Args:
        tokens: token numbers, >= 0.
        block_tokens: tokens of a block, >= 1.
        salt: e.g. a tenant; reaches all later keys through the chain.

    Returns: hexadecimal SHA-256 keys, none for a last block that is not full.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: adapters, images and the like would enter each key; left out here.
    Source: h_i = hash(h_(i-1), tokens_i, extra_i); interview question 3.

    >>> keys = block_keys(tokens=[1, 2, 3, 4, 5], block_tokens=2)
    >>> len(keys), keys[0] == block_keys(tokens=[1, 2], block_tokens=2)[0]
    (2, True)
    """
    step = require_int("block_tokens", block_tokens, least=1)
    numbers = [require_int("tokens", token, least=0) for token in tokens]
    keys: list[str] = []
    for i in range(0, len(numbers) - step + 1, step):
        parent = keys[-1] if keys else f"salt:{salt}"
        keys.append(hashlib.sha256(f"{parent}|{numbers[i : i + step]}".encode()).hexdigest())
    return keys


def shared_blocks(
    *, first: Sequence[int], second: Sequence[int], block_tokens: int = 16, first_salt: str = "", second_salt: str = ""
) -> dict[str, int]:
    """Block keys that two requests have in common.

    Args:
        first: token numbers, >= 0.
        second: token numbers, >= 0.
        block_tokens: tokens of a block, >= 1.
        first_salt: salt of the first request.
        second_salt: salt of the second request.

    Returns: {"leading": equal keys from the start, "anywhere": equal keys at any place}; equal for chained keys.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `block_keys`.
    Source: `block_keys`.

    >>> shared_blocks(first=[1, 2, 3, 4, 5, 6, 7, 8], second=[1, 2, 3, 9, 5, 6, 7, 8], block_tokens=4)
    {'leading': 0, 'anywhere': 0}
    """
    a = block_keys(tokens=first, block_tokens=block_tokens, salt=first_salt)
    b = block_keys(tokens=second, block_tokens=block_tokens, salt=second_salt)
    leading = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return {"leading": leading, "anywhere": len(set(a) & set(b))}


def collision_chance(*, num_keys: int, hash_bits: int) -> dict[str, float]:
    """Chance that any two of many different blocks get the same key by accident.

    Args:
        num_keys: different blocks, 2 or more.
        hash_bits: width of the hash, 1 to 4096.

    Returns: {"probability", "log10"}; the logarithm is also right where the probability is too small for a float.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: a hash without structure and nobody who searches for collisions.
    Source: birthday bound, 1 - exp(-n (n - 1) / 2^(b + 1)); interview question 3.

    >>> found = collision_chance(num_keys=10**9, hash_bits=64)
    >>> round(100 * found["probability"], 1), round(collision_chance(num_keys=10**9, hash_bits=256)["log10"], 1)
    (2.7, -59.4)
    """
    keys, bits = require_int("num_keys", num_keys, least=2), require_int("hash_bits", hash_bits, least=1)
    if bits > 4096:
        raise ValueError(f"hash_bits={hash_bits!r}: expected at most 4096")
    log_pairs = math.log10(keys) + math.log10(keys - 1) - (bits + 1) * math.log10(2)
    if log_pairs < -12:  # here 1 - exp(-x) is x to the last digit
        return {"probability": 10.0**log_pairs if log_pairs > -300 else 0.0, "log10": log_pairs}
    chance = -math.expm1(-(10.0 ** min(log_pairs, 4.0)))
    return {"probability": chance, "log10": math.log10(chance)}


def dedup_ratio(*, num_sessions: int, shared_tokens: int, private_tokens: int) -> dict[str, Any]:
    """Cached tokens of sessions with a common prefix, stored once or once for each.

    Args:
        num_sessions: >= 1.
        shared_tokens: of the prefix, >= 0.
        private_tokens: of each session, >= 0; at least one token in all.

    Returns: {"separate_tokens", "shared_tokens", "ratio"}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: the prefix ends on a block boundary.
    Source: n (s + p) / (s + n p); interview question 5.

    >>> round(dedup_ratio(num_sessions=64, shared_tokens=30000, private_tokens=2000)["ratio"], 1)
    13.0
    """
    sessions = require_int("num_sessions", num_sessions, least=1)
    shared = require_int("shared_tokens", shared_tokens, least=0)
    private = require_int("private_tokens", private_tokens, least=0)
    if not shared + private:
        raise ValueError("shared_tokens=0 and private_tokens=0: expected at least one token")
    separate, together = sessions * (shared + private), shared + sessions * private
    return {"separate_tokens": separate, "shared_tokens": together, "ratio": separate / together}


def reserved_waste(*, block_tokens: int, mean_tokens: float, max_tokens: int) -> dict[str, float]:
    """Memory that a sequence wastes: half a block when paged, the unused rest when its greatest length is reserved.

    Args:
        block_tokens: tokens of a block, >= 1.
        mean_tokens: mean length of a sequence, 0 to max_tokens.
        max_tokens: length that a contiguous reservation has, >= 1.

    Returns: {"paged_tokens": per sequence, "reserved_share": fraction of the reservation}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: lengths spread evenly over a block.
    Source: (c - 1) / 2 and 1 - E[L] / L_max; extra interview question 27.

    >>> reserved_waste(block_tokens=16, mean_tokens=1024, max_tokens=8192)
    {'paged_tokens': 7.5, 'reserved_share': 0.875}
    """
    most = require_int("max_tokens", max_tokens, least=1)
    if isinstance(mean_tokens, bool) or not isinstance(mean_tokens, int | float) or not 0 <= mean_tokens <= most:
        raise ValueError(f"mean_tokens={mean_tokens!r}: expected a number from 0 to max_tokens={max_tokens}")
    paged = (require_int("block_tokens", block_tokens, least=1) - 1) / 2
    return {"paged_tokens": paged, "reserved_share": 1 - mean_tokens / most}
