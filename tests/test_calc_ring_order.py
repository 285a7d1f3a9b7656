"""The order in which a ring adds up ranks: hand cases, a slow obvious version, and the model's layouts."""

import random

import pytest

from labkit.calc.checkpoint_resume import CONTROLS, REPORTED, bucket_names, first_mismatch, mlp_parameters, sum_order
from labkit.calc.checkpoint_resume import reordered_elements as reordered
from labkit.calc.checkpoint_save import (
    adamw_state_bytes,
    miss_rate_bound,
    save_cost_pct,
    size_for_cost_bytes,
)
from labkit.calc.ring_order import gloo_chunk_bytes, num_reordered, ring_ranks, sum_spans


def play_a_ring(world_size, chunk):
    """Pass a partial sum from rank to rank below, as messages; the last holder is the owner of the chunk."""
    order, rank = [], (chunk - 1) % world_size
    while not order or order[-1] != chunk:
        order.append(rank)
        rank = (rank - 1) % world_size
    return order


@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
def test_a_ring_ends_at_the_owner_of_the_chunk(world_size):
    for chunk in range(world_size):
        assert ring_ranks(chunk=chunk, world_size=world_size) == play_a_ring(world_size, chunk)
        assert ring_ranks(chunk=chunk, world_size=world_size)[-1] == chunk


def test_chunk_of_the_reports_gradients_by_hand():
    # 16,789,504 bytes are 17 segments of at most 1 MiB; four ranks need a multiple of 4, at least 8: 20, so 5 each.
    # 16,789,504 / 20 = 839,475.2, up to a multiple of 4: 839,476; times 5.
    assert gloo_chunk_bytes(total_bytes=16789504, world_size=4) == 5 * 839476


def element_by_element(parameters, buckets, world_size):
    """(name, index) -> chunk, one element at a time."""
    found = {}
    counts = {name: a * b for name, (a, b) in parameters}
    for bucket in buckets:
        elements = [(name, i) for name in bucket for i in range(counts[name])]
        length = gloo_chunk_bytes(total_bytes=4 * len(elements), world_size=world_size) // 4
        found |= {element: place // length for place, element in enumerate(elements)}
    return found


@pytest.mark.parametrize("seed", range(40))
def test_spans_and_counts_equal_the_slow_version(seed):
    rng = random.Random(seed)
    names = list("abcde")[: rng.randint(1, 5)]
    parameters = [[name, [rng.randint(1, 6), rng.randint(1, 30)]] for name in names]
    world_size = rng.choice([3, 4, 8])
    layouts = []
    for _ in range(2):
        shuffled = rng.sample(names, len(names))
        cut = rng.randint(0, len(names))
        layouts.append([bucket for bucket in (shuffled[:cut], shuffled[cut:]) if bucket])
    slow = [element_by_element(parameters, layout, world_size) for layout in layouts]
    for layout, by_element in zip(layouts, slow):
        spans = sum_spans(parameters=parameters, buckets=layout, world_size=world_size)
        assert {(s["name"], i): s["chunk"] for s in spans for i in range(s["start"], s["stop"])} == by_element
    changed = sum(slow[0][element] != slow[1][element] for element in slow[0])
    assert num_reordered(parameters=parameters, first=layouts[0], second=layouts[1], world_size=world_size) == changed


def test_two_ranks_have_one_order():
    assert set(reordered(world_size=2).values()) == {0}
    assert set(first_mismatch(world_size=2).values()) == {None}


@pytest.mark.parametrize("world_size", [4, 8])
def test_only_a_layout_that_changes_reorders(world_size):
    changed = reordered(world_size=world_size)
    assert changed["reducer warmed 3x"] == changed["buckets never rebuilt"] == 0
    assert all(changed[control] > 0 for control in (*REPORTED[:4], "one bucket throughout"))
    assert [first_mismatch(world_size=world_size)[control] for control in CONTROLS] == [4, 4, 4, 4, None, None, 4]


def test_one_bucket_has_the_same_size_and_another_order():
    initial, later = (bucket_names(control="one bucket throughout", stage=stage) for stage in ("initial", "later"))
    assert len(initial) == len(later) == 1 and initial[0] == later[0][::-1]


def test_the_order_covers_every_element_once():
    for spans in sum_order(control="fused AdamW", world_size=4).values():
        for name, shape in mlp_parameters():
            own = sorted((s["start"], s["stop"]) for s in spans if s["name"] == name)
            assert own[0][0] == 0 and all(a[1] == b[0] for a, b in zip(own, own[1:]))  # noqa: RUF007
            assert own[-1][1] == (shape[0] * shape[1] if len(shape) > 1 else shape[0])


def test_cost_of_a_save_by_hand():
    assert adamw_state_bytes(num_parameters=4197376) == 50_368_512
    # 100 MB at 100 MB/s is 1 s; hashing at 1 GB/s 0.1 s; a manifest 0.1 s.
    assert save_cost_pct(state_bytes=1e8, write_bytes_per_s=1e8, hash_bytes_per_s=1e9, fixed_s=0.1) == pytest.approx(20)
    size = size_for_cost_bytes(cost_pct=15, write_bytes_per_s=1e8, hash_bytes_per_s=1e9, fixed_s=0.1)
    assert save_cost_pct(
        state_bytes=size, write_bytes_per_s=1e8, hash_bytes_per_s=1e9, fixed_s=0.1) == pytest.approx(15)
    assert size_for_cost_bytes(cost_pct=5, write_bytes_per_s=1e8, hash_bytes_per_s=1e9, fixed_s=0.1) is None


def test_a_hash_beside_the_copy_costs_what_lasts_longer():
    own = dict(write_bytes_per_s=1e8, hash_bytes_per_s=1e9, fixed_s=0.05)
    # 100 MB are copied in 0.2 s while the hash takes 0.1 s: only the manifest's 0.05 s of 1 s is left. At 2 GB/s half
    # of the hash is.
    assert save_cost_pct(state_bytes=1e8, copy_bytes_per_s=5e8, **own) == pytest.approx(5)
    assert save_cost_pct(state_bytes=1e8, copy_bytes_per_s=2e9, **own) == pytest.approx(10)
    assert size_for_cost_bytes(cost_pct=5, copy_bytes_per_s=5e8, **own) == pytest.approx(1e8)
    assert size_for_cost_bytes(cost_pct=5, copy_bytes_per_s=2e9, **own) is None
    with pytest.raises(ValueError, match="copy_bytes_per_s=0"):
        save_cost_pct(state_bytes=1e8, copy_bytes_per_s=0, **own)


def test_no_miss_in_n_faults_leaves_three_in_n():
    for count in (30, 200, 1000):
        bound = miss_rate_bound(num_faults=count)
        assert (1 - bound) ** count == pytest.approx(0.05) and bound == pytest.approx(3 / count, rel=0.06)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: ring_ranks(chunk=4, world_size=4), "chunk=4: expected below world_size=4"),
    (lambda: gloo_chunk_bytes(total_bytes=10, world_size=2), "total_bytes=10: expected a multiple"),
    (lambda: sum_spans(parameters=[["a", [1]]], buckets=[["b"]], world_size=2), "buckets: hold"),
    (lambda: first_mismatch(world_size=4, save_step=1), "save_step=1"),
    (lambda: bucket_names(control="x", stage="initial"), "control='x'"),
    (lambda: miss_rate_bound(num_faults=10, confidence=1.0), "confidence=1.0"),
])
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
