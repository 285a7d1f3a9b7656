"""The simulated agent trace: recency against the scheduler model, every policy against a slow cache of blocks."""

import random
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.calc.scheduler import Job, Scheduler, SchedulerConfig
from labkit.calc.scheduler_runs import simulate
from labkit.calc.session_eviction import POLICIES, Turn, agent_trace, compare_policies, replay


def turns(sessions, *, tokens=64, growth=16, pauses=None):
    """One turn after the other; a session grows by `growth` tokens each time."""
    seen, found = {}, []
    for number, session in enumerate(sessions):
        seen[session] = seen.get(session, 0) + 1
        found.append(Turn(at_s=number, session=session, prompt_tokens=tokens + growth * (seen[session] - 1),
                          expected_pause_s=(pauses or {}).get(session, 1.0)))
    return found


@settings(max_examples=40)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=20), st.integers(12, 80), st.sampled_from([4, 16]),
       st.integers(16, 40))
def test_recency_is_what_the_scheduler_model_does(sessions, cache_blocks, block, growth):
    """And that model counts what vLLM counts. One request at a time, one output token, as a turn takes no time."""
    trace = turns(sessions, growth=growth, tokens=40)
    if max(-(-turn.prompt_tokens // block) for turn in trace) > cache_blocks:
        return
    config = SchedulerConfig(num_blocks=cache_blocks + 1, block_size=block, max_num_seqs=1, max_num_batched_tokens=4096)
    engine = Scheduler(config)
    ids = {session: tuple(range(session * 10**4, session * 10**4 + 5000)) for session in set(sessions)}
    jobs = [Job(prompt_ids=ids[turn.session][: turn.prompt_tokens], output_tokens=1) for turn in trace]
    seen = simulate(jobs, config, concurrency=1, scheduler=engine)
    ours = replay(trace, policy="lru", cache_blocks=cache_blocks, block_tokens=block)
    assert (ours["hit_tokens"], ours["query_tokens"]) == (seen["hit_tokens"], seen["query_tokens"])


def slow_replay(trace, *, policy, cache_blocks, block_tokens):
    """Every block by itself; the victim is looked for among all of them."""
    cached, used, hits, last = set(), {}, 0, {}
    for number, turn in enumerate(trace):
        need = -(-turn.prompt_tokens // block_tokens)
        own = [(turn.session, i) for i in range(need)]
        found = 0
        while found < (turn.prompt_tokens - 1) // block_tokens and own[found] in cached:
            found += 1
        cached -= {block for block in cached if block[0] == turn.session}
        while len(cached) > cache_blocks - need:
            def worth(block):
                session, index = block
                later = [other.at_s for other in trace[used[session] + 1 :] if other.session == session]
                value = {"lru": used[session], "session-aware": -last[session].expected_pause_s,
                         "ended-first": last[session].expected_pause_s != inf,
                         "clairvoyant": -(later[0] if later else inf)}[policy]
                return value, used[session], -index
            cached.remove(min(cached, key=worth))
        cached |= set(own[: turn.prompt_tokens // block_tokens])
        used[turn.session], last[turn.session] = number, turn
        hits += found * block_tokens
    return hits


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.sampled_from(POLICIES), st.integers(20, 60))
def test_every_policy_against_single_blocks(seed, policy, cache_blocks):
    rng = random.Random(seed)
    sessions = [rng.randrange(4) for _ in range(14)]
    trace = turns(sessions, pauses={0: 1.0, 1: 5.0, 2: inf, 3: 5.0}, growth=rng.choice([16, 24]))
    if max(-(-turn.prompt_tokens // 16) for turn in trace) > cache_blocks:
        return
    assert replay(trace, policy=policy, cache_blocks=cache_blocks)["hit_tokens"] == slow_replay(
        trace, policy=policy, cache_blocks=cache_blocks, block_tokens=16)


def test_recency_counts_from_the_last_use():
    """Three sessions of four blocks fill the cache; the fourth pushes out 1, since 0 has been back meanwhile."""
    seen = replay(turns([0, 1, 0, 2, 3, 0], growth=0), policy="lru", cache_blocks=12)
    assert seen["hit_tokens"] == 2 * 48 and seen["whole_returns"] == 2


def test_a_paused_session_by_hand():
    """Session 0 waits for a tool while three strangers pass that never return: recency drops it, knowledge does not."""
    trace = turns([0, 1, 2, 3, 0], pauses={0: 8.0, 1: inf, 2: inf, 3: inf})
    found = {policy: replay(trace, policy=policy, cache_blocks=9) for policy in POLICIES}
    assert {policy: seen["hit_tokens"] for policy, seen in found.items()} == {
        "lru": 0, "ended-first": 64, "session-aware": 64, "clairvoyant": 64}
    assert found["lru"]["lost_tokens"] == 64 and found["lru"]["returns"] == 1
    assert found["session-aware"]["whole_returns"] == 1 and found["lru"]["whole_returns"] == 0


@pytest.mark.parametrize("seed", range(5))
def test_order_of_the_policies_and_a_cache_that_holds_all(seed):
    for blocks in (1200, 4000):
        found = compare_policies(cache_blocks=blocks, seed=seed)
        hits = [found[policy]["hit_tokens"] for policy in POLICIES]
        assert hits[0] < hits[1] <= hits[2] <= hits[3]
    everything = compare_policies(cache_blocks=10**6, seed=seed)
    assert {seen["lost_tokens"] for seen in everything.values()} == {0}
    assert {seen["whole_share"] for seen in everything.values()} == {1.0}


def test_trace_is_in_order_and_grows():
    trace = agent_trace(num_sessions=30, seed=3)
    assert [turn.at_s for turn in trace] == sorted(turn.at_s for turn in trace)
    for session in range(30):
        own = [turn for turn in trace if turn.session == session]
        assert [turn.prompt_tokens for turn in own] == sorted({turn.prompt_tokens for turn in own})
        assert [turn.expected_pause_s == inf for turn in own] == [False] * (len(own) - 1) + [True]
    assert {turn.expected_pause_s for turn in trace} == {8.0, 120.0, inf}


@pytest.mark.parametrize(("make", "message"), [
    (lambda: replay([], policy="fifo", cache_blocks=1), "policy"),
    (lambda: replay(turns([0]), policy="lru", cache_blocks=3), "prompt_tokens=64"),
    (lambda: agent_trace(person_share=2.0), "person_share"), (lambda: agent_trace(num_turns=1), "num_turns"),
    (lambda: agent_trace(mean_gap_s=0.0), "mean_gap_s"), (lambda: agent_trace(turn_tokens=1), "turn_tokens"),
])  # fmt: skip
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
