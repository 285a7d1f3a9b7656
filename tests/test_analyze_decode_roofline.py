"""What loads of the decode lab come to: windows by hand, predictions by hand, and oracles that notice."""

import copy
from dataclasses import replace

import pytest

from labkit.analyze import decode_oracles, decode_prediction
from labkit.analyze import decode_roofline as analyze
from labkit.calc.decoder import DecoderShape
from labkit.conduct import plain_params
from labkit.experiments import vllm_decode_roofline as exp
from labkit.hardware import load_profile
from labkit.models import load_model
from labkit.presets import build_params
from tests.decode_stand_ins import LOG, page, result, served

GPU = build_params(exp.Params, exp.SLUG, "gpu1")
PLAN = exp.predict(GPU, hardware=load_profile("h200"))


def everything(**change):
    return [served(name, told, GPU, **change) for name, told in PLAN["servers"].items()]


def verdicts(all_served, plan=PLAN):
    found = analyze.results(all_served, plan)
    return {oracle.name: oracle for oracle in decode_oracles.oracles(plain_params(GPU), found, plan)}


def test_window_by_hand():
    """First tokens at 1.0 and 1.3, last ones at 1.7 and 2.0: between 1.3 and 1.7 both decode, four steps of 0.1."""
    pair = [result(ttft_s=1.0, gap_s=0.1), result(index=1, ttft_s=1.3, gap_s=0.1)]
    found = analyze.together(pair)
    assert found["gaps_s"] == [pytest.approx([0.1] * 4), pytest.approx([0.1] * 4)] and not found["streams_left_out"]


def test_a_prompt_taken_in_between_is_not_a_decode_step():
    """The first stream's long gap is the other's prefill: it ends with the other's first token."""
    pair = [result(ttft_s=1.0, gap_s=[0.5, *[0.1] * 6]), result(index=1, ttft_s=1.5, gap_s=0.1)]
    assert max(gap for stream in analyze.together(pair)["gaps_s"] for gap in stream) == pytest.approx(0.1)


def test_sending_times_count():
    pair = [result(sent_s=0.0, ttft_s=1.0, gap_s=0.1), result(index=1, sent_s=0.5, ttft_s=0.8, gap_s=0.1)]
    assert [len(stream) for stream in analyze.together(pair)["gaps_s"]] == [4, 4]


def test_streams_with_several_tokens_a_chunk_are_left_out():
    pair = [result(ttft_s=1.0, gap_s=0.1), result(index=1, ttft_s=1.0, gap_s=[0.2] * 3, one=False)]
    found = analyze.together(pair)
    assert len(found["gaps_s"]) == 1 and found["streams_left_out"] == 1 and found["num_steps"] == 6


def test_a_batch_is_whole_although_a_chunk_held_two_tokens():
    """Seen on an H200: one of 63 gaps was of two tokens, and the stream's steps were still steps."""
    found = analyze.together([result(ttft_s=1.0, gap_s=[0.1, 0.2, 0.1, 0.1, 0.1, 0.1], one=False)])
    assert found == {"gaps_s": [], "streams_left_out": 1, "num_steps": 6}


def test_a_failed_request_leaves_no_window():
    assert analyze.together([result(), result(index=1, error="HTTP 500")])["gaps_s"] == []
    assert analyze.together([])["gaps_s"] == []


def test_capacity_of_the_three_models():
    """4 GiB, blocks of 16: what one H200 with vLLM 0.26 printed for each (feasibility notes), and the rule by hand."""
    tokens = {told["model"]: told["capacity_tokens"] for told in PLAN["servers"].values()}
    assert tokens == {"qwen2.5-7b": 74896, "qwen3-30b-a3b": 43680, "deepseek-v2-lite": 138080}
    assert 2**32 // (16 * 27 * 576 * 2) * 16 == 138080


def test_prediction_by_hand():
    """Qwen2.5-7B, batch 8 at 1,024 + 32 tokens, 4.3 TB/s: all weights but the embedding, and 8 caches."""
    told = PLAN["servers"]["qwen2.5-7b graph"]["decode"]["8"]
    moved = 2 * (7_615_616_512 - 152064 * 3584) + 8 * 1056 * 57344
    assert told["bytes"] == moved and told["floor_ms"] == pytest.approx(1e3 * moved / 4.3e12)
    assert told["launch_ms"] == 0 and told["experts_read"] is None
    assert told["predicted_ms"] == pytest.approx(told["floor_ms"] + GPU.step_us / 1e3)
    eager = PLAN["servers"]["qwen2.5-7b eager"]
    assert eager["launches"] == 28 * 10 + 8
    assert eager["decode"]["8"]["launch_ms"] == pytest.approx(288 * GPU.launch_us / 1e3)
    assert eager["decode"]["8"]["predicted_ms"] == pytest.approx(
        max(told["floor_ms"], eager["decode"]["8"]["launch_ms"]) + GPU.step_us / 1e3)
    assert PLAN["servers"]["qwen3-30b-a3b graph"]["decode"]["32"]["experts_read"] == pytest.approx(
        128 * (1 - (127 / 128) ** 256))  # the preset's engine draws each of 256 experts independently
    other = exp.predict(replace(GPU, draws_may_repeat=False), hardware=load_profile("h200"))
    assert other["servers"]["qwen3-30b-a3b graph"]["decode"]["32"]["experts_read"] == pytest.approx(111.77, abs=0.01)


def test_prompts_are_launched_one_by_one_in_both_modes():
    both = [PLAN["servers"][f"qwen2.5-7b {mode}"]["ttft"]["1024"] for mode in ("graph", "eager")]
    assert both[0] == both[1] and both[0]["launch_ms"] > 0 and both[0]["memory_share"] < 0.1
    experts = PLAN["servers"]["qwen3-30b-a3b graph"]["ttft"]["1024"]
    assert experts["experts_read"] == pytest.approx(128) and experts["by_part_ms"]["routed_experts"] == pytest.approx(
        1e3 * 2 * 28_991_029_248 / 4.3e12)  # 64 rows an expert: the weights' bytes decide


def test_on_a_cpu_launch_and_work_add_up():
    told = exp.predict(exp.Params())["servers"]["tiny-qwen2 eager"]["decode"]["1"]
    assert told["predicted_ms"] == pytest.approx(told["floor_ms"] + told["launch_ms"] + 5.0)
    assert exp.predict(exp.Params())["rates"]["source"] == "assumed"
    assert PLAN["rates"]["source"] == "profile h200" and PLAN["rates"]["bytes_per_s"] == 4.3e12


def test_launches_are_counted_layer_by_layer():
    count = {name: decode_prediction.launches_per_step(DecoderShape(**load_model(name).decoder_shape()))
             for name in ("tiny-qwen2", "tiny-qwen3-moe", "tiny-deepseek-v2")}
    assert count == {"tiny-qwen2": 2 * 10 + 8, "tiny-qwen3-moe": 2 * 17 + 8, "tiny-deepseek-v2": (11 + 3) + 23 + 8}


def test_what_went_in_comes_out():
    found = analyze.results(everything(itl_ms=5.0, ttft_ms=40.0), PLAN)
    seen = found["itl_ms"]["qwen3-30b-a3b graph"]["32"]
    assert seen["value"] == pytest.approx(5.0) and seen["n"] == 3 * 32 * (63 - 31)
    assert found["ttft_ms"]["deepseek-v2-lite graph"]["4096"]["value"] == pytest.approx(40.0)
    assert found["ttft_ms"]["deepseek-v2-lite graph"]["4096"]["n"] == 20
    assert found["server_prefill_ms"]["qwen2.5-7b graph"]["1024"] == pytest.approx(4.0)
    assert found["capacity_tokens"]["qwen3-30b-a3b graph"] == 43680
    assert found["num_steps"]["qwen2.5-7b eager"] == {"1": 3 * 63, "8": 3 * 56, "32": 3 * 32}
    told = PLAN["servers"]["qwen2.5-7b eager"]["decode"]["1"]
    assert found["residual_pct"]["itl"]["qwen2.5-7b eager"]["1"] == pytest.approx(
        100 * (5.0 / told["predicted_ms"] - 1), abs=0.01)
    assert found["over_floor_ms"]["itl"]["qwen2.5-7b eager"]["1"] == pytest.approx(5 - told["floor_ms"], abs=1e-3)


def test_a_line_through_the_batches():
    """A step that costs 0.5 ms and its bytes at 4,000 GB/s."""
    predicted = {"a": {"decode": {str(b): {"bytes": 4e9 * b} for b in (1, 8, 32)}}}
    found = analyze.fits({"a": {str(b): {"value": 0.5 + b} for b in (1, 8, 32)}}, predicted)
    assert found["a"] == {"fixed_ms": pytest.approx(0.5), "gb_per_s": pytest.approx(4000)}
    flat = analyze.fits({"a": {str(b): {"value": 1.0} for b in (1, 8)}}, predicted)
    assert flat["a"]["gb_per_s"] is None
    assert analyze.fits({"a": {"1": {"value": 1.0}}}, predicted) == {"a": None}


def test_all_oracles_pass_on_a_right_run():
    found = verdicts(everything())
    assert all(oracle.passed for oracle in found.values()), [o for o in found.values() if not o.passed]
    assert {"experts_two_ways", "routing_uniform", "weights_loaded qwen2.5-7b graph", "under_the_roof"} <= set(found)


def broken(change):
    """A right run with one thing changed in it."""
    run = everything()
    change(run)
    return {name for name, oracle in verdicts(run).items() if not oracle.passed}


def of(run, name):
    return next(one for one in run if one.name == name)


def swap(run, name, old, new):
    one = of(run, name)
    assert old in one.log
    one.log = one.log.replace(old, new)


def counted(run, *, index=0, **change):
    point = of(run, "qwen2.5-7b graph").points[index]
    told = dict(prompt=3 * 1024, output=3 * 64, finished=3, prefill_s=0.012) | change
    point.pages = (page(), page(**told))


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda run: swap(run, "qwen2.5-7b graph", "74,896", "74,880"), {"capacity_by_log"}),
        (lambda run: setattr(of(run, "qwen2.5-7b graph"), "page", page(blocks=4680, block_size=16)),
         {"capacity_by_page"}),
        (lambda run: setattr(of(run, "qwen2.5-7b graph"), "page", page(blocks=2340, block_size=32)),
         {"capacity_by_page", "block_size_kept"}),
        (lambda run: setattr(of(run, "qwen2.5-7b graph"), "page", "other 1\n"),
         {"capacity_by_page", "block_size_kept"}),
        (lambda run: counted(run, prompt=3 * 1024 - 1), {"server_counts_alike"}),
        (lambda run: counted(run, output=3 * 64 + 1), {"server_counts_alike"}),
        (lambda run: counted(run, finished=2), {"server_counts_alike"}),
        (lambda run: counted(run, hits=16), {"nothing_shared_or_evicted"}),
        (lambda run: counted(run, preemptions=1), {"nothing_shared_or_evicted"}),
        (lambda run: swap(run, "qwen3-30b-a3b graph", "uniform_random", "normal_routing"), {"routing_uniform"}),
        (lambda run: swap(run, "deepseek-v2-lite graph", "Simulating", "Not simulating"), {"routing_uniform"}),
        (lambda run: swap(run, "qwen2.5-7b graph", "took 14.19", "took 7.1"), {"weights_loaded qwen2.5-7b graph"}),
        (lambda run: run.pop(), {"servers_measured", "capacity_by_log", "capacity_by_page", "block_size_kept",
                                 "points_measured", "routing_uniform"}),
        (lambda run: run[0].points.pop(), {"points_measured"}),
    ],
)
def test_oracles_notice(change, names):
    assert broken(change) == names


def test_an_oracle_notices_a_failed_request():
    run = everything()
    part = run[0].points[-1].rounds[0]
    part[0] = result(error="HTTP 500: planted")
    found = verdicts(run)
    assert not found["none_failed"].passed and "planted" in str(found["none_failed"].seen)
    assert not found["exact_tokens"].passed


def test_an_oracle_notices_a_batch_that_was_not_whole():
    """One request that starts when the others are nearly done: few steps in common."""
    run = everything()
    point = run[0].points[1]
    for part in point.rounds:
        late = part[-1]
        part[-1] = result(index=late.index, ttft_s=(late.ttft_s or 0) + 40 * late.gaps_s[0],
                          gap_s=late.gaps_s, prompt=1024, output=64)
    assert {name for name, oracle in verdicts(run).items() if not oracle.passed} == {"batch_together"}


def test_a_load_without_any_common_step_names_the_point():
    run = everything()
    run[0].points[1].rounds = [[result(ttft_s=0.1, gap_s=0.01, output=64), result(index=1, ttft_s=9.0, output=64)]]
    with pytest.raises(ValueError, match=r"qwen2\.5-7b graph, batch 8: no step"):
        analyze.results(run, PLAN)


def test_a_step_that_is_faster_than_its_bytes_is_noticed():
    run = everything()
    run[0] = served("qwen2.5-7b graph", PLAN["servers"]["qwen2.5-7b graph"], GPU, itl_ms=2.0)
    assert not verdicts(run)["under_the_roof"].passed


def test_wrong_formulas_are_noticed():
    plan = copy.deepcopy(PLAN)
    plan["servers"]["qwen3-30b-a3b graph"]["decode"]["8"]["experts_read"] += 1e-6
    plan["tensor_parameters"]["qwen2.5-7b graph"] += 1
    found = verdicts(everything(), plan)
    assert not found["experts_two_ways"].passed and not found["parameters_two_ways"].passed


def test_server_names():
    assert decode_prediction.split_server("a graph") == ("a", "graph")
    for name in ("a", "a fast", " eager", "a  eager"):
        with pytest.raises(ValueError, match="servers"):
            decode_prediction.split_server(name)


def test_facts_of_a_start():
    told = PLAN["servers"]["deepseek-v2-lite graph"]
    facts = analyze.start_facts(served("deepseek-v2-lite graph", told, GPU))
    assert facts["log_tokens"] == facts["page_tokens"] == 138080 and facts["simulated_routing"] == "uniform_random"
    assert facts["model_load_gib"] == pytest.approx(29.26) and facts["page_blocks"] == 8630
    assert "uniform_random" in LOG


def test_samples_keep_one_stream_a_round():
    kept = analyze.samples(everything(itl_ms=5.0))
    assert len(kept) == 4 * 5
    steps = kept["qwen2.5-7b graph decode 32"]["values"]
    assert [len(part) for part in steps] == [32, 32, 32] and set(steps[0]) == {5.0}
    assert [len(part) for part in kept["qwen2.5-7b eager ttft 1024"]["values"]] == [1] * 20
