"""Scripts of the prefix-cache lab and their counters: by hand, by the scheduler model, by arithmetic."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.calc.prefix_hits import lifetime_rate, phase_hits, routed_hits, run_steps
from labkit.calc.prefix_phases import FIRST_ID, Workload, phase_steps, routed_steps, tail_steps, tenant_steps
from labkit.calc.prefix_prediction import agent_trace_result, prediction, server_scripts
from labkit.calc.scheduler import SchedulerConfig

REPORT = Workload(vocab_size=152064)


def config(num_blocks, block_size=16, **changes):
    return SchedulerConfig(**{"num_blocks": num_blocks, "block_size": block_size, "max_num_seqs": 32,
                              "max_num_batched_tokens": 2048, **changes})


@pytest.mark.parametrize(("blocks", "size", "revisit", "warm", "lifetime"), [
    (14075, 16, 49920, 49920, 76.9), (1170, 16, 45056, 49920, 74.9), (7038, 32, 49152, 49152, 76.0),
    (585, 32, 45056, 49152, 74.3)])  # fmt: skip
@pytest.mark.parametrize("partial_first", [True, False])
def test_figures_of_the_report(blocks, size, revisit, warm, lifetime, partial_first):
    """49,920 = 48 x 65 x 16 and 45,056 = 44 x 1,024; blocks of 32 give 49,152 = 48 x 32 x 32. Old and new rules."""
    seen = run_steps(phase_steps(REPORT, concurrency=8, warmup_requests=8),
                     config(blocks, size, reuse_partial_first=partial_first))
    hits = {name: counts["hit_tokens"] for name, counts in seen.items() if name != "warmup"}
    assert hits == {"cold": 45056, "warm": warm, "pollution": 0, "revisit": revisit, "rewarm": warm}
    assert {counts["query_tokens"] for name, counts in seen.items() if name != "warmup"} == {50688}
    assert round(100 * lifetime_rate(seen), 1) == lifetime
    assert not any(counts["preemptions"] for counts in seen.values())


shapes = st.fixed_dictionaries({
    "num_requests": st.integers(2, 10), "num_anchors": st.integers(1, 2), "prefix_tokens": st.integers(1, 70),
    "suffix_tokens": st.integers(1, 20), "output_tokens": st.integers(1, 6)})  # fmt: skip


@settings(max_examples=80)
@given(shapes, st.sampled_from([1, 4, 8, 16]), st.integers(1, 3), st.integers(30, 600), st.booleans())
def test_arithmetic_is_the_model_where_it_speaks(shape, block, concurrency, num_blocks, partial_first):
    load = Workload(**shape, vocab_size=10**6)
    each = -(-(load.prompt_tokens + load.output_tokens - 1) // block)
    if load.num_anchors * (load.prefix_tokens // block) + load.num_requests * each > num_blocks - 1:
        return  # the anchors' own blocks do not fit: not what the formula is about
    asked = phase_hits(block_tokens=block, num_blocks=num_blocks, **shape)
    seen = run_steps(phase_steps(load, concurrency=concurrency), config(num_blocks, block,
                                                                      reuse_partial_first=partial_first))
    assert {name: seen[name]["hit_tokens"] for name, hits in asked.items() if hits is not None} == {
        name: hits for name, hits in asked.items() if hits is not None}


def test_arithmetic_is_silent_between_keeping_and_losing_all():
    """12 strangers of 4 full blocks and a part fill 48; of 59 blocks a little is kept, which only the model tells."""
    shape = dict(num_requests=12, num_anchors=2, prefix_tokens=128, suffix_tokens=16, output_tokens=4)
    found = {blocks: phase_hits(block_tokens=32, num_blocks=blocks, **shape)["revisit"] for blocks in (49, 60, 81)}
    assert found == {49: 1280, 60: None, 81: 1536}
    seen = run_steps(phase_steps(Workload(**shape), concurrency=4), config(60, 32))
    assert 1280 < seen["revisit"]["hit_tokens"] < 1536


def test_anchor_phases_send_the_same_prompts_and_pollution_none_of_them():
    steps = {step.name: step.jobs for step in phase_steps(REPORT, concurrency=8, warmup_requests=3)}
    assert steps["cold"] == steps["warm"] == steps["revisit"] == steps["rewarm"]
    prefixes = {name: {job.prompt_ids[:1024] for job in jobs} for name, jobs in steps.items()}
    assert len(prefixes["cold"]) == 4 and len(prefixes["pollution"]) == 48 and len(prefixes["warmup"]) == 3
    assert not prefixes["cold"] & prefixes["pollution"] and len(set(steps["cold"])) == 48
    assert {len(job.prompt_ids) for jobs in steps.values() for job in jobs} == {1056}
    assert all(FIRST_ID <= token < REPORT.vocab_size for job in steps["cold"] for token in job.prompt_ids)
    other = phase_steps(Workload(vocab_size=152064, seed=1), concurrency=8)[0].jobs
    assert not {job.prompt_ids[:16] for job in other} & {job.prompt_ids[:16] for job in steps["cold"]}


def test_salts_by_hand():
    steps = tenant_steps(Workload(prefix_tokens=64, suffix_tokens=16), num_prompts=3, concurrency=2)
    seen = [counts["hit_tokens"] for counts in run_steps(steps, config(200)).values()]
    assert seen == [0, 0, 3 * 64, 0], "of 80 tokens the last is run again, so four blocks of 16 hit"
    assert len({step.jobs[0].prompt_ids for step in steps}) == 1


@given(st.lists(st.integers(1, 90), min_size=1, max_size=5, unique=True), st.integers(0, 50))
def test_tails_share_exactly_what_they_say(lengths, seed):
    steps = tail_steps(Workload(seed=seed, suffix_tokens=4, vocab_size=FIRST_ID + 2), shared_lengths=lengths)
    for step, length in zip(steps, lengths):
        first, second = (job.prompt_ids for job in step.jobs)
        assert first[:length] == second[:length] and first[length] != second[length]
    assert steps[-1].jobs[0] == steps[-1].jobs[1] and len(steps[-1].jobs[0].prompt_ids) == lengths[-1]


def test_tails_by_hand():
    seen = run_steps(tail_steps(Workload(), shared_lengths=[31, 32, 33, 48]), config(200))
    assert {name: counts["hit_tokens"] for name, counts in seen.items()} == {
        "tail 31": 16, "tail 32": 32, "tail 33": 32, "tail 48": 48, "whole 48": 32}


def test_routing_by_hand():
    """Six requests on prefixes 0 (four times) and 1: by prefix each is computed once; in turn at every replica."""
    load = Workload(prefix_tokens=32, suffix_tokens=8, vocab_size=10**6)
    routed = routed_steps(load, popularity=[4, 2], num_replicas=2, concurrency=1)
    aware = routed["prefix-aware"]
    assert [len(step.jobs) for step in aware] == [4, 2]
    assert routed_hits(aware, prefix_tokens=32, block_tokens=16) == [96, 32]
    assert [len(step.jobs) for step in routed["round robin"]] == [3, 3]
    for steps in routed.values():
        seen = [run_steps([step], config(100))[step.name]["hit_tokens"] for step in steps]
        assert seen == routed_hits(steps, prefix_tokens=32, block_tokens=16)
    prefixes = [{job.prompt_ids[:32] for step in steps for job in step.jobs} for steps in routed.values()]
    assert not prefixes[0] & prefixes[1], "the second routing must not find what the first has left"


def test_scripts_and_prediction():
    scripts = server_scripts(REPORT, starts=2, concurrency=8, warmup_requests=4, tenant_prompts=2, tail_lengths=[64],
                             popularity=[3, 1])
    assert list(scripts) == ["large0", "large1", "small0", "small1"]
    names = {server: [step.name for step in steps] for server, steps in scripts.items()}
    assert names["small1"] == ["warmup", "cold", "warm", "pollution", "revisit", "rewarm"]
    assert names["large1"] == [*names["small1"], "round robin", "prefix-aware"]
    assert {"tenant b", "tail 64", "whole 64"} < set(names["large0"])
    found = prediction(scripts, {"large": config(14075), "small": config(1170)}, REPORT)
    assert found["hit_tokens"] == found["closed_form"] and found["tail_hits"] == {"tail 64": 64, "whole 64": 48}
    assert found["computed_tokens"]["1 GiB"] == {"cold": 5632, "warm": 768, "pollution": 50688, "revisit": 5632,
                                                 "rewarm": 768}
    assert [found["servers"][server]["round robin"]["hit_tokens"] for server in ("large0", "large1")
            ] == found["routed_hits"]["round robin"]


def test_the_trace_is_labelled():
    assert agent_trace_result(cache_tokens=[20000])["evidence"] == "simulated"


@pytest.mark.parametrize(("make", "message"), [
    (lambda: Workload(num_requests=0), "num_requests"), (lambda: Workload(vocab_size=100), "vocab_size"),
    (lambda: phase_steps(REPORT, concurrency=0), "concurrency"),
    (lambda: phase_hits(block_tokens=16, num_blocks=99, num_requests=2, num_anchors=3), "num_requests=2"),
    (lambda: routed_steps(REPORT, popularity=[0], num_replicas=1, concurrency=1), "popularity"),
    (lambda: tail_steps(REPORT, shared_lengths=[0]), "shared_lengths"),
])  # fmt: skip
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
