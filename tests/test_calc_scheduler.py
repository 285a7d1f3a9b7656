"""The scheduler model: the report's counters, invariants on random loads, and rules seen one at a time."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.calc.block_pool import BlockPool
from labkit.calc.scheduler import Job, Scheduler, SchedulerConfig
from labkit.calc.scheduler_runs import largest_concurrency, simulate
from tests.engine_loads import engines


def prompts(count, length, seed=0):
    rng = random.Random(seed)
    return [tuple(rng.randrange(10**6) for _ in range(length)) for _ in range(count)]


def config(**changes):
    return SchedulerConfig(**{"num_blocks": 64, "block_size": 16, "max_num_seqs": 8, "max_num_batched_tokens": 128,
                              **changes})


@pytest.mark.parametrize(("blocks", "concurrency", "preemptions", "peak_pct"), [
    (18720 // 16, 8, 0, 65.7), (18720 // 16, 16, 4, 100.0), (74896 // 16, 16, 0, 32.8)])
def test_preemptions_of_the_report(blocks, concurrency, preemptions, peak_pct):
    """Its peak of 99.9 % for the second point is a sample of every 250 ms; the model sees every step."""
    engine = config(num_blocks=blocks, max_num_seqs=32, max_num_batched_tokens=2048, enable_prefix_caching=False)
    jobs = [Job(prompt_ids=ids, output_tokens=512) for ids in prompts(16, 1024)]
    seen = simulate(jobs, engine, concurrency=concurrency)
    assert seen["preemptions"] == preemptions and round(100 * seen["peak_kv_usage"], 1) == peak_pct
    assert seen["query_tokens"] == seen["hit_tokens"] == 0, "no cache, nothing asked"


@pytest.mark.parametrize(("tokens", "block", "revisit", "warm", "lifetime_pct"), [
    (225200, 16, 49920, 49920, 76.9), (18720, 16, 45056, 49920, 74.9), (18688, 32, 45056, 49152, None)])
def test_prefix_hits_of_the_report(tokens, block, revisit, warm, lifetime_pct):
    """Cold, warm, pollution, revisit, rewarm on a large and a small cache, and on a CPU's blocks of 32 tokens."""
    engine_config = config(num_blocks=tokens // block, block_size=block, max_num_seqs=32, max_num_batched_tokens=2048)
    engine = Scheduler(engine_config)
    anchors, suffixes = prompts(4, 1024, 1), prompts(48, 32, 2)
    anchor = [Job(prompt_ids=anchors[i % 4] + suffixes[i], output_tokens=16) for i in range(48)]
    other = [Job(prompt_ids=ids, output_tokens=16) for ids in prompts(48, 1056, 3)]
    hits = [simulate(jobs, engine_config, concurrency=8, scheduler=engine)["hit_tokens"]
            for jobs in (anchor, anchor, other, anchor, anchor)]
    assert hits == [45056, warm, 0, revisit, warm]
    if lifetime_pct:
        assert round(100 * sum(hits) / (5 * 50688), 1) == lifetime_pct


LOADS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 12), st.integers(0, 2)), min_size=1, max_size=12)


@settings(max_examples=60)
@given(LOADS, st.integers(5, 40), st.sampled_from([1, 4, 16]), st.integers(1, 6), st.integers(4, 64), st.booleans())
def test_invariants(load, num_blocks, block_size, seqs, budget, caching):
    engine_config = config(num_blocks=num_blocks, block_size=block_size, max_num_seqs=seqs,
                           max_num_batched_tokens=budget, enable_prefix_caching=caching)
    jobs = [Job(prompt_ids=(kind,) * length, output_tokens=output) for length, output, kind in load
            if -(-(length + output - 1) // block_size) < num_blocks]
    engine = Scheduler(engine_config)
    seen = simulate(jobs, engine_config, scheduler=engine)
    assert len(engine.done) == len(jobs) and all(s.num_output == s.job.output_tokens for s in engine.done)
    assert len(engine.pool.free) == num_blocks - 1 and not any(engine.pool.references.values()), "all given back"
    assert all(engine.pool.hash_of[block] == content for content, blocks in engine.pool.by_hash.items()
               for block in blocks)
    assert 0 <= seen["peak_kv_usage"] <= 1 and seen["peak_running"] <= seqs
    assert seen["hit_tokens"] % block_size == 0 and seen["hit_tokens"] <= max(0, seen["query_tokens"] - len(jobs))
    work = sum(len(j.prompt_ids) + j.output_tokens - 1 for j in jobs) - seen["hit_tokens"] + seen["recomputed_tokens"]
    assert seen["num_steps"] >= -(-work // budget) or caching  # a preempted request may find its own blocks again
    assert (seen["preemptions"] == 0) == (seen["recomputed_tokens"] == 0)


@settings(max_examples=30)
@given(LOADS, st.integers(1, 6))
def test_enough_blocks_never_preempt(load, seqs):
    jobs = [Job(prompt_ids=(i,) * length, output_tokens=output) for i, (length, output, _) in enumerate(load)]
    assert simulate(jobs, config(num_blocks=2 + 12 * 72, block_size=1, max_num_seqs=seqs))["preemptions"] == 0


def test_a_request_that_fills_its_blocks_leaves_one_token_to_compute():
    same = Job(prompt_ids=tuple(range(32)), output_tokens=1)
    assert simulate([same, same], config(), concurrency=1)["hit_tokens"] == 16, "not 32: the last token has to run"


def test_requests_of_one_step_share_already():
    jobs = [Job(prompt_ids=(*range(32), end), output_tokens=1) for end in range(3)]
    seen = simulate(jobs, config())
    assert seen["num_steps"] == 1 and seen["hit_tokens"] == 64


def test_a_salt_keeps_tenants_apart():
    ids = tuple(range(40))
    jobs = [Job(prompt_ids=ids, output_tokens=1, salt=salt, label=salt) for salt in ("a", "b", "a")]
    seen = simulate(jobs, config(), concurrency=1)["by_label"]
    assert (seen["a"]["hit_tokens"], seen["b"]["hit_tokens"]) == (32, 0)


def test_a_tail_is_evicted_before_its_prefix():
    pool = BlockPool(5)
    blocks = pool.take(3)
    for number, block in enumerate(blocks):
        pool.keep(block, number)
    pool.give_back(blocks)
    pool.take(2)  # the block never used, then the tail
    assert (pool.find(0), pool.find(1), pool.find(2)) == (blocks[0], blocks[1], None) and pool.num_evictions == 1


def test_chunked_prefill_spends_the_budget():
    seen = simulate([Job(prompt_ids=tuple(range(300)), output_tokens=1)], config(max_num_batched_tokens=128))
    assert seen["num_steps"] == 3 and seen["first_steps"] == [3]


def test_a_step_that_preempts_admits_nobody():
    """The queue is looked at only if nobody was preempted (vLLM: `if not preempted_reqs`), though a chunk would fit."""
    engine = Scheduler(config(num_blocks=5, block_size=4, max_num_batched_tokens=4, enable_prefix_caching=False,
                              reserve_full_prompt=False))
    for ids in prompts(2, 8):
        engine.add(Job(prompt_ids=ids, output_tokens=6))
    while not engine.num_preemptions:
        engine.step()
    assert (len(engine.running), len(engine.waiting)) == (1, 1) and engine.pool.free
    engine.step()
    assert (len(engine.running), len(engine.waiting)) == (2, 0), "one step later it is let in"


def test_results_are_of_the_call():
    engine_config = config(num_blocks=8)
    engine = Scheduler(engine_config)
    first, second = prompts(2, 64)
    simulate([Job(prompt_ids=first, output_tokens=1)], engine_config, scheduler=engine)
    seen = simulate([Job(prompt_ids=second, output_tokens=2)], engine_config, scheduler=engine)
    assert (seen["num_steps"], seen["evictions"], seen["first_steps"]) == (2, 2, [1])


def test_largest_concurrency_is_quiet_and_one_more_is_not():
    engine = config(num_blocks=100, max_num_seqs=16, max_num_batched_tokens=256)
    best = largest_concurrency(prompt_tokens=100, output_tokens=60, config=engine)
    preempted = [simulate([Job(prompt_ids=ids, output_tokens=60) for ids in prompts(4 * c, 100)], engine,
                          concurrency=c)["preemptions"] for c in (best, best + 1)]
    assert 1 <= best < 16 and preempted[0] == 0 < preempted[1]
    assert largest_concurrency(prompt_tokens=5000, output_tokens=1, config=engine) == 0


@settings(max_examples=40)
@given(LOADS, st.integers(6, 30), st.lists(st.integers(0, 30), min_size=12, max_size=12), st.integers(4, 64))
def test_arrivals_seen_in_a_trace_give_the_same_trace(load, num_blocks, times, budget):
    """The step in which a job's first part ran is as good as its arrival: the engine's log gives the first."""
    engine_config = config(num_blocks=num_blocks, block_size=4, max_num_batched_tokens=budget,
                           enable_prefix_caching=False)
    jobs = [Job(prompt_ids=(i,) * length, output_tokens=output) for i, (length, output, _) in enumerate(load)
            if -(-(length + output - 1) // 4) < num_blocks]
    first, again = Scheduler(engine_config), Scheduler(engine_config)
    began = {}
    admit = first._admit_waiting

    def note(budget, scheduled):
        admit(budget, scheduled)
        for sequence in first.running:
            began.setdefault(sequence.number, first.num_steps)

    first._admit_waiting = note
    arrivals = sorted(times[: len(jobs)])
    seen = simulate(jobs, engine_config, arrivals=arrivals, scheduler=first)
    replayed = simulate(jobs, engine_config, arrivals=[began[i] for i in range(len(jobs))], scheduler=again)
    assert [replace(step, waiting=0) for step in first.trace] == [replace(step, waiting=0) for step in again.trace]
    assert first.preempted == again.preempted and seen == {**replayed, "peak_waiting": seen["peak_waiting"]}


def test_a_trace_adds_up_to_the_counts():
    engine_config = config(num_blocks=1170, max_num_seqs=32, max_num_batched_tokens=2048, enable_prefix_caching=False)
    engine = Scheduler(engine_config)
    seen = simulate([Job(prompt_ids=ids, output_tokens=512) for ids in prompts(16, 1024)], engine_config,
                    scheduler=engine)
    assert len(engine.trace) == seen["num_steps"] and len(engine.preempted) == seen["preemptions"] == 4
    assert sum(lost for _, _, lost in engine.preempted) == seen["recomputed_tokens"]
    assert sum(step.context_tokens for step in engine.trace) == 16 * 1024
    assert sum(step.generation_tokens for step in engine.trace) == 16 * 511 + seen["recomputed_tokens"]
    assert [number for _, number, _ in engine.preempted] == [15, 14, 13, 12], "the last to arrive goes first"
    # Each victim goes when those that run would need one more block each than there are: 73, 77, 83, 89 full blocks.
    assert [-(-lost // 16) for _, _, lost in engine.preempted] == [73, 77, 83, 89]
    assert engine.trace[-1].usage == 0 and max(seen["end_steps"]) == seen["num_steps"]


def test_an_idle_engine_makes_no_steps():
    jobs = [Job(prompt_ids=tuple(range(8)), output_tokens=3)] * 2
    seen = simulate(jobs, config(enable_prefix_caching=False), arrivals=[0, 50])
    assert seen["num_steps"] == 6 and seen["first_steps"] == [1, 4]


@pytest.mark.parametrize(("make", "message"), [
    (lambda: simulate([Job(prompt_ids=(1,), output_tokens=1)], config(), arrivals=[1], concurrency=1), "arrivals"),
    (lambda: simulate([Job(prompt_ids=(1,), output_tokens=1)], config(), arrivals=[]), "arrivals"),
    (lambda: simulate([Job(prompt_ids=(1,), output_tokens=1)] * 2, config(), arrivals=[2, 1]), "rising"),
    (lambda: config(num_blocks=1), "num_blocks"), (lambda: config(block_size=0), "block_size"),
    (lambda: Scheduler(config()).add(Job(prompt_ids=(), output_tokens=1)), "at least one prompt token"),
    (lambda: Scheduler(config(num_blocks=3)).add(Job(prompt_ids=(1,) * 33, output_tokens=1)), "at most 2 blocks"),
    (lambda: simulate([], config(), concurrency=0), "concurrency"),
])
def test_what_no_engine_takes_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


ENGINE = json.loads((Path(__file__).parent / "data" / "engine_grid" / "rows.json").read_text(encoding="utf-8"))
SAME = {"prefix_cache_queries": "query_tokens", "prefix_cache_hits": "hit_tokens", "num_preemptions": "preemptions",
        "num_steps": "num_steps", "peak_kv_usage": "peak_kv_usage", "peak_running": "peak_running"}


def test_the_recorded_loads_meet_what_they_are_for():
    rows = [row for seed in ENGINE["seeds"].values() for row in seed]
    assert sum(row["num_preemptions"] for row in rows) >= 20 and sum(row["prefix_cache_hits"] for row in rows) > 10**4


@pytest.mark.parametrize("seed", ENGINE["seeds"])
def test_the_real_engine_counted_the_same(seed):
    """Every counter of every load: 90 loads, among them preemptions, evictions, salts and chunked prompts."""
    rows, asked = ENGINE["seeds"][seed], engines(int(seed))
    assert len(rows) == 30
    for row in rows:
        if row["load"] == 0:  # an engine's loads follow each other and share its cache
            engine = Scheduler(SchedulerConfig(**asked[row["engine"]]["settings"]))
        jobs = [Job(prompt_ids=tuple(job["prompt_ids"]), output_tokens=job["output_tokens"], salt=job["salt"])
                for job in asked[row["engine"]]["loads"][row["load"]]]
        seen = simulate(jobs, engine.config, scheduler=engine)
        assert {name: row[name] for name in SAME} == pytest.approx({name: seen[ours] for name, ours in SAME.items()})
