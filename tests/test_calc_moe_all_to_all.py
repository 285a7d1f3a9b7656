"""Expert-parallel all-to-all: printed MiB, copies counted one by one, expected ranks by enumeration."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import moe_all_to_all as a2a

MIB = 2**20
SEED = dict(local_tokens=16, top_k=8, hidden=7168, num_ranks=32)


def test_printed_volumes():
    """Interview question 11: 1.75 and 1.695 MiB for a rank; 54.25, 108.5, 81.375, 217 and 162.75 MiB for the group."""
    assert a2a.bytes_per_rank(remote_only=False, **SEED) / MIB == 1.75
    assert a2a.bytes_per_rank(**SEED) / MIB == pytest.approx(1.695, abs=5e-4)
    both, fp8 = a2a.group_bytes(**SEED), a2a.group_bytes(dispatch_bytes=1, **SEED)
    assert (both["dispatch"] / MIB, both["total"] / MIB, both["sent_and_received"] / MIB) == (54.25, 108.5, 217)
    assert (fp8["total"] / MIB, fp8["sent_and_received"] / MIB) == (81.375, 162.75)


def test_printed_scales():
    """Interview question 11: FP32 scales for 128 channels add 3.125 % and make it 82.2 MiB."""
    assert a2a.row_bytes(hidden=7168, bytes_per_element=1, scale_group=128) / 7168 == 1.03125
    total = a2a.group_bytes(dispatch_bytes=1, scale_group=128, **SEED)["total"]
    assert total / MIB == pytest.approx(82.2, abs=0.05)
    assert a2a.metadata_bytes(local_tokens=16, top_k=8) == 1024


def test_group_by_counting_every_copy():
    """Slow version: each rank's pairs spread evenly over ranks; every copy that leaves its rank is one row."""
    ranks, tokens, top_k, hidden = 4, 8, 2, 10
    moved = 0
    for source in range(ranks):
        for pair in range(tokens * top_k):
            moved += 2 * hidden * (pair % ranks != source)
    found = a2a.group_bytes(local_tokens=tokens, top_k=top_k, hidden=hidden, num_ranks=ranks)
    assert found["dispatch"] == moved
    assert ranks * a2a.bytes_per_rank(local_tokens=tokens, top_k=top_k, hidden=hidden, num_ranks=ranks) == moved


@pytest.mark.parametrize(("experts", "ranks", "top_k"), [(8, 4, 2), (9, 3, 4), (6, 6, 3), (6, 1, 2)])
def test_distinct_ranks_by_enumeration(experts, ranks, top_k):
    """Slow version: every set of experts, the ranks they live on."""
    choices = list(itertools.combinations(range(experts), top_k))
    mean = sum(len({e // (experts // ranks) for e in choice}) for choice in choices) / len(choices)
    assert a2a.distinct_ranks(num_experts=experts, num_ranks=ranks, top_k=top_k) == pytest.approx(mean)


def test_printed_duplicates():
    """Interview question 11: 7.27 ranks, 9.2 % saved."""
    assert a2a.distinct_ranks(num_experts=256, num_ranks=32, top_k=8) == pytest.approx(7.27, abs=0.005)
    saved = a2a.saved_by_rank_share(num_experts=256, num_ranks=32, top_k=8)
    assert 100 * saved == pytest.approx(9.2, abs=0.05)


@given(tokens=st.integers(0, 200), top_k=st.integers(1, 16), hidden=st.integers(1, 4096), ranks=st.integers(1, 256))
def test_limits(tokens, top_k, hidden, ranks):
    """One rank sends nothing; remote bytes stay below the logical ones; scales only add."""
    shape = dict(local_tokens=tokens, top_k=top_k, hidden=hidden, num_ranks=ranks)
    remote, logical = a2a.bytes_per_rank(**shape), a2a.bytes_per_rank(remote_only=False, **shape)
    assert remote <= logical and (remote == 0) == (ranks == 1 or tokens == 0)
    assert a2a.group_bytes(**shape)["dispatch"] == pytest.approx(ranks * remote)
    assert a2a.group_bytes(scale_group=128, **shape)["total"] >= a2a.group_bytes(**shape)["total"]


@given(ranks=st.sampled_from([1, 2, 4, 8, 16]), top_k=st.integers(1, 16))
def test_distinct_ranks_limits(ranks, top_k):
    found = a2a.distinct_ranks(num_experts=16, num_ranks=ranks, top_k=top_k)
    assert 1 - 1e-9 <= found <= min(ranks, top_k) + 1e-9


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: a2a.row_bytes(hidden=0), "hidden=0"),
        (lambda: a2a.row_bytes(hidden=8, scale_group=0), "scale_group=0"),
        (lambda: a2a.bytes_per_rank(local_tokens=-1, top_k=1, hidden=1, num_ranks=1), "local_tokens=-1"),
        (lambda: a2a.bytes_per_rank(local_tokens=1, top_k=1, hidden=1, num_ranks=0), "num_ranks=0"),
        (lambda: a2a.group_bytes(combine_bytes=0, **SEED), "combine_bytes=0"),
        (lambda: a2a.metadata_bytes(local_tokens=1, top_k=1, bytes_per_pair=-8), "bytes_per_pair=-8"),
        (lambda: a2a.distinct_ranks(num_experts=10, num_ranks=3, top_k=1), "num_ranks=3"),
        (lambda: a2a.distinct_ranks(num_experts=4, num_ranks=2, top_k=5), "top_k=5"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
