"""Collectives: nccl-tests' factors, bytes counted in simulated rings and trees, and identities."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import collectives

ranks = st.integers(2, 64)


def simulated_ring(n, *, all_reduce):
    """Slow version: pass chunks around and count those that rank 0 sends until everyone has everything."""
    sent = 0
    partial = [{c: {r} for c in range(n)} for r in range(n)]  # rank -> chunk -> ranks already added
    for step in range(n - 1):
        moved = [((r - step) % n, partial[r][(r - step) % n]) for r in range(n)]
        for r, (chunk, who) in enumerate(moved):
            partial[(r + 1) % n][chunk] = partial[(r + 1) % n][chunk] | who
        sent += 1
    assert all(any(len(who) == n for who in rank.values()) for rank in partial)
    if not all_reduce:
        return sent / n
    done = [{c for c, who in rank.items() if len(who) == n} for rank in partial]
    while not all(len(d) == n for d in done):
        before = [set(d) for d in done]
        for r in range(n):
            missing = before[r] - before[(r + 1) % n]
            done[(r + 1) % n] |= set(list(missing)[:1])
        sent += 1
    return sent / n


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_ring_bytes_match_a_simulated_ring(n):
    for name in ("all_gather", "reduce_scatter", "all_to_all"):
        expected = simulated_ring(n, all_reduce=False)
        assert collectives.ring_bytes_per_rank(name, size_bytes=1, world_size=n) == pytest.approx(expected)
    expected = simulated_ring(n, all_reduce=True)
    assert collectives.ring_bytes_per_rank("all_reduce", size_bytes=1, world_size=n) == pytest.approx(expected)


def simulated_tree(n):
    """Slow version: send up and down along every edge of a complete binary tree, count per rank."""
    sent = [0] * (n + 1)
    for node in range(2, n + 1):
        sent[node] += 1  # up to the parent
        sent[node // 2] += 1  # down from the parent
    return sum(sent), max(sent)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 31, 64])
def test_tree_bytes_match_a_simulated_tree(n):
    total, most = simulated_tree(n)
    assert collectives.tree_all_reduce_bytes(size_bytes=10, world_size=n) == {"total": 10 * total, "most": 10 * most}


def test_printed_factors():
    """nccl-tests doc/PERFORMANCE.md; 1.75 on 8 ranks and 1.0 on 2 in the report."""
    factor = collectives.busbw_factor
    assert (factor("all_reduce", world_size=8), factor("all_reduce", world_size=2)) == (1.75, 1.0)
    for name in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        assert factor(name, world_size=4) == 0.75
    for name in ("broadcast", "reduce", "send_recv"):
        assert factor(name, world_size=4) == 1.0


@pytest.mark.parametrize(
    ("size_kib", "time_us", "printed_gb_per_s"),
    [(1, 51.05, 0.04), (256, 142.5, 3.22), (4096, 1028.9, 7.13), (262144, 64811.0, 7.25)],
)
def test_report_rows(size_kib, time_us, printed_gb_per_s):
    """Report section 4: best time and bus bandwidth by size, 8 ranks."""
    bus = collectives.busbw_bytes_per_s("all_reduce", size_bytes=size_kib * 1024, time_s=time_us / 1e6, world_size=8)
    assert bus / 1e9 == pytest.approx(printed_gb_per_s, abs=0.005)


@given(n=ranks, size=st.floats(1, 1e10))
def test_all_reduce_is_reduce_scatter_plus_all_gather(n, size):
    parts = [
        collectives.ring_bytes_per_rank(name, size_bytes=size, world_size=n)
        for name in ("reduce_scatter", "all_gather")
    ]
    assert collectives.ring_bytes_per_rank("all_reduce", size_bytes=size, world_size=n) == pytest.approx(sum(parts))


@given(n=ranks, size=st.floats(1, 1e10), time=st.floats(1e-6, 10))
def test_bus_bandwidth_is_what_a_ring_puts_on_the_wire(n, size, time):
    for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        wire = collectives.ring_bytes_per_rank(name, size_bytes=size, world_size=n) / time
        bus = collectives.busbw_bytes_per_s(name, size_bytes=size, time_s=time, world_size=n)
        assert bus == pytest.approx(wire)


@given(n=ranks, size=st.floats(0, 1e10), alpha=st.floats(0, 1e-3))
def test_alpha_beta_limits(n, size, alpha):
    """Large messages see bandwidth only, empty ones latency only; a tree has the shorter latency from 3 ranks on."""
    time = lambda s, a, algorithm: collectives.all_reduce_time_s(  # noqa: E731
        size_bytes=s, world_size=n, alpha_s=a, bytes_per_s=1e9, algorithm=algorithm)
    assert time(size, 0, "ring") == pytest.approx(2 * (n - 1) / n * size / 1e9)
    assert time(0, alpha, "ring") == pytest.approx(2 * (n - 1) * alpha)
    assert time(size, 0, "tree") >= time(size, 0, "ring")
    assert time(0, alpha, "tree") <= time(0, alpha, "ring")


def test_ring_stages():
    """Interview erratum E01: a ring of 8 makes 7 transfers per pass, so 14 in an all-reduce."""
    assert collectives.num_steps("ring", world_size=8) == 14
    assert [collectives.num_steps("tree", world_size=n) for n in (1, 2, 3, 4, 8, 9)] == [0, 2, 4, 4, 6, 8]
    assert collectives.all_reduce_time_s(size_bytes=9, world_size=1, alpha_s=1, bytes_per_s=1, algorithm="tree") == 0


@given(alpha=st.floats(1e-7, 1e-3), bandwidth=st.floats(1e8, 1e12))
def test_fit_recovers_what_made_the_data(alpha, bandwidth):
    sizes = [2.0**k for k in range(10, 28)]
    fit = collectives.alpha_beta_fit(sizes_bytes=sizes, times_s=[alpha + s / bandwidth for s in sizes])
    assert fit["bytes_per_s"] == pytest.approx(bandwidth, rel=1e-6)
    assert fit["alpha_s"] == pytest.approx(alpha, rel=1e-6, abs=1e-9 * max(sizes) / bandwidth)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: collectives.busbw_factor("allreduce", world_size=2), "collective='allreduce'"),
        (lambda: collectives.busbw_factor("all_reduce", world_size=1), "world_size=1"),
        (lambda: collectives.algbw_bytes_per_s(size_bytes=1, time_s=0), "time_s=0"),
        (lambda: collectives.algbw_bytes_per_s(size_bytes=-1, time_s=1), "size_bytes=-1"),
        (lambda: collectives.ring_bytes_per_rank("broadcast", size_bytes=1, world_size=2), "collective='broadcast'"),
        (lambda: collectives.num_steps("star", world_size=2), "algorithm='star'"),
        (lambda: collectives.all_reduce_time_s(size_bytes=1, world_size=2, alpha_s=-1, bytes_per_s=1), "alpha_s=-1"),
        (lambda: collectives.alpha_beta_fit(sizes_bytes=[1], times_s=[1, 2]), "times_s: 2 values"),
        (lambda: collectives.alpha_beta_fit(sizes_bytes=[1, 1], times_s=[1, 2]), "sizes_bytes"),
        (lambda: collectives.alpha_beta_fit(sizes_bytes=[1, 2], times_s=[2, 1]), "times_s: slope"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
