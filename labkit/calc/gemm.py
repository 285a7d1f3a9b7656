"""Matrix product C = A B with A of M x K and B of K x N: work, traffic, the rows it takes to reach the ridge, waves.

In: sizes, bytes per element, ridge of the device. Out: FLOP, bytes, FLOP per byte, rows, efficiencies.

    python -m labkit calc gemm critical_rows k=7168 n=4096 ridge_flop_per_byte=295.373
"""

from __future__ import annotations

from typing import Any

from labkit.calc._require import require_int, require_number


def gemm_flop(*, m: int, n: int, k: int) -> int:
    """Floating-point operations of one product.

    Args:
        m: rows of A and C, >= 1.
        n: columns of B and C, >= 1.
        k: columns of A, rows of B, >= 1.

    Returns: FLOP; a multiply-add counts 2.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: the plain algorithm (no Strassen), no sparsity.
    Source: 2 M N K.

    >>> gemm_flop(m=2, n=3, k=4)
    48
    """
    for name, value in (("m", m), ("n", n), ("k", k)):
        require_int(name, value, least=1)
    return 2 * m * n * k


def gemm_bytes(
    *, m: int, n: int, k: int, bytes_a: float = 2, bytes_b: float = 2, bytes_c: float = 2, reads_c: bool = False
) -> float:
    """Least traffic of one product: A and B read once, C written once.

    Args:
        m: rows of A and C, >= 1.
        n: columns of B and C, >= 1.
        k: columns of A, rows of B, >= 1.
        bytes_a: bytes per element of A, > 0 (may be a fraction).
        bytes_b: bytes per element of B, > 0.
        bytes_c: bytes per element of C, > 0.
        reads_c: C += A B: C is read as well as written.

    Returns: bytes.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: perfect reuse in caches; scales of quantised operands not counted.
    Source: by definition of the three arrays.

    >>> gemm_bytes(m=2, n=3, k=4)
    52
    """
    gemm_flop(m=m, n=n, k=k)
    for name, value in (("bytes_a", bytes_a), ("bytes_b", bytes_b), ("bytes_c", bytes_c)):
        require_number(name, value, above=0)
    return bytes_a * m * k + bytes_b * k * n + bytes_c * m * n * (2 if reads_c else 1)


def gemm_intensity_flop_per_byte(
    *, m: int, n: int, k: int, bytes_a: float = 2, bytes_b: float = 2, bytes_c: float = 2, reads_c: bool = False
) -> float:
    """Arithmetic intensity of one product at the level where each array moves once.

    Args:
        m: rows of A and C, >= 1.
        n: columns of B and C, >= 1.
        k: columns of A, rows of B, >= 1.
        bytes_a: bytes per element of A, > 0.
        bytes_b: bytes per element of B, > 0.
        bytes_c: bytes per element of C, > 0.
        reads_c: as `gemm_bytes`.

    Returns: FLOP per byte.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `gemm_bytes`.
    Source: `gemm_flop` / `gemm_bytes`.

    >>> round(gemm_intensity_flop_per_byte(m=1, n=4096, k=7168), 4)
    0.9996
    """
    num_bytes = gemm_bytes(m=m, n=n, k=k, bytes_a=bytes_a, bytes_b=bytes_b, bytes_c=bytes_c, reads_c=reads_c)
    return gemm_flop(m=m, n=n, k=k) / num_bytes


def critical_rows(
    *, n: int, k: int, ridge_flop_per_byte: float, bytes_a: float = 2, bytes_b: float = 2, bytes_c: float = 2
) -> float | None:
    """Rows M* at which the product reaches the ridge: below it memory limits, above it arithmetic.

    M* = R b_B K N / (2 K N - R (b_A K + b_C N)).

    Args:
        n: columns of B, >= 1.
        k: rows of B, >= 1.
        ridge_flop_per_byte: R of the device, FLOP per byte, > 0.
        bytes_a: bytes per element of A, > 0.
        bytes_b: bytes per element of B, > 0.
        bytes_c: bytes per element of C, > 0.

    Returns: rows, not rounded; None if no number of rows reaches the ridge.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `gemm_bytes`; a regime boundary of an ideal model, not a launch threshold.
    Source: `gemm_intensity_flop_per_byte` solved for M; interview question 1.

    >>> round(critical_rows(k=7168, n=4096, ridge_flop_per_byte=989.5 / 3.35))
    333
    >>> critical_rows(k=512, n=512, ridge_flop_per_byte=989.5 / 3.35) is None
    True
    """
    gemm_bytes(m=1, n=n, k=k, bytes_a=bytes_a, bytes_b=bytes_b, bytes_c=bytes_c)
    ridge = require_number("ridge_flop_per_byte", ridge_flop_per_byte, above=0)
    left = 2 * k * n - ridge * (bytes_a * k + bytes_c * n)
    return ridge * bytes_b * k * n / left if left > 0 else None


def intensity_limit_flop_per_byte(*, n: int, k: int, bytes_a: float = 2, bytes_c: float = 2) -> float:
    """Intensity that more and more rows approach: then only A and C travel. A ridge above it is never reached.

    Args:
        n: columns of B, >= 1.
        k: rows of B, >= 1.
        bytes_a: bytes per element of A, > 0.
        bytes_c: bytes per element of C, > 0.

    Returns: FLOP per byte.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `gemm_bytes`.
    Source: limit of `gemm_intensity_flop_per_byte` for M to infinity, 2 K N / (b_A K + b_C N); interview question 1.

    >>> intensity_limit_flop_per_byte(n=512, k=512)
    256.0
    """
    gemm_bytes(m=1, n=n, k=k, bytes_a=bytes_a, bytes_c=bytes_c)
    return 2 * k * n / (bytes_a * k + bytes_c * n)


def least_square_side(*, ridge_flop_per_byte: float, bytes_a: float = 2, bytes_c: float = 2) -> float:
    """Side that a square weight must exceed so that some number of rows reaches the ridge.

    Args:
        ridge_flop_per_byte: R of the device, FLOP per byte, > 0.
        bytes_a: bytes per element of A, > 0.
        bytes_c: bytes per element of C, > 0.

    Returns: K = N, not rounded.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `gemm_bytes`.
    Source: 2 K^2 = R (b_A + b_C) K; interview question 1.

    >>> least_square_side(ridge_flop_per_byte=300.0)
    600.0
    """
    require_number("ridge_flop_per_byte", ridge_flop_per_byte, above=0)
    width = require_number("bytes_a", bytes_a, above=0) + require_number("bytes_c", bytes_c, above=0)
    return ridge_flop_per_byte * width / 2


def wave_efficiency(*, num_tiles: int, num_sms: int, tiles_per_sm: int = 1) -> float:
    """Share of the machine that equal tiles keep busy: the last wave is usually not full.

    Args:
        num_tiles: equal thread blocks, >= 1.
        num_sms: streaming multiprocessors, >= 1.
        tiles_per_sm: blocks resident on one of them at a time, >= 1.

    Returns: a fraction in (0, 1].
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: every tile takes equally long, and so does every wave; no stream-K, no persistent scheduling.
    Source: tiles / (waves x slots), "wave quantization", NVIDIA Matrix Multiplication Background guide.

    >>> [round(100 * wave_efficiency(num_tiles=n, num_sms=132), 1) for n in (133, 264, 216)]
    [50.4, 100.0, 81.8]
    """
    slots = require_int("num_sms", num_sms, least=1) * require_int("tiles_per_sm", tiles_per_sm, least=1)
    waves = -(-require_int("num_tiles", num_tiles, least=1) // slots)
    return num_tiles / (waves * slots)


def tile_quantisation(*, m: int, n: int, tile_m: int, tile_n: int) -> dict[str, Any]:
    """Tiles that cover C, and the share of their work that is useful.

    Args:
        m: rows of C, >= 1.
        n: columns of C, >= 1.
        tile_m: rows of a tile, >= 1.
        tile_n: columns of a tile, >= 1.

    Returns: {"num_tiles": count, "efficiency": fraction in (0, 1]}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: a partial tile costs as much as a full one.
    Source: "tile quantization", NVIDIA Matrix Multiplication Background guide.

    >>> tile_quantisation(m=257, n=256, tile_m=128, tile_n=128)["num_tiles"]
    6
    """
    for name, value in (("m", m), ("n", n), ("tile_m", tile_m), ("tile_n", tile_n)):
        require_int(name, value, least=1)
    num_tiles = -(-m // tile_m) * -(-n // tile_n)
    return {"num_tiles": num_tiles, "efficiency": m * n / (num_tiles * tile_m * tile_n)}


def tiled_efficiency(*, m: int, n: int, tile_m: int, tile_n: int, num_sms: int, tiles_per_sm: int = 1) -> float:
    """Useful share of a tiled product: partial tiles and the last wave together.

    Args:
        m: rows of C, >= 1.
        n: columns of C, >= 1.
        tile_m: rows of a tile, >= 1.
        tile_n: columns of a tile, >= 1.
        num_sms: streaming multiprocessors, >= 1.
        tiles_per_sm: blocks resident on one of them at a time, >= 1.

    Returns: a fraction in (0, 1].
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `tile_quantisation` and `wave_efficiency`.
    Source: their product; extra interview question 34.

    >>> [round(100 * tiled_efficiency(m=4096, n=n, tile_m=128, tile_n=128, num_sms=132), 1) for n in (4224, 4225)]
    [100.0, 88.9]
    """
    found = tile_quantisation(m=m, n=n, tile_m=tile_m, tile_n=tile_n)
    waves = wave_efficiency(num_tiles=found["num_tiles"], num_sms=num_sms, tiles_per_sm=tiles_per_sm)
    return found["efficiency"] * waves
