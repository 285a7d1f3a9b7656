"""Cache traffic against a simulated LRU cache, line by line."""

from __future__ import annotations

from collections import OrderedDict

import pytest

from labkit.calc import cache_traffic as calc


def simulate(num_lines, capacity, *, calls=1, evict_reads_first=False):
    """A write-back LRU cache under `calls` passes of `y[i] = x[i]`; counts of all passes and dirty lines left."""
    cache: OrderedDict[tuple[str, int], bool] = OrderedDict()
    counts = {"read": 0, "written": 0, "hits": 0, "accesses": 0}

    def access(line, is_write):
        counts["accesses"] += 1
        if line in cache:
            counts["hits"] += 1
        else:
            counts["read"] += not is_write
            counts["hits"] += is_write  # a whole line is written: nothing is fetched, the tool calls it a hit
            if len(cache) >= capacity:
                clean = next((key for key, dirty in cache.items() if not dirty), None) if evict_reads_first else None
                victim = clean if clean is not None else next(iter(cache))
                counts["written"] += cache.pop(victim)
        cache[line] = is_write or cache.get(line, False)
        if not (evict_reads_first and not is_write):
            cache.move_to_end(line)

    for _ in range(calls):
        for i in range(num_lines):
            access(("x", i), False)
            access(("y", i), True)
    return counts, sum(cache.values())


@pytest.mark.parametrize(("num_lines", "capacity"), [(400, 100), (1000, 64), (40, 100), (50, 100), (51, 100), (3, 100)])
def test_cold_stream_matches_the_simulated_cache(num_lines, capacity):
    counts, dirty = simulate(num_lines, capacity)
    sizes = {"read_bytes": num_lines, "write_bytes": num_lines, "l2_bytes": capacity}
    assert abs(calc.retained_write_bytes(**sizes) - dirty) <= 1
    assert abs(calc.counted_write_bytes(**sizes) - counts["written"]) <= 1
    assert calc.counted_read_bytes(**sizes) == counts["read"]
    assert calc.stream_hit_share(read_bytes=num_lines, write_bytes=num_lines) == counts["hits"] / counts["accesses"]


@pytest.mark.parametrize(("num_lines", "capacity"), [(400, 100), (1000, 64), (40, 100), (3, 100)])
def test_several_passes_match_the_simulated_cache(num_lines, capacity):
    counts, dirty = simulate(num_lines, capacity, calls=3)
    sizes = {"read_bytes": num_lines, "write_bytes": num_lines, "l2_bytes": capacity}
    assert calc.counted_read_bytes(**sizes, passes=3) == counts["read"]
    assert abs(calc.counted_write_bytes(**sizes, passes=3) - counts["written"]) <= 1
    assert abs(calc.retained_write_bytes(**sizes) - dirty) <= 1


@pytest.mark.parametrize(("num_lines", "capacity"), [(400, 100), (1000, 64)])
def test_reads_that_leave_first_let_writes_fill_the_cache(num_lines, capacity):
    _, dirty = simulate(num_lines, capacity, evict_reads_first=True)
    kept = calc.retained_write_bytes(read_bytes=num_lines, write_bytes=num_lines, l2_bytes=capacity, read_copies=0.0)
    assert abs(kept - dirty) <= 1 and kept == capacity


@pytest.mark.parametrize(("num_lines", "capacity"), [(400, 100), (1000, 64)])
def test_reads_kept_twice_leave_less_room_for_writes(num_lines, capacity):
    """Every other line that is read takes two places, as in a cache of two halves."""
    cache: OrderedDict[tuple[str, int], bool] = OrderedDict()

    def put(key, is_dirty):
        if len(cache) >= capacity:
            cache.popitem(last=False)
        cache[key] = is_dirty

    for i in range(num_lines):
        put(("x", i), False)
        if i % 2:
            put(("x again", i), False)
        put(("y", i), True)
    sizes = {"read_bytes": num_lines, "write_bytes": num_lines, "l2_bytes": capacity, "read_copies": 1.5}
    assert abs(calc.retained_write_bytes(**sizes) - sum(cache.values())) <= 1
    assert not calc.fits_cache(**sizes) and calc.fits_cache(**{**sizes, "read_bytes": 1, "write_bytes": 1})


def test_edges_and_identities():
    assert calc.retained_write_bytes(read_bytes=5, write_bytes=0, l2_bytes=10) == 0
    assert calc.retained_write_bytes(read_bytes=0, write_bytes=0, l2_bytes=10) == 0
    assert calc.retained_write_bytes(read_bytes=0, write_bytes=100, l2_bytes=10) == 10
    for weight in (0.0, 0.3, 1.0, 1.5):
        sizes = {"read_bytes": 123.0, "write_bytes": 77.0, "l2_bytes": 50.0, "read_copies": weight}
        assert calc.retained_write_bytes(**sizes) + calc.counted_write_bytes(**sizes) == pytest.approx(77.0)
    assert calc.first_touch_faults(num_bytes=4097) == 2 and calc.first_touch_faults(num_bytes=0) == 0


@pytest.mark.parametrize(("call", "match"), [
    (lambda: calc.retained_write_bytes(read_bytes=-1, write_bytes=1, l2_bytes=1), "read_bytes"),
    (lambda: calc.retained_write_bytes(read_bytes=1, write_bytes=1, l2_bytes=0), "l2_bytes"),
    (lambda: calc.retained_write_bytes(read_bytes=1, write_bytes=1, l2_bytes=1, read_copies=-1), "read_copies"),
    (lambda: calc.counted_read_bytes(read_bytes=1, write_bytes=float("nan"), l2_bytes=1), "write_bytes"),
    (lambda: calc.stream_hit_share(read_bytes=0, write_bytes=0), "traffic"),
    (lambda: calc.first_touch_faults(num_bytes=1, page_bytes=0), "page_bytes"),
])  # fmt: skip
def test_bad_input_names_the_argument(call, match):
    with pytest.raises(ValueError, match=match):
        call()
