"""Routing between prefill and decode nodes: printed decisions, hand seconds, the break-even put back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import pd_routing

NODE = dict(kv_bytes_per_token=327680, link_bytes_per_s=50e9, prefill_tokens_per_s=20000, decode_tokens_per_s=10000)
rates = st.floats(100, 1e5)


def test_printed_decisions():
    """Interview question 6: a short suffix stays with its long prefix, a long prompt without one does not."""
    best = [pd_routing.routes(hit_tokens=h, miss_tokens=m, interference_s_per_token=5e-5, **NODE)["best"]
            for h, m in ((100000, 200), (0, 20000))]
    assert best == ["stay", "move"]


def test_hand_seconds():
    """Rates 100 and 10 tokens/s, 1 s of link for 100 tokens: 20 missing of 1000 take 2; 10 + 0.2 + 0.2; 10.2 + 0.2."""
    found = pd_routing.routes(
        hit_tokens=1000, miss_tokens=20, kv_bytes_per_token=1, link_bytes_per_s=100, prefill_tokens_per_s=100,
        decode_tokens_per_s=10, prefill_queue_s=1, decode_queue_s=3)
    assert [found[k] for k in ("stay_s", "move_s", "recompute_s")] == pytest.approx([5, 14.4, 14.4])
    assert found["best"] == "stay"


def test_recompute_wins_over_a_slow_link():
    slow = {**NODE, "link_bytes_per_s": 1e7}
    found = pd_routing.routes(hit_tokens=100, miss_tokens=0, prefill_queue_s=0, decode_queue_s=0, **slow)
    assert found["recompute_s"] < found["move_s"]


def test_printed_migrations():
    """Interview questions 6 and 8: 0.14 and 0.66 s, 22 steps of 30 ms; 10 s to compute again, 0.5 s to reload."""
    cost = [pd_routing.migration(num_tokens=100000, kv_bytes_per_token=b, link_bytes_per_s=50e9, step_s=0.03)
            for b in (70272, 327680)]
    assert [c["cost_s"] for c in cost] == pytest.approx([0.14, 0.66], abs=0.005)
    assert round(cost[1]["steps"]) == 22 and cost[1]["bytes"] == 32768000000
    times = pd_routing.restore_times(
        num_tokens=100000, kv_bytes_per_token=327680, prefill_tokens_per_s=10000, link_bytes_per_s=64e9)
    assert times == {"recompute_s": 10, "reload_s": pytest.approx(0.5, abs=0.05)}


@given(hit=st.integers(0, 10**5), queue=st.floats(0, 5), fast=rates, slow=rates, disturbed=st.floats(0, 1e-3))
def test_break_even_is_where_both_take_as_long(hit, queue, fast, slow, disturbed):
    node = dict(kv_bytes_per_token=1000, link_bytes_per_s=1e9, prefill_tokens_per_s=fast, decode_tokens_per_s=slow,
                interference_s_per_token=disturbed, prefill_queue_s=queue)
    edge = pd_routing.break_even_miss_tokens(hit_tokens=hit, **node)
    if edge is None:
        found = pd_routing.routes(hit_tokens=hit, miss_tokens=10**6, **node)
        assert found["stay_s"] <= found["move_s"] * (1 + 1e-9)
    elif edge < 1e9:
        for miss, stays in ((int(edge), True), (int(edge) + 1, False)):
            found = pd_routing.routes(hit_tokens=hit, miss_tokens=miss, **node)
            same = found["stay_s"] == pytest.approx(found["move_s"], rel=1e-9, abs=1e-12)
            assert same or (found["stay_s"] < found["move_s"]) == stays


@given(a=st.integers(0, 10**6), b=st.integers(0, 10**6), extra=st.floats(0, 10))
def test_a_longer_context_never_moves_cheaper(a, b, extra):
    cost = [pd_routing.migration(
        num_tokens=n, kv_bytes_per_token=10, link_bytes_per_s=1e6, step_s=0.1, restart_s=extra)["cost_s"]
        for n in sorted((a, b))]
    assert extra <= cost[0] <= cost[1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pd_routing.routes(hit_tokens=-1, miss_tokens=0, **NODE), "hit_tokens=-1"),
        (lambda: pd_routing.routes(hit_tokens=0, miss_tokens=0, **{**NODE, "link_bytes_per_s": 0}), "bytes_per_s=0"),
        (lambda: pd_routing.routes(hit_tokens=0, miss_tokens=0, prefill_queue_s=-1, **NODE), "prefill_queue_s=-1"),
        (lambda: pd_routing.break_even_miss_tokens(hit_tokens=0, **{**NODE, "decode_tokens_per_s": 0}),
         "decode_tokens_per_s=0"),
        (lambda: pd_routing.migration(num_tokens=1, kv_bytes_per_token=1, link_bytes_per_s=1, step_s=0), "step_s=0"),
        (lambda: pd_routing.migration(
            num_tokens=1, kv_bytes_per_token=1, link_bytes_per_s=1, step_s=1, margin_s=-1), "margin_s=-1"),
        (lambda: pd_routing.restore_times(
            num_tokens=1, kv_bytes_per_token=1, prefill_tokens_per_s=0, link_bytes_per_s=1), "prefill_tokens_per_s=0"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
