"""The capacity planner: what the report's logs print, a plan that holds against every order of arrival, bad input."""

import random

import pytest

from labkit.calc.capacity_plan import cache_bytes_left, printed_concurrency, serving_plan
from labkit.calc.scheduler import Job, SchedulerConfig
from labkit.calc.scheduler_runs import simulate

KV = 57344


@pytest.mark.parametrize(("cache", "blocks", "tokens", "printed"), [
    (2**30, 1170, 18720, 9.14), (4 * 2**30, 4681, 74896, 36.57), (225200 * KV, 14075, 225200, 109.96)])
def test_what_the_report_s_logs_print(cache, blocks, tokens, printed):
    plan = serving_plan(kv_bytes_per_token=KV, cache_bytes=cache, max_num_seqs=32, num_requests=16)
    assert (plan["blocks"], plan["tokens"], round(plan["printed_concurrency"], 2)) == (blocks, tokens, printed)


def test_a_cpu_s_blocks_of_32_are_as_many_tokens():
    plan = serving_plan(kv_bytes_per_token=512, num_blocks=585, block_tokens=32, max_num_seqs=32, num_requests=16)
    assert plan["tokens"] == 18720 and plan["quiet_concurrency"] == 12
    assert plan["printed_concurrency"] == pytest.approx(9.14, abs=0.005)


@pytest.mark.parametrize("seed", range(4))
def test_the_safe_number_is_safe_whatever_the_order_of_arrival(seed):
    rng = random.Random(seed)
    blocks, block, prompt, output = rng.randrange(60, 200), rng.choice([4, 16]), rng.randrange(20, 90), 40
    plan = serving_plan(kv_bytes_per_token=KV, num_blocks=blocks, block_tokens=block, prompt_tokens=prompt,
                        output_tokens=output, max_num_batched_tokens=64)
    engine = SchedulerConfig(num_blocks=blocks, block_size=block, max_num_seqs=256, max_num_batched_tokens=64,
                             enable_prefix_caching=False)
    count = plan["safe_concurrency"]
    jobs = [Job(prompt_ids=(i,) * prompt, output_tokens=output) for i in range(count)]
    for _ in range(6):
        arrivals = sorted(rng.randrange(60) for _ in range(count))
        assert simulate(jobs, engine, arrivals=arrivals)["preemptions"] == 0
    assert plan["quiet_concurrency"] >= count >= 1


def test_one_above_the_quiet_number_is_not_quiet():
    plan = serving_plan(kv_bytes_per_token=KV, num_blocks=700, prompt_tokens=40, output_tokens=200,
                        max_num_batched_tokens=64, max_num_seqs=100)
    engine = SchedulerConfig(num_blocks=700, block_size=16, max_num_seqs=100, max_num_batched_tokens=64,
                             enable_prefix_caching=False)
    quiet = plan["quiet_concurrency"]
    seen = [simulate([Job(prompt_ids=(i,) * 40, output_tokens=200) for i in range(4 * c)], engine,
                     concurrency=c)["preemptions"] for c in (quiet, quiet + 1)]
    assert seen[0] == 0 < seen[1]
    assert quiet > plan["safe_concurrency"], "requests that enter over many steps are not all long at once"


def test_limits():
    common = {"kv_bytes_per_token": KV, "num_requests": 8}
    assert serving_plan(**common, num_blocks=0)["limited_by"] == "request"
    none = serving_plan(**common, num_blocks=96)
    assert none["quiet_concurrency"] == none["safe_concurrency"] == 0, "the null block: 95 are left"
    one = serving_plan(**common, num_blocks=97)  # a second prompt never fits beside the first: it waits
    assert (one["safe_concurrency"], one["quiet_concurrency"], one["limited_by"]) == (1, 256, "admission")
    many = serving_plan(**common, num_blocks=10**6, max_num_seqs=8)
    assert (many["limited_by"], many["quiet_concurrency"]) == ("max_num_seqs", 8)


def test_bytes_left_for_the_cache():
    assert cache_bytes_left(gpu_bytes=1000, weight_bytes=300, other_bytes=50, utilisation=0.9) == 550
    assert cache_bytes_left(gpu_bytes=1000, weight_bytes=900) == 0
    assert printed_concurrency(num_blocks=10, block_tokens=16, max_model_len=33) == pytest.approx(10 / 3)


@pytest.mark.parametrize(("wrong", "name"), [
    ({}, "cache_bytes, num_blocks"), ({"cache_bytes": 1, "num_blocks": 2}, "cache_bytes, num_blocks"),
    ({"num_blocks": 9, "kv_bytes_per_token": 0}, "kv_bytes"), ({"num_blocks": 9, "prompt_tokens": 0}, "prompt"),
    ({"num_blocks": 9, "prompt_tokens": 2000}, "max_model_len"), ({"num_blocks": -1}, "num_blocks"),
    ({"num_blocks": 99, "block_tokens": 0}, "block"), ({"num_blocks": 999, "max_num_seqs": 0}, "max_num_seqs"),
])
def test_bad_input_names_the_argument(wrong, name):
    with pytest.raises(ValueError, match=name):
        serving_plan(**{"kv_bytes_per_token": KV, **wrong})


def test_a_share_that_is_none_is_refused():
    with pytest.raises(ValueError, match="utilisation"):
        cache_bytes_left(gpu_bytes=1, weight_bytes=0, utilisation=1.1)
