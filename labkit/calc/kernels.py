"""Kernel transformations by arithmetic: fusion, split-K, two-level reduction, graphs, data in flight.

In: elements, tiles, SMs, launch and run times. Out: bytes, blocks, atomics, seconds.

    python -m labkit calc kernels split_k m=256 n=256 k=16384 tile_m=128 tile_n=128 num_sms=132
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.calc._require import require_int, require_number
from labkit.calc.gemm import tile_quantisation


def fusion_saved_bytes(*, num_elements: int, bytes_per_element: float = 2) -> float:
    """Traffic that disappears with one intermediate array: it was written once and read once.

    Args:
        num_elements: of the intermediate, >= 0.
        bytes_per_element: > 0.

    Returns: bytes.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: the intermediate did not stay in a cache; one reader.
    Source: 2 N e; interview question 14.

    >>> fusion_saved_bytes(num_elements=2**26) / 2**20
    256.0
    """
    return 2 * require_int("num_elements", num_elements) * require_number(
        "bytes_per_element", bytes_per_element, above=0
    )


def splits_to_fill(*, num_blocks: int, num_sms: int, blocks_per_sm: int = 1) -> int:
    """Parts that each block's reduction axis must be cut into so that every SM has work.

    Args:
        num_blocks: thread blocks without splitting, >= 1.
        num_sms: streaming multiprocessors, >= 1.
        blocks_per_sm: blocks resident on one of them, >= 1.

    Returns: splits, >= 1; the last wave may be slightly over one.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: equal blocks, axis long enough to cut.
    Source: ceil(slots / blocks); interview questions 2 and 14.

    >>> splits_to_fill(num_blocks=8, num_sms=132), splits_to_fill(num_blocks=4, num_sms=132)
    (17, 33)
    """
    slots = require_int("num_sms", num_sms, least=1) * require_int("blocks_per_sm", blocks_per_sm, least=1)
    return -(-slots // require_int("num_blocks", num_blocks, least=1))


def split_k(
    *, m: int, n: int, k: int, tile_m: int, tile_n: int, num_sms: int, bytes_per_element: float = 2,
    accumulator_bytes: float = 4,
) -> dict[str, Any]:
    """Split-K of a small product: how many parts fill the device and what their partial sums cost.

    Args:
        m: rows of C, >= 1.
        n: columns of C, >= 1.
        k: inner size, >= 1.
        tile_m: rows of a tile, >= 1.
        tile_n: columns of a tile, >= 1.
        num_sms: streaming multiprocessors, >= 1.
        bytes_per_element: of A and B, > 0.
        accumulator_bytes: of a partial sum, > 0.

    Returns: {"num_tiles", "splits", "partial_bytes": partial sums written and read, "operand_bytes": A and B once}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: partial sums go through memory (not through atomics or a cluster); one block on an SM at a time.
    Source: 2 s M N e; interview question 14.

    >>> split_k(m=256, n=256, k=16384, tile_m=128, tile_n=128, num_sms=132)["splits"]
    33
    """
    tiles = tile_quantisation(m=m, n=n, tile_m=tile_m, tile_n=tile_n)["num_tiles"]
    splits = splits_to_fill(num_blocks=tiles, num_sms=num_sms)
    partial = 2 * splits * m * n * require_number("accumulator_bytes", accumulator_bytes, above=0)
    operands = (m + n) * require_int("k", k, least=1) * require_number("bytes_per_element", bytes_per_element, above=0)
    return {
        "num_tiles": tiles, "splits": splits, "partial_bytes": partial if splits > 1 else 0, "operand_bytes": operands,
    }


def num_atomics(*, num_values: int, threads_per_block: int = 1) -> int:
    """Global atomics of a sum: one for each value, or one for each block that reduces on chip first.

    Args:
        num_values: values to add, >= 0.
        threads_per_block: values that a block reduces before its one atomic, >= 1; 1: no reduction.

    Returns: atomics.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: one value per thread.
    Source: ceil(n / block); interview question 14.

    >>> num_atomics(num_values=2**20), num_atomics(num_values=2**20, threads_per_block=1024)
    (1048576, 1024)
    """
    values = require_int("num_values", num_values, least=0)
    return -(-values // require_int("threads_per_block", threads_per_block, least=1))


def stream_time_s(*, num_kernels: int, kernel_s: float, launch_s: float) -> float:
    """Time of equal kernels that the CPU launches one by one: the slower of launching and running decides.

    Args:
        num_kernels: >= 0.
        kernel_s: run time of one, seconds, >= 0.
        launch_s: CPU time of one launch, seconds, >= 0.

    Returns: seconds.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: launches run ahead of the device where they can; the pipeline's ends not counted.
    Source: n max(launch, run); interview question 14, extra question 24.

    >>> round(1e3 * stream_time_s(num_kernels=500, kernel_s=3e-6, launch_s=5e-6), 6)
    2.5
    """
    slower = max(require_number("kernel_s", kernel_s, least=0), require_number("launch_s", launch_s, least=0))
    return require_int("num_kernels", num_kernels, least=0) * slower


def graph_time_s(*, num_kernels: int, kernel_s: float, graph_launch_s: float = 0.0) -> float:
    """Time of equal kernels submitted as one graph.

    Args:
        num_kernels: >= 0.
        kernel_s: run time of one, seconds, >= 0.
        graph_launch_s: launch of the graph, seconds, >= 0.

    Returns: seconds.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: no gap between kernels inside the graph; capture not counted.
    Source: launch + n run; interview question 14, extra question 24.

    >>> round(1e3 * graph_time_s(num_kernels=600, kernel_s=2.5e-6, graph_launch_s=10e-6), 6)
    1.51
    """
    require_number("graph_launch_s", graph_launch_s, least=0)
    return graph_launch_s + require_int("num_kernels", num_kernels) * require_number("kernel_s", kernel_s, least=0)


def hiding_elements(*, launch_s: float, bytes_per_s: float, bytes_per_element: float = 8) -> float:
    """Elements from which on a memory-bound operator runs longer than its launch takes, so that launches are hidden.

    Args:
        launch_s: CPU time of one launch, seconds, >= 0.
        bytes_per_s: bandwidth that the operator reaches, bytes/s, > 0.
        bytes_per_element: read and written for each element, > 0; 8: FP32 in and out.

    Returns: elements.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: the operator moves each element once each way; the host launches ahead.
    Source: bytes / bandwidth = launch, solved for the elements; interview question 14.

    >>> round(hiding_elements(launch_s=4e-6, bytes_per_s=4.3e12))
    2150000
    """
    require_number("launch_s", launch_s, least=0)
    require_number("bytes_per_s", bytes_per_s, above=0)
    return launch_s * bytes_per_s / require_number("bytes_per_element", bytes_per_element, above=0)


def padding_waste_share(*, batch: int, captured: Sequence[int]) -> float:
    """Share of a captured graph's rows that are padding for this batch.

    Args:
        batch: rows that are needed, >= 1.
        captured: batch sizes that were captured, at least one not below `batch`.

    Returns: a fraction in [0, 1).
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: the smallest graph that fits is replayed.
    Source: 1 - batch / captured; extra interview question 24.

    >>> padding_waste_share(batch=33, captured=[1, 2, 4, 8, 16, 32, 64])
    0.484375
    """
    require_int("batch", batch, least=1)
    fitting = [size for size in captured if require_int("captured", size, least=1) >= batch]
    if not fitting:
        raise ValueError(f"captured={list(captured)!r}: expected a size of at least batch={batch}")
    return 1 - batch / min(fitting)


def bytes_in_flight_needed(*, bytes_per_s: float, latency_s: float, num_sms: int = 1) -> float:
    """Bytes that must be under way to keep a memory busy, of the device or of each SM.

    Args:
        bytes_per_s: bandwidth, > 0.
        latency_s: of one access, seconds, >= 0.
        num_sms: SMs that share the load, >= 1.

    Returns: bytes.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: a steady stream; latency does not grow with load.
    Source: Little's law, bandwidth x latency; interview question 14.

    >>> round(bytes_in_flight_needed(bytes_per_s=3.35e12, latency_s=600e-9, num_sms=132) / 1024, 1)
    14.9
    """
    require_number("bytes_per_s", bytes_per_s, above=0)
    return bytes_per_s * require_number("latency_s", latency_s, least=0) / require_int("num_sms", num_sms, least=1)


def bytes_in_flight(*, num_warps: int, loads_per_lane: int = 1, bytes_per_load: int = 16) -> int:
    """Bytes that resident warps have under way.

    Args:
        num_warps: warps on the SM, >= 0.
        loads_per_lane: independent loads that a lane has issued, >= 0.
        bytes_per_load: of one lane, >= 1 (at most 16).

    Returns: bytes.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: warps of 32 lanes, all of them loading.
    Source: 32 x warps x loads x bytes; interview question 14.

    >>> bytes_in_flight(num_warps=4, loads_per_lane=8), bytes_in_flight(num_warps=32)
    (16384, 16384)
    """
    loads = require_int("num_warps", num_warps) * require_int("loads_per_lane", loads_per_lane)
    if require_int("bytes_per_load", bytes_per_load, least=1) > 16:
        raise ValueError(f"bytes_per_load={bytes_per_load!r}: expected at most 16, the widest load of a lane")
    return 32 * loads * bytes_per_load
