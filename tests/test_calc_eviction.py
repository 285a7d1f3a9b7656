"""Eviction: hand numbers, the order by brute force, least-recently-used against value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import eviction

seconds = st.floats(0, 100)


def test_hand_numbers():
    """Half a chance of saving min(8, 4) - 1 = 3 s is 1.5 s; on 6 bytes that is 0.25 s a byte."""
    block = dict(p_reuse=0.5, recompute_s=8.0, reload_s=4.0, hit_s=1.0)
    assert eviction.keep_benefit_s(**block) == 1.5
    assert eviction.value_per_byte(num_bytes=6, **block) == 0.25


def test_printed_tie_of_the_mixed_score():
    """Interview question 5: same bytes, chance and recompute time, but one reloads in 0.2 s: ten times less worth."""
    worth = [eviction.value_per_byte(num_bytes=1e6, p_reuse=0.5, recompute_s=2.0, reload_s=r) for r in (5.0, 0.2)]
    assert worth[0] / worth[1] == pytest.approx(10)


def test_printed_policies():
    """Interview question 5: 0 of 10 returns under LRU, 10 of 10 by value."""
    assert [eviction.paused_session_hits(p) for p in ("lru", "value")] == [0, 10]
    assert eviction.paused_session_hits("lru", other_blocks=4) == 10  # all of it fits
    assert eviction.paused_session_hits("lru", other_blocks=5) == 0


@given(p=st.floats(0, 1), recompute=seconds, reload=seconds, hit=seconds)
def test_benefit_limits(p, recompute, reload, hit):
    found = eviction.keep_benefit_s(p_reuse=p, recompute_s=recompute, reload_s=reload, hit_s=hit)
    assert 0 <= found <= p * min(recompute, reload)
    assert found <= eviction.keep_benefit_s(p_reuse=p, recompute_s=recompute, hit_s=hit)
    assert eviction.keep_benefit_s(p_reuse=0, recompute_s=recompute, reload_s=reload, hit_s=hit) == 0


@given(rows=st.lists(st.tuples(st.integers(1, 9), st.sampled_from([0.1, 0.5, 1.0]), seconds), max_size=8))
def test_order_is_by_worth(rows):
    blocks = [{"name": str(i), "num_bytes": b, "p_reuse": p, "recompute_s": t} for i, (b, p, t) in enumerate(rows)]
    order = eviction.eviction_order(blocks=blocks)
    worth = [p * t / b for b, p, t in (rows[int(name)] for name in order)]
    assert sorted(order, key=int) == [block["name"] for block in blocks]
    assert worth == pytest.approx(sorted(worth))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: eviction.keep_benefit_s(p_reuse=1.5, recompute_s=1), "p_reuse=1.5: expected a fraction"),
        (lambda: eviction.keep_benefit_s(p_reuse=1, recompute_s=-1), "recompute_s=-1"),
        (lambda: eviction.value_per_byte(num_bytes=0, p_reuse=1, recompute_s=1), "num_bytes=0"),
        (lambda: eviction.eviction_order(blocks=[{"num_bytes": 1}]), r"blocks\[0\]=.*expected a name"),
        (lambda: eviction.eviction_order(blocks=[{"name": "a", "num_bytes": 1}]), r"blocks\[0\]: .*p_reuse"),
        (lambda: eviction.paused_session_hits("fifo"), "policy='fifo'"),
        (lambda: eviction.paused_session_hits("lru", session_blocks=9), "session_blocks=9"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
