"""What a verified save costs over a bare one, how large the state is, and what a clean record of faults proves.

In: bytes, rates. Out: bytes, percent, fractions.

    python -m labkit calc checkpoint_save miss_rate_bound num_faults=200
"""

from __future__ import annotations

from labkit.calc._require import require_int, require_number


def adamw_state_bytes(*, num_parameters: int, bytes_per_element: int = 4) -> int:
    """Weights and the two moments of Adam.

    Args:
        num_parameters: elements, >= 1.
        bytes_per_element: of weights and moments.

    Returns: bytes; a file adds a few kB.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: weights and moments in one dtype, no master copy.
    Source: 3 x elements x bytes; report section 6.2.

    >>> adamw_state_bytes(num_parameters=4197376)
    50368512
    """
    return 3 * require_int("num_parameters", num_parameters, least=1) * require_int(
        "bytes_per_element", bytes_per_element, least=1)


def save_cost_pct(
    *, state_bytes: float, write_bytes_per_s: float, hash_bytes_per_s: float, fixed_s: float = 0.0,
    bare_fixed_s: float = 0.0, copy_bytes_per_s: float | None = None,
) -> float:
    """How much longer a save takes that hashes what it writes and then publishes a manifest.

    Args:
        state_bytes: written and hashed by the slowest rank, > 0.
        write_bytes_per_s: serialise, write and sync, > 0.
        hash_bytes_per_s: > 0.
        fixed_s: what the manifest costs whatever the size: messages, write, two syncs, >= 0.
        bare_fixed_s: what a bare save costs whatever the size, >= 0.
        copy_bytes_per_s: of that part of the write that the hash runs beside, in another thread: the copy into the
            kernel's cache, > 0; None if it runs beside nothing.

    Returns: percent of the bare save.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: there is a core for the hash, and memory feeds both.
    Source: (max(0, bytes / hash - bytes / copy) + fixed) / (bytes / write + bare fixed).

    >>> round(save_cost_pct(state_bytes=50e6, write_bytes_per_s=0.5e9, hash_bytes_per_s=10e9, fixed_s=0.005), 2)
    10.0
    >>> round(save_cost_pct(state_bytes=50e6, write_bytes_per_s=0.5e9, hash_bytes_per_s=10e9, fixed_s=0.005,
    ...                     copy_bytes_per_s=2e9), 2)
    5.0
    """
    size = require_number("state_bytes", state_bytes, above=0)
    bare = size / require_number("write_bytes_per_s", write_bytes_per_s, above=0) + require_number(
        "bare_fixed_s", bare_fixed_s, least=0)
    extra = size * _hash_s_per_byte(hash_bytes_per_s, copy_bytes_per_s) + require_number("fixed_s", fixed_s, least=0)
    return 100 * extra / bare


def size_for_cost_bytes(
    *, cost_pct: float, write_bytes_per_s: float, hash_bytes_per_s: float, fixed_s: float,
    copy_bytes_per_s: float | None = None,
) -> float | None:
    """State from which on a verified save costs at most so much.

    Args:
        cost_pct: percent of the bare save, > 0.
        write_bytes_per_s: as `save_cost_pct`, like the next two.
        hash_bytes_per_s: of the hash.
        fixed_s: of the manifest.
        copy_bytes_per_s: as `save_cost_pct`.

    Returns: bytes; None if no size is large enough, because the hash alone costs more.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `save_cost_pct`, with nothing fixed in a bare save.
    Source: `save_cost_pct` solved for the size.

    >>> round(size_for_cost_bytes(cost_pct=5, write_bytes_per_s=0.4e9, hash_bytes_per_s=10e9, fixed_s=0.005) / 1e6)
    200
    """
    write = require_number("write_bytes_per_s", write_bytes_per_s, above=0)
    allowed = require_number("cost_pct", cost_pct, above=0) / 100 / write
    left_s_per_byte = allowed - _hash_s_per_byte(hash_bytes_per_s, copy_bytes_per_s)
    fixed = require_number("fixed_s", fixed_s, least=0)
    return None if left_s_per_byte <= 1e-9 * allowed else fixed / left_s_per_byte


def _hash_s_per_byte(hash_bytes_per_s: float, copy_bytes_per_s: float | None) -> float:
    """What the hash adds to each byte: all of it, or what lasts longer than the copy beside it."""
    hashed = 1 / require_number("hash_bytes_per_s", hash_bytes_per_s, above=0)
    if copy_bytes_per_s is None:
        return hashed
    return max(0.0, hashed - 1 / require_number("copy_bytes_per_s", copy_bytes_per_s, above=0))


def miss_rate_bound(*, num_faults: int, confidence: float = 0.95) -> float:
    """Largest miss rate that a record without a miss still leaves open.

    Args:
        num_faults: independent faults that were all noticed, >= 1.
        confidence: 0 to 1, both excluded.

    Returns: a fraction; about 3 / n at 95 % ("rule of three").
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: faults drawn like those that will happen.
    Source: 1 - (1 - c)^(1/n), Clopper and Pearson, 1934, for no event.

    >>> round(100 * miss_rate_bound(num_faults=200), 2)
    1.49
    """
    count = require_int("num_faults", num_faults, least=1)
    if not 0 < require_number("confidence", confidence) < 1:
        raise ValueError(f"confidence={confidence!r}: expected between 0 and 1, both excluded")
    return 1 - (1 - confidence) ** (1 / count)
