"""Moving bytes: one transfer, layer by layer beside compute, and the directions and encodings of a link.

In: bytes, bytes/s, latency, layers. Out: seconds, bytes/s.

    python -m labkit calc transfer transfer_time_s num_bytes=7027200000 bytes_per_s=5e10
"""

from __future__ import annotations

from labkit.calc._require import require_fraction, require_int, require_number


def transfer_time_s(*, num_bytes: float, bytes_per_s: float, latency_s: float = 0.0) -> float:
    """Time of one transfer over one link.

    Args:
        num_bytes: >= 0.
        bytes_per_s: one direction of the link, > 0.
        latency_s: before the first byte, seconds, >= 0.

    Returns: seconds.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: the link is free and reaches the rate given; a lower bound otherwise.
    Source: latency + bytes / rate; interview questions 5, 6, 8, 11 and 18.

    >>> round(1e3 * transfer_time_s(num_bytes=1e9, bytes_per_s=64e9), 3)
    15.625
    """
    seconds = require_number("num_bytes", num_bytes, least=0) / require_number("bytes_per_s", bytes_per_s, above=0)
    return require_number("latency_s", latency_s, least=0) + seconds


def layerwise_time_s(*, num_layers: int, compute_s: float, transfer_s: float) -> dict[str, float]:
    """Layers that are computed one after the other and sent away: all at the end, or each while the next one runs.

    Args:
        num_layers: >= 1.
        compute_s: of one layer, seconds, >= 0.
        transfer_s: of one layer's data, seconds, >= 0.

    Returns: {"one_by_one_s": nothing overlaps, "overlapped_s": each transfer starts when its layer is done}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: one link, transfers in order, no slowdown of the compute beside them.
    Source: L (c + x) against L c + x where x <= c, else c + L x; interview question 6.

    >>> layerwise_time_s(num_layers=61, compute_s=4.0, transfer_s=2.0)
    {'one_by_one_s': 366.0, 'overlapped_s': 246.0}
    """
    layers = require_int("num_layers", num_layers, least=1)
    compute = require_number("compute_s", compute_s, least=0)
    move = require_number("transfer_s", transfer_s, least=0)
    overlapped = layers * compute + move if move <= compute else compute + layers * move
    return {"one_by_one_s": layers * (compute + move), "overlapped_s": overlapped}


def bulk_or_streamed_s(
    *, num_layers: int, compute_s: float, num_bytes: float, bytes_per_s: float, latency_s: float
) -> dict[str, float]:
    """A KV cache sent as one message after the last layer, or as one message per layer beside compute.

    Args:
        num_layers: >= 1.
        compute_s: of one layer, seconds, >= 0.
        num_bytes: of all layers, >= 0.
        bytes_per_s: one direction of the link, > 0.
        latency_s: of one message, seconds, >= 0.

    Returns: {"bulk_s", "streamed_s"}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `layerwise_time_s`; messages of one link do not overlap each other's latency.
    Source: L c + a + V / B against `layerwise_time_s` with x = a + V / (L B); extra interview question 56.

    >>> found = bulk_or_streamed_s(
    ...     num_layers=61, compute_s=5e-3, num_bytes=8192 * 70272, bytes_per_s=50e9, latency_s=20e-6)
    >>> [round(1e3 * value, 2) for value in found.values()]
    [316.53, 305.21]
    """
    layers = require_int("num_layers", num_layers, least=1)
    bulk = transfer_time_s(num_bytes=num_bytes, bytes_per_s=bytes_per_s, latency_s=latency_s)
    part = transfer_time_s(num_bytes=num_bytes / layers, bytes_per_s=bytes_per_s, latency_s=latency_s)
    streamed = layerwise_time_s(num_layers=layers, compute_s=compute_s, transfer_s=part)["overlapped_s"]
    return {"bulk_s": layers * compute_s + bulk, "streamed_s": streamed}


def one_direction_bytes_per_s(*, bidirectional_bytes_per_s: float) -> float:
    """Rate of one direction, where a data sheet adds both up (NVLink).

    Args:
        bidirectional_bytes_per_s: as on the data sheet, > 0.

    Returns: bytes/s.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: both directions are equal.
    Source: half; extra interview question 33.

    >>> one_direction_bytes_per_s(bidirectional_bytes_per_s=900e9)
    450000000000.0
    """
    return require_number("bidirectional_bytes_per_s", bidirectional_bytes_per_s, above=0) / 2


def bits_to_bytes_per_s(*, bits_per_s: float, lanes: int = 1, efficiency: float = 1.0) -> float:
    """Bytes per second of a link that is named by its bit rate, e.g. a NIC or PCIe lanes.

    Args:
        bits_per_s: of one lane (transfers per second for PCIe), > 0.
        lanes: >= 1.
        efficiency: of the line code, above 0 to 1; 128/130 for PCIe 3 to 5.

    Returns: bytes/s, one direction.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: headers of packets not counted.
    Source: bits x lanes x code / 8; extra interview question 33.

    >>> round(bits_to_bytes_per_s(bits_per_s=32e9, lanes=16, efficiency=128 / 130) / 1e9, 2)
    63.02
    """
    rate = require_number("bits_per_s", bits_per_s, above=0) * require_int("lanes", lanes, least=1)
    return rate * require_fraction("efficiency", efficiency, zero=False) / 8
