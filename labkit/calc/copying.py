"""What copies cost: a vector that grows, a deep copy.

In: elements, sizes. Out: copies, bytes.

    python -m labkit calc copying grown_vector num_elements=1024
"""

from __future__ import annotations

from labkit.calc._require import require_int, require_number


def grown_vector(*, num_elements: int, factor: float = 2.0, first_capacity: int = 1) -> dict[str, int]:
    """Old elements that a vector relocates while elements are appended one by one.

    Args:
        num_elements: appended, 0 to 10 million.
        factor: of the capacity at each growth, > 1.
        first_capacity: of the first allocation, >= 1.

    Returns: {"relocations": copies or moves of old elements, "growths": allocations after the first, "capacity"}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: capacity grows to floor(capacity x factor), by at least one; nothing was reserved.
    Source: sum of a geometric series, n - 1 for doubling from 1 to n = 2^k; interview question 24.

    >>> grown_vector(num_elements=1024)
    {'relocations': 1023, 'growths': 10, 'capacity': 1024}
    """
    wanted = require_int("num_elements", num_elements, least=0)
    if wanted > 10_000_000:
        raise ValueError(f"num_elements={num_elements!r}: expected at most 10000000")
    ratio, capacity = require_number("factor", factor, above=1), require_int("first_capacity", first_capacity, least=1)
    relocations = growths = 0
    while capacity < wanted:
        relocations, growths = relocations + capacity, growths + 1
        capacity = max(capacity + 1, int(capacity * ratio))
    return {"relocations": relocations, "growths": growths, "capacity": capacity}


def deep_copy_bytes(*, num_elements: int, bytes_per_element: float) -> dict[str, float]:
    """Memory that a deep copy takes and the traffic it makes.

    Args:
        num_elements: >= 0.
        bytes_per_element: >= 0.

    Returns: {"bytes": of the new buffer, "traffic_bytes": read and written}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: source and copy in one memory, each byte moved once each way.
    Source: one read and one write; interview question 25.

    >>> deep_copy_bytes(num_elements=3, bytes_per_element=2)
    {'bytes': 6, 'traffic_bytes': 12}
    """
    size = require_int("num_elements", num_elements) * require_number("bytes_per_element", bytes_per_element, least=0)
    return {"bytes": size, "traffic_bytes": 2 * size}
