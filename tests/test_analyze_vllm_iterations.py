"""Steps out of an engine's log: both forms of the line, arrivals, and the model beside steps that vLLM really made."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.analyze.vllm_iterations import (
    Iteration,
    arrival_steps,
    find_lone_prompt,
    num_lost,
    parse_iterations,
    recomputed_tokens,
    replay,
)
from labkit.calc.preemption_prediction import equal_jobs
from labkit.calc.scheduler import Scheduler, SchedulerConfig, Step
from labkit.calc.scheduler_runs import simulate
from tests.preemption_engine import log_line

OLD = ("(EngineCore_DP0 pid=2010410) INFO 12-22 21:44:40 [core.py:349] Iteration(515): 0 context requests, 0 context "
       "tokens, 20 generation requests, 20 generation tokens, iteration elapsed time: 10.99 ms\n")
NEW = ("(APIServer pid=1688) INFO 11-30 02:31:16 [loggers.py:199] Engine 000: Iteration(516): 2 context requests, 2046 "
       "context tokens, 2 generation requests, 2 generation tokens, iteration elapsed time: 401.30 ms, CPU KV cache "
       "usage: 23.4%, encoder inputs: 1, encoder output embeddings: 9\n")
DUMMY = NEW.replace("401.30 ms", "1.00 ms (dummy)")
RECORDED = json.loads((Path(__file__).parent / "data" / "engine_steps" / "rounds.json").read_text())["rounds"]
SHAPE = {"prompt_tokens": 1024, "output_tokens": 512}


def config(num_blocks=585, **changes):
    return SchedulerConfig(**{"num_blocks": num_blocks, "block_size": 32, "max_num_seqs": 32,
                              "max_num_batched_tokens": 2048, "enable_prefix_caching": False, **changes})


def recorded_steps(line):
    tokens = [step[:4] for step in line["steps"] for _ in range(step[4])]
    return [Iteration(index=i, context_requests=a, context_tokens=b, generation_requests=c, generation_tokens=d,
                      elapsed_ms=1.0, usage_pct=None) for i, (a, b, c, d) in enumerate(tokens)]


def test_both_forms_of_the_line():
    old, new = parse_iterations("noise\n" + OLD + DUMMY + "more noise\n" + NEW)
    assert (old.index, old.generation_tokens, old.elapsed_ms, old.usage_pct) == (515, 20, 10.99, None)
    assert (new.context_requests, new.context_tokens, new.generation_requests, new.generation_tokens) == (2, 2046, 2, 2)
    assert (new.elapsed_ms, new.usage_pct) == (401.3, 23.4)
    assert parse_iterations("") == [] and num_lost([]) == 0


def test_the_marker_is_a_lone_prompt_behind_the_tokens_that_were_needed():
    line = NEW.replace("2 context requests, 2046 context tokens, 2 generation requests, 2 generation tokens",
                       "1 context requests, 3 context tokens, 0 generation requests, 0 generation tokens")
    text = NEW + NEW
    assert find_lone_prompt(text, num_tokens=3, after_tokens=0) == -1
    at = find_lone_prompt(line + text + line, num_tokens=3, after_tokens=4096)
    assert (line + text + line)[at:].startswith("Iteration(") and at > len(line + text)
    assert find_lone_prompt(line + text, num_tokens=3, after_tokens=4096) == -1, "an early step of the load itself"
    for other in (line.replace("3 context tokens", "4 context tokens"), line.replace("0 gen", "1 gen"),
                  line.replace("401.30 ms", "401.30 ms (dummy)")):
        assert find_lone_prompt(text + other, num_tokens=3, after_tokens=0) == -1


def test_a_missing_step_is_counted():
    steps = parse_iterations(OLD + NEW)
    assert num_lost(steps) == 0
    assert num_lost([steps[0], replace(steps[1], index=519)]) == 3


def test_each_engine_counts_its_own_steps():
    other = NEW.replace("Engine 000: Iteration(516)", "Engine 001: Iteration(90)")
    steps = parse_iterations(OLD + other + NEW + OLD.replace("DP0", "DP1").replace("(515)", "(92)"))
    assert [step.engine for step in steps] == [0, 1, 0, 1] and num_lost(steps) == 1
    with pytest.raises(ValueError, match="2 engines"):
        arrival_steps(steps, num_requests=1, prompt_tokens=1)
    assert parse_iterations(OLD.replace("_DP0", ""))[0].engine == 0


@pytest.mark.parametrize("line", RECORDED, ids=lambda line: f"{line['num_blocks']}-{line['concurrency']}")
def test_the_model_makes_every_step_that_vllm_made(line):
    """Closed loops too: only the arrivals are taken from the log, and the first ones are those of one release."""
    steps = recorded_steps(line)
    engine = config(line["num_blocks"], block_size=line.get("block_size", 32))
    seen = replay(steps, engine, num_requests=line["num_requests"], **SHAPE)
    assert (seen["num_different"], seen["preemptions"], seen["num_steps"]) == (0, line["preemptions"], len(steps))
    assert recomputed_tokens(steps, num_requests=line["num_requests"], **SHAPE) == seen["recomputed_tokens"]
    assert (seen["recomputed_tokens"] > 0) == (line["preemptions"] > 0)


def test_the_recorded_rounds_meet_what_they_are_for():
    assert [line["preemptions"] for line in RECORDED] == [0, 4, 0, 0, 1, 4, 1]
    late = arrival_steps(recorded_steps(RECORDED[0]), num_requests=16, prompt_tokens=1024)
    assert late[:8] == [0, 0, 1, 1, 2, 2, 3, 3] and late[8] > 512, "the ninth waits for an end"


@pytest.mark.parametrize("change", [
    {"block_size": 64}, {"num_blocks": 570}, {"max_num_batched_tokens": 2047}])
def test_another_engine_would_have_been_noticed(change):
    seen = replay(recorded_steps(RECORDED[1]), config(**change), num_requests=16, **SHAPE)
    assert seen["num_different"] > 0 and seen["first_difference"] is not None


def test_one_step_that_differs_is_one_difference():
    steps = recorded_steps(RECORDED[1])
    steps[300] = replace(steps[300], generation_tokens=steps[300].generation_tokens + 1)
    seen = replay(steps, config(), num_requests=16, **SHAPE)
    assert (seen["num_different"], seen["first_difference"]) == (1, 300)
    assert recomputed_tokens(steps, num_requests=16, **SHAPE) == seen["recomputed_tokens"] + 1
    assert replay(steps[:-2], config(), num_requests=16, **SHAPE)["num_different"] == 3


def test_releases_name_recomputed_tokens_differently_but_their_number_is_compared():
    newer, older = RECORDED[1], RECORDED[5]
    catches_up = [step for step in older["steps"] if step[1] and step[3] and step[0] < 3 and step[3] > 9]
    assert catches_up and not any(step[1] for step in newer["steps"][-10:])
    steps = recorded_steps(older)
    at = next(i for i, step in enumerate(steps) if i > 100 and step.context_tokens)
    steps[at] = replace(steps[at], context_tokens=steps[at].context_tokens - 1)
    seen = replay(steps, config(1170, block_size=16), num_requests=16, **SHAPE)
    assert (seen["num_different"], seen["first_difference"]) == (1, at)


def test_use_of_the_cache_is_compared_where_the_log_has_it():
    engine = Scheduler(config())
    simulate(equal_jobs(num_requests=3, prompt_tokens=300, output_tokens=40), config(), scheduler=engine)
    text = "".join(log_line(i, step) for i, step in enumerate(engine.trace))
    shape = {"num_requests": 3, "prompt_tokens": 300, "output_tokens": 40}
    seen = replay(parse_iterations(text), config(), **shape)
    assert (seen["num_different"], seen["num_usage_different"]) == (0, 0)
    wrong = text.replace("usage: 5.1%", "usage: 5.3%")
    assert wrong != text and replay(parse_iterations(wrong), config(), **shape)["num_usage_different"] > 0
    plain = "".join(log_line(i, step, usage=False) for i, step in enumerate(engine.trace))
    assert replay(parse_iterations(plain), config(), **shape)["num_usage_different"] is None


def test_prompts_that_are_not_there_are_told():
    step = Step(context_requests=1, context_tokens=10, generation_requests=0, generation_tokens=0, running=1, waiting=0,
                usage=0.1)
    with pytest.raises(ValueError, match="10 prompt tokens, expected 2 x 8"):
        arrival_steps(parse_iterations(log_line(0, step)), num_requests=2, prompt_tokens=8)
