"""Serving capacity: the printed plan, batching played step by step, limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import serving

SEED = dict(batch=64, step_s=0.045, output_tokens=400, prefill_tokens_per_s=50000, miss_tokens=2000)
positive = st.floats(0.01, 1e4)


def test_printed_plan():
    """Interview question 10: 1422 token/s, 3.56 and 2.49 req/s, 25 and 17.5 req/s, 7 D for a P, 2 P for 8 D."""
    plan = serving.pd_plan(num_decode=8, **SEED)
    assert plan["decode_tokens_per_s"] == pytest.approx(1422, abs=0.5)
    rates = [plan[k] for k in ("decode_requests_per_s", "decode_requests_per_s_safe", "prefill_requests_per_s",
                               "prefill_requests_per_s_safe")]
    assert rates == pytest.approx([3.56, 2.49, 25, 17.5], abs=0.005)
    assert plan["decode_per_prefill"] == pytest.approx(7.03, abs=0.005)
    assert plan["prefill_replicas"] == 2 and plan["prefill_exact"] == pytest.approx(1.14, abs=0.005)
    assert 100 * plan["prefill_load"] == pytest.approx(39.8, abs=0.05)
    one = serving.prefill_load_share(prefill_exact=plan["prefill_exact"], num_prefill=1)
    assert 100 * one == pytest.approx(79.6, abs=0.05)


def test_printed_variations():
    """Interview question 10: half the misses feed 14.1 D; half the output needs 3 P; 2.5 and 11.5 GB/s of KV."""
    assert serving.pd_plan(**{**SEED, "miss_tokens": 1000})["decode_per_prefill"] == pytest.approx(14.1, abs=0.05)
    assert serving.pd_plan(**{**SEED, "output_tokens": 200}, num_decode=8)["prefill_replicas"] == 3
    link = [serving.kv_link_bytes_per_s(requests_per_s=17.5, transferred_tokens=2000, kv_bytes_per_token=b) / 1e9
            for b in (70272, 327680)]
    assert link == pytest.approx([2.5, 11.5], abs=0.05)
    fits = [serving.batch_fits(lengths=x, pool_tokens=300000)["fits"] for x in ([[64, 4096]], [[8, 32768], [56, 1024]])]
    assert fits == [True, False]


def test_printed_scheduling():
    """Interview question 8, extra question 26."""
    found = serving.batching_iterations(lengths=[256, 16, 16, 16] * 4, num_slots=4)
    assert found == {"whole_batches": 1024, "continuous": 352}
    assert serving.work_ratio(heavy=[2, 100000, 10000], light=[10, 2000, 20]) == 5000
    assert [serving.long_job_slots(num_ticks=100, age_every=a) for a in (None, 10)] == [0, 10]
    plan = serving.chunk_plan(tpot_s=0.05, decode_s=0.02, prefill_tokens_per_s=30000, prompt_tokens=32768)
    assert plan == pytest.approx({"chunk_tokens": 900, "ttft_s": 1.85})


def test_an_exact_number_of_replicas_is_not_rounded_up():
    plan = serving.pd_plan(
        batch=1, step_s=0.1, output_tokens=1, prefill_tokens_per_s=30, miss_tokens=1, num_decode=3)
    assert plan["prefill_exact"] == pytest.approx(1) and plan["prefill_replicas"] == 1


@given(batch=st.integers(1, 512), step=positive, out=positive, rate=positive, miss=positive, num=st.integers(1, 50))
def test_plan_identities(batch, step, out, rate, miss, num):
    """The planned load is never exceeded, one replica fewer would exceed it, and the rates balance."""
    args = dict(batch=batch, step_s=step, output_tokens=out, prefill_tokens_per_s=rate, miss_tokens=miss)
    plan = serving.pd_plan(num_decode=num, **args)
    n, exact = plan["prefill_replicas"], plan["prefill_exact"]
    assert n >= 1 and exact <= n * (1 + 1e-9) and (n - 1) <= exact * (1 + 1e-9)
    assert plan["prefill_load"] == pytest.approx(0.7 * exact / n)
    assert plan["decode_per_prefill"] * exact == pytest.approx(num)


@given(lengths=st.lists(st.integers(1, 30), max_size=25), slots=st.integers(1, 6))
def test_batching_step_by_step(lengths, slots):
    """Slow version: one iteration at a time."""
    waiting, running, steps = list(lengths), [], 0
    while waiting or running:
        while waiting and len(running) < slots:
            running.append(waiting.pop(0))
        running = [left - 1 for left in running if left > 1]
        steps += 1
    found = serving.batching_iterations(lengths=lengths, num_slots=slots)
    assert found["continuous"] == steps <= found["whole_batches"]
    assert found["continuous"] * slots >= sum(lengths)


@given(tpot=st.floats(0.01, 1), fixed=st.floats(0, 0.5), each=st.floats(1e-4, 0.1), pool=st.integers(0, 10**6),
       tokens=st.integers(1, 10**5))
def test_largest_batch_fits_and_one_more_does_not(tpot, fixed, each, pool, tokens):
    found = serving.largest_batch(
        tpot_s=tpot, fixed_s=fixed, per_sequence_s=each, pool_tokens=pool, tokens_per_sequence=tokens)
    b = found["batch"]
    assert b == 0 or (fixed + b * each <= tpot * (1 + 1e-9) and b * tokens <= pool)
    assert fixed + (b + 1) * each > tpot * (1 - 1e-9) or (b + 1) * tokens > pool


@given(counts=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 500)), max_size=5), block=st.integers(1, 64))
def test_held_tokens_block_by_block(counts, block):
    held = sum(len(range(0, tokens, block)) * block for count, tokens in counts for _ in range(count))
    assert serving.batch_fits(lengths=counts, pool_tokens=held, block_tokens=block) == {"tokens": held, "fits": True}
    assert held == 0 or not serving.batch_fits(lengths=counts, pool_tokens=held - 1, block_tokens=block)["fits"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: serving.pd_plan(**{**SEED, "batch": 0}), "batch=0"),
        (lambda: serving.pd_plan(**{**SEED, "step_s": 0}), "step_s=0"),
        (lambda: serving.pd_plan(decode_utilisation=0, **SEED), "decode_utilisation=0"),
        (lambda: serving.prefill_load_share(prefill_exact=1, num_prefill=0), "num_prefill=0"),
        (lambda: serving.kv_link_bytes_per_s(
            requests_per_s=-1, transferred_tokens=1, kv_bytes_per_token=1), "requests_per_s=-1"),
        (lambda: serving.batch_fits(lengths=[[1, 2, 3]], pool_tokens=1), r"lengths\[0\]="),
        (lambda: serving.largest_batch(
            tpot_s=1, fixed_s=0, per_sequence_s=0, pool_tokens=1, tokens_per_sequence=1), "per_sequence_s=0"),
        (lambda: serving.chunk_plan(
            tpot_s=0.02, decode_s=0.02, prefill_tokens_per_s=1, prompt_tokens=1), "decode_s=0.02: expected less"),
        (lambda: serving.batching_iterations(lengths=[0], num_slots=1), r"lengths\[0\]=0"),
        (lambda: serving.work_ratio(heavy=[1, 2], light=[1, 1, 1]), "heavy="),
        (lambda: serving.work_ratio(heavy=[1, 1, 1], light=[1, 0, 1]), "light=0"),
        (lambda: serving.long_job_slots(num_ticks=1, age_every=0), "age_every=0"),
        (lambda: serving.kv_read_work(num_requests=1, context_tokens=-1, remaining_tokens=1), "context_tokens=-1"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
