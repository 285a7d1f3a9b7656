"""Predictions of the preemption lab: the report's counts, times by hand, what arrivals change."""

import pytest

from labkit.calc.preemption_prediction import (
    equal_jobs,
    kv_curve,
    preemptions_by_gap,
    round_prediction,
    step_seconds,
)
from labkit.calc.scheduler import SchedulerConfig, Step

LOAD = {"num_requests": 16, "prompt_tokens": 1024, "output_tokens": 512}


def config(num_blocks=1170, block_size=16, **changes):
    return SchedulerConfig(**{"num_blocks": num_blocks, "block_size": block_size, "max_num_seqs": 32,
                              "max_num_batched_tokens": 2048, "enable_prefix_caching": False, **changes})


@pytest.mark.parametrize(("blocks", "block", "concurrency", "seen"), [
    (1170, 16, 8, (0, 0, 1028, 65.7)), (1170, 16, 16, (4, 5141, 889, 100.0)), (4681, 16, 16, (0, 0, 520, 32.8)),
    (585, 32, 16, (4, 5082, 901, 99.8)), (146, 128, 16, (4, 4973, 905, 100.0))])
def test_counts_of_the_report_on_any_block_size(blocks, block, concurrency, seen):
    """The last two rows are blocks that a CPU's attention takes; vLLM counted 901 and 905 steps there."""
    told = round_prediction(config(blocks, block), concurrency=concurrency, step_ms=1, token_us=0, **LOAD)
    assert (told["preemptions"], told["recomputed_tokens"], told["num_steps"], round(told["peak_kv_pct"], 1)) == seen
    assert len(told["preempted_at"]) == told["preemptions"] and told["peak_running"] == concurrency


def test_first_tokens_do_not_see_the_size_of_the_cache():
    """All prompts fit into both caches: the report's lower TTFT of the small one is not the schedule's."""
    few, many = (round_prediction(config(n), concurrency=16, step_ms=10, token_us=20, **LOAD) for n in (1170, 4681))
    assert few["first_steps"] == many["first_steps"] and few["ttft_s"] == many["ttft_s"]
    assert few["tokens_per_s"] < 0.7 * many["tokens_per_s"] and few["tpot_s"] > many["tpot_s"]


def test_times_by_hand():
    """Two requests of 4 + 3 tokens: both prompts in step 1, then two steps of decoding."""
    told = round_prediction(config(64), concurrency=2, num_requests=2, prompt_tokens=4, output_tokens=3, step_ms=10,
                            token_us=1000, request_us=500)
    assert told["wall_s"] == pytest.approx(0.018 + 2 * 0.011) and told["ttft_s"] == pytest.approx(0.018)
    assert told["tpot_s"] == pytest.approx(0.011) and told["e2el_s"] == pytest.approx(0.040)
    assert told["tokens_per_s"] == pytest.approx(14 / 0.040)
    one = round_prediction(config(64), concurrency=1, num_requests=2, prompt_tokens=4, output_tokens=3, step_ms=10,
                           token_us=0)
    assert one["ttft_s"] == pytest.approx(0.010) and one["e2el_s"] == pytest.approx(0.030), "from the end before"


def test_arrivals_that_were_seen():
    told = round_prediction(config(64), concurrency=1, num_requests=2, prompt_tokens=4, output_tokens=3, step_ms=10,
                            token_us=0, arrivals=[0, 2])
    assert told["first_steps"] == [1, 3] and told["num_steps"] == 5
    assert told["ttft_s"] == pytest.approx(0.010) and told["wall_s"] == pytest.approx(0.050)


def test_a_step_that_computes_a_past_again_pays_for_it():
    again = Step(context_requests=0, context_tokens=0, generation_requests=3, generation_tokens=103, running=3,
                 waiting=0, usage=0.5)
    assert step_seconds([again], step_ms=1, token_us=10, request_us=0) == [pytest.approx(0.002)]


def test_gaps_between_arrivals():
    seen = preemptions_by_gap(config(), gaps=[0, 6, 24, 40], **LOAD)
    assert seen == {"0": 4, "6": 5, "24": 3, "40": 0}
    old = config(reserve_full_prompt=False, max_num_batched_tokens=1024)
    assert preemptions_by_gap(old, gaps=[0], **LOAD)["0"] == 45, "erratum E19: before admission by the whole prompt"


def test_the_curve_ends_empty():
    curve = kv_curve(config(), concurrency=16, **LOAD)
    assert max(curve["usage_pct"]) == pytest.approx(100.0) and curve["usage_pct"][-1] == 0
    assert max(curve["running"]) == 16 and len(curve["waiting"]) == 889


@pytest.mark.parametrize(("make", "name"), [
    (lambda: equal_jobs(num_requests=0, prompt_tokens=1, output_tokens=1), "num_requests"),
    (lambda: equal_jobs(num_requests=1, prompt_tokens=0, output_tokens=1), "prompt_tokens"),
    (lambda: step_seconds([], step_ms=-1, token_us=0), "step_ms"),
    (lambda: step_seconds([], step_ms=1, token_us=0, request_us=-1), "request_us"),
    (lambda: preemptions_by_gap(config(), gaps=[-1], **LOAD), "gaps"),
])
def test_bad_input_names_the_argument(make, name):
    with pytest.raises(ValueError, match=name):
        make()
