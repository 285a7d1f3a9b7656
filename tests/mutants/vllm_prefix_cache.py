"""Errors planted in the prefix-cache lab, and the test that must notice each."""

PHASES, HITS, PLAN = "labkit/calc/prefix_phases.py", "labkit/calc/prefix_hits.py", "labkit/calc/prefix_prediction.py"
AGENTS, RESULTS = "labkit/calc/session_eviction.py", "labkit/analyze/prefix_cache.py"
LINES, ORACLES = "labkit/analyze/prefix_cache_lines.py", "labkit/analyze/prefix_cache_oracles.py"
LOAD, SLICE = "labkit/launch/counted_load.py", "labkit/experiments/vllm_prefix_cache.py"
T_CALC, T_AGENTS = "tests/test_calc_prefix_phases.py", "tests/test_calc_session_eviction.py"
T_SEEN, T_EXP = "tests/test_analyze_prefix_cache.py", "tests/test_exp_vllm_prefix_cache.py"
FIGURES = f"{T_CALC}::test_figures_of_the_report"
NOTICE = f"{T_EXP}::test_oracles_notice"
SLOW = f"{T_AGENTS}::test_every_policy_against_single_blocks"
RATES = f"{T_SEEN}::test_rates_of_a_phase_and_of_a_life"

MUTANTS = [
    dict(name="anchors_get_new_suffixes", file=PHASES, old="anchors = tuple(load.job(i % load.num_anchors, i)",
         new="anchors = tuple(load.job(i % load.num_anchors, 0)",
         tests=[f"{T_CALC}::test_anchor_phases_send_the_same_prompts_and_pollution_none_of_them"]),
    dict(name="pollution_shares_a_prefix", file=PHASES, old='load.job(f"pollution {i}", f"pollution {i}")',
         new='load.job("pollution", f"pollution {i}")', tests=[FIGURES]),
    dict(name="tail_shares_one_token_more", file=PHASES, old="(rest[0] - FIRST_ID + 1)", new="(rest[0] - FIRST_ID)",
         tests=[f"{T_CALC}::test_tails_share_exactly_what_they_say"]),
    dict(name="salt_is_forgotten", file=PHASES, old='zip(TENANTS, ("a", "b", "a", ""))',
         new='zip(TENANTS, ("a", "a", "a", ""))', tests=[f"{T_CALC}::test_salts_by_hand"]),
    dict(name="second_routing_finds_the_first_ones_prefixes", file=PHASES,
         old='load.job(f"{routing} {prefix}",', new='load.job(f"routed {prefix}",',
         tests=[f"{T_CALC}::test_routing_by_hand"]),
    dict(name="engine_forgets_between_steps", file=HITS, old="concurrency=step.concurrency, scheduler=engine)",
         new="concurrency=step.concurrency, scheduler=Scheduler(config))", tests=[FIGURES]),
    dict(name="last_token_may_hit", file=HITS, old="block_tokens=block_tokens, prompt_tokens=prompt)",
         new="block_tokens=block_tokens)",
         tests=[f"{T_CALC}::test_arithmetic_is_the_model_where_it_speaks"]),
    dict(name="partial_blocks_push_out_too", file=HITS, old="cold if count * full >= usable",
         new="cold if count * each >= usable",
         tests=[f"{T_CALC}::test_arithmetic_is_silent_between_keeping_and_losing_all"]),
    dict(name="every_anchor_request_hits_when_cold", file=HITS, old="cold = (count - anchors) *", new="cold = count *",
         tests=[f"{T_CALC}::test_scripts_and_prediction"]),
    dict(name="recency_by_first_use", file=AGENTS, old="hit = min(kept.pop(turn.session, 0),",
         new="hit = min(kept.get(turn.session, 0),",
         tests=[f"{T_AGENTS}::test_recency_counts_from_the_last_use"]),
    dict(name="policy_gives_up_who_comes_soonest", file=AGENTS,
         old="return max(kept, key=lambda session: last[session][0].expected_pause_s)",
         new="return min(kept, key=lambda session: last[session][0].expected_pause_s)", tests=[SLOW]),
    dict(name="simulation_called_measured", file=PLAN, old='"evidence": "simulated",', new='"evidence": "measured",',
         tests=[f"{T_CALC}::test_the_trace_is_labelled"]),
    dict(name="rate_of_the_phase_is_the_lifetime_rate", file=RESULTS,
         old="found[name] = round(100 * hits / queries, 3)",
         new="found[name] = _pct(phases[name])", tests=[RATES]),
    dict(name="anything_misleads", file=RESULTS, old="- min(phases[case].values()) > 50", new="> 50",
         tests=[f"{T_SEEN}::test_a_lifetime_rate_that_tells_is_not_called_misleading"]),
    dict(name="noise_without_the_second_start", file=RESULTS, old="mean(values[-1]) / mean(values[0])",
         new="mean(values[0]) / mean(values[0])", tests=[f"{T_SEEN}::test_times_by_hand_and_the_noise_floor"]),
    dict(name="ratio_upside_down", file=RESULTS, old='times["revisit"][key] / times["warm"][key]',
         new='times["warm"][key] / times["revisit"][key]',
         tests=[f"{T_SEEN}::test_times_by_hand_and_the_noise_floor"]),
    dict(name="totals_taken_for_differences", file=LINES, old="pair, pages = pair_summary(before, after),",
         new="pair, pages = pair_summary(before, before),", tests=[f"{T_SEEN}::test_a_step_by_hand"]),
    dict(name="lost_requests_are_no_failures", file=LINES,
         old='len(plan) - (told["num_requests"] - told["num_failed"])', new='told["num_failed"]',
         tests=[f"{T_SEEN}::test_what_never_came_back_is_a_failure"]),
    dict(name="page_taken_at_once", file=LOAD, old="< wanted and time.monotonic() < deadline",
         new="< 0 and time.monotonic() < deadline",
         tests=[f"{T_SEEN}::test_a_slow_client_and_a_dead_server_are_launch_errors"]),
    dict(name="counters_compared_with_themselves", file=ORACLES,
         old="for key, value in counts.items() if value != wanted[server, name][key]]",
         new="for key, value in counts.items() if value != counts[key]]", tests=[NOTICE]),
    dict(name="salts_not_looked_at", file=ORACLES, old='[tenants.get("tenant b"), tenants.get("no salt")]))',
         new="[0, 0]))", tests=[NOTICE]),
    dict(name="failures_not_counted", file=ORACLES, old='sum(line["num_failed"] for line in steps)', new="0",
         tests=[NOTICE]),
    dict(name="processes_left_are_fine", file=ORACLES, old='if line["num_left"] or line["num_processes"] < 2]',
         new='if line["num_processes"] < 2]', tests=[NOTICE]),
    dict(name="salt_not_sent", file=SLICE, old='extra={"cache_salt": job.salt} if job.salt else {})', new="extra={})",
         tests=[f"{T_EXP}::test_run_from_prediction_to_figures"]),
]  # fmt: skip
