"""Prefix caching: printed figures, tokens walked block by block, birthday chance by enumeration."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import prefix_cache as pc

tokens = st.lists(st.integers(0, 3), max_size=20)


def test_printed_figures():
    """Interview questions 3 and 5, extra question 27."""
    assert pc.reusable_tokens(shared_tokens=100) == 96
    assert pc.reusable_tokens(shared_tokens=64, prompt_tokens=64) == 48
    assert 100 * pc.collision_chance(num_keys=10**9, hash_bits=64)["probability"] == pytest.approx(2.7, abs=0.05)
    assert pc.collision_chance(num_keys=10**9, hash_bits=256)["log10"] == pytest.approx(-59.4, abs=0.05)
    ratio = pc.dedup_ratio(num_sessions=64, shared_tokens=30000, private_tokens=2000)["ratio"]
    assert ratio == pytest.approx(13.0, abs=0.05)
    waste = [pc.reserved_waste(block_tokens=b, mean_tokens=1024, max_tokens=8192) for b in (16, 256)]
    assert [w["paged_tokens"] for w in waste] == [7.5, 127.5] and waste[0]["reserved_share"] == 0.875


@given(a=tokens, b=tokens, block=st.integers(1, 5))
def test_equal_keys_mean_equal_prefixes(a, b, block):
    """Slow version: walk both lists block by block until they differ."""
    expected = 0
    while (expected + 1) * block <= min(len(a), len(b)) and a[: (expected + 1) * block] == b[: (expected + 1) * block]:
        expected += 1
    found = pc.shared_blocks(first=a, second=b, block_tokens=block)
    assert found == {"leading": expected, "anywhere": expected}


def test_a_salt_reaches_every_block():
    same = dict(first=[1, 2, 3, 4, 5, 6], second=[1, 2, 3, 4, 5, 6], block_tokens=2)
    assert pc.shared_blocks(first_salt="a", second_salt="b", **same)["anywhere"] == 0
    assert pc.shared_blocks(first_salt="a", second_salt="a", **same)["anywhere"] == 3


@pytest.mark.parametrize(("keys", "bits"), [(2, 2), (3, 2), (3, 3), (4, 3)])
def test_chance_by_enumeration(keys, bits):
    """All assignments of keys to hashes; the bound is an approximation from below that is good to 20 % here."""
    every = list(itertools.product(range(2**bits), repeat=keys))
    exact = sum(len(set(x)) < keys for x in every) / len(every)
    found = pc.collision_chance(num_keys=keys, hash_bits=bits)["probability"]
    assert found <= exact and found == pytest.approx(exact, rel=0.2)


@given(keys=st.integers(2, 10**12), bits=st.integers(1, 512))
def test_more_bits_never_collide_more(keys, bits):
    a, b = (pc.collision_chance(num_keys=keys, hash_bits=n) for n in (bits, bits + 1))
    assert b["log10"] <= a["log10"] <= 0 and 0 <= b["probability"] <= a["probability"] <= 1


@given(shared=st.integers(0, 1000), block=st.integers(1, 64), extra=st.integers(0, 50))
def test_reuse_is_whole_blocks_and_leaves_a_token(shared, block, extra):
    prompt = max(1, shared + extra)
    found = pc.reusable_tokens(shared_tokens=shared, block_tokens=block, prompt_tokens=prompt)
    assert found % block == 0 and found <= min(shared, prompt - 1)
    assert found + block > min(shared, prompt - 1)


@given(sessions=st.integers(1, 500), shared=st.integers(0, 10**5), private=st.integers(1, 10**5))
def test_sharing_limits(sessions, shared, private):
    ratio = pc.dedup_ratio(num_sessions=sessions, shared_tokens=shared, private_tokens=private)["ratio"]
    assert 1 <= ratio <= sessions
    one = pc.reserved_waste(block_tokens=1, mean_tokens=shared, max_tokens=10**5)
    assert one["paged_tokens"] == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pc.reusable_tokens(shared_tokens=-1), "shared_tokens=-1"),
        (lambda: pc.reusable_tokens(shared_tokens=10, prompt_tokens=9), "prompt_tokens=9"),
        (lambda: pc.block_keys(tokens=[-1], block_tokens=1), "tokens=-1"),
        (lambda: pc.block_keys(tokens=[1], block_tokens=0), "block_tokens=0"),
        (lambda: pc.collision_chance(num_keys=1, hash_bits=8), "num_keys=1"),
        (lambda: pc.collision_chance(num_keys=2, hash_bits=5000), "hash_bits=5000"),
        (lambda: pc.dedup_ratio(num_sessions=1, shared_tokens=0, private_tokens=0), "at least one token"),
        (lambda: pc.reserved_waste(block_tokens=1, mean_tokens=9, max_tokens=8), "mean_tokens=9"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
