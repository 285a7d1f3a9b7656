"""Quantised KV cache: what scales and unquantised parts leave of the saving, and two caches compared.

In: widths, bytes per element, scales. Out: bytes, ratios.

    python -m labkit calc kv_quantisation record_bytes width=512 num_scales=4 unquantised_width=64
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.calc._require import require_int, require_number
from labkit.calc.kv_cache import kv_bytes_per_token


def record_bytes(
    *, width: int, bytes_per_element: float = 1, num_scales: int = 0, scale_bytes: float = 4,
    unquantised_width: int = 0, unquantised_bytes: float = 2,
) -> float:
    """Bytes of one cached vector: quantised values, their scales, and what stays in a wider type.

    Args:
        width: quantised elements, >= 1.
        bytes_per_element: of a quantised element, > 0.
        num_scales: >= 0.
        scale_bytes: of one scale, > 0.
        unquantised_width: elements that keep their type, >= 0.
        unquantised_bytes: of one of those, > 0.

    Returns: bytes.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: no padding.
    Source: sum of the parts; the 656-byte record is FlashMLA's for DeepSeek-V3.2; interview question 4.

    >>> record_bytes(width=512, num_scales=4, unquantised_width=64)
    656
    """
    low = require_int("width", width, least=1) * require_number("bytes_per_element", bytes_per_element, above=0)
    scales = require_int("num_scales", num_scales, least=0) * require_number("scale_bytes", scale_bytes, above=0)
    kept = require_number("unquantised_bytes", unquantised_bytes, above=0)
    return low + scales + require_int("unquantised_width", unquantised_width, least=0) * kept


def saving_ratio(
    *, width: int, bytes_high: float = 2, bytes_low: float = 1, num_scales: int = 1, scale_bytes: float = 4,
    unquantised_width: int = 0,
) -> float:
    """How many times smaller a vector gets, scales and unquantised parts included.

    Args:
        width: quantised elements, >= 1.
        bytes_high: of an element before (and of the unquantised ones after), > 0.
        bytes_low: of a quantised element, > 0, below bytes_high.
        num_scales: >= 0.
        scale_bytes: of one scale, > 0.
        unquantised_width: elements that keep their type, >= 0.

    Returns: ratio, below bytes_high / bytes_low unless nothing is added.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `record_bytes`.
    Source: d b_hi / (d b_lo + n s); interview question 5, erratum E21.

    >>> round(saving_ratio(width=128), 2), round(saving_ratio(width=512, num_scales=4, unquantised_width=64), 2)
    (1.94, 1.76)
    """
    high = require_number("bytes_high", bytes_high, above=0)
    if require_number("bytes_low", bytes_low, above=0) >= high:
        raise ValueError(f"bytes_low={bytes_low!r}: expected less than bytes_high={bytes_high}")
    low = record_bytes(
        width=width, bytes_per_element=bytes_low, num_scales=num_scales, scale_bytes=scale_bytes,
        unquantised_width=unquantised_width, unquantised_bytes=bytes_high,
    )
    return (width + unquantised_width) * high / low


def cache_comparison(*, baseline: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, float]:
    """Two cache layouts side by side.

    Args:
        baseline: keyword arguments of `kv_cache.kv_bytes_per_token`.
        other: likewise.

    Returns: {"baseline_bytes", "other_bytes", "ratio": baseline over other, "saved_share": 1 - other over baseline}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `kv_cache.kv_bytes_per_token`.
    Source: `kv_cache.kv_bytes_per_token`; interview question 13.

    >>> mla = {"num_layers": 1, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    >>> round(cache_comparison(
    ...     baseline={"num_layers": 1, "num_kv_heads": 8, "head_dim": 192, "v_head_dim": 128}, other=mla)["ratio"], 2)
    4.44
    """
    sizes = []
    for name, arguments in (("baseline", baseline), ("other", other)):
        try:
            sizes.append(kv_bytes_per_token(**arguments))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name}={arguments!r}: {error}") from None
    return {
        "baseline_bytes": sizes[0], "other_bytes": sizes[1], "ratio": sizes[0] / sizes[1],
        "saved_share": 1 - sizes[1] / sizes[0],
    }
