"""The prefix-cache lab with a stand-in for the server, what its oracles notice, and once the real engine."""

import os
from dataclasses import replace

import pytest

from labkit.engine.find import EngineMissing
from labkit.experiments import vllm_prefix_cache as exp
from labkit.presets import build_params
from labkit.records import RecordError, check_run
from tests.prefix_server import install

SMALL = exp.Params(block_size=32, large_blocks=1200, small_blocks=48, num_requests=12, num_anchors=2, concurrency=4,
                   prefix_tokens=128, suffix_tokens=16, output_tokens=4, warmup_requests=2, tenant_prompts=3,
                   tail_lengths=(33, 95, 128), popularity=(4, 2, 2), max_model_len=512, max_num_seqs=8,
                   max_num_batched_tokens=256, trace_cache_tokens=(20000, 80000), timeout_s=60)  # fmt: skip


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """One run with stand-ins; several tests look at it."""
    with pytest.MonkeyPatch.context() as patch:
        root = tmp_path_factory.mktemp("runs")
        patch.setenv("LABKIT_RUNS_DIR", str(root))
        install(patch, exp, drill=True)
        record = exp.run(SMALL, preset="smoke")
    return record, root


def test_run_from_prediction_to_figures(played):
    record, root = played
    assert record.status == "ok", [oracle for oracle in record.oracles if not oracle.passed]
    assert check_run(root / exp.SLUG / record.run_id) == [] and exp.check(record)["passed"].all()
    assert record.results["hit_tokens"] == record.prediction["values"]["hit_tokens"]
    assert len(exp.table(record)) == 2 * 5
    assert set(exp.figures(record)) == {"rates", "ttft", "tails", "routing", "agent_trace"}
    assert all(fig.layout.meta["caption"] for fig in exp.figures(record).values())
    assert record.results["server_lifecycle"] and record.results["lifecycle_why"]
    assert len(record.samples["ttft default warm"]["values"]) == 2, "one list a start"
    assert set(record.results["routing"]["round robin"]) == {"large0", "large1"}


def test_hits_by_hand(played):
    """12 requests on 2 prefixes of 4 blocks; the fifth block is never full; 12 strangers bring 48 full blocks."""
    hits = played[0].results["hit_tokens"]
    assert hits["default"] == {"cold": 1280, "warm": 1536, "pollution": 0, "revisit": 1536, "rewarm": 1536}
    assert hits["1 GiB"]["revisit"] == hits["1 GiB"]["cold"] == 10 * 128
    assert played[0].results["hit_small"] == {"hit": 1280, "query": 12 * 144, "pct": pytest.approx(74.074)}
    assert played[0].results["tail_hits"] == {"tail 33": 32, "tail 95": 64, "tail 128": 128, "whole 128": 96}
    assert played[0].results["tenant_hits"] == {
        "tenant a": 0, "tenant b": 0, "tenant a again": 3 * 128, "no salt": 0}


def test_what_is_simulated_says_so(played):
    record, _ = played
    assert record.results["simulated_agent_trace"]["evidence"] == "simulated"
    fig = exp.figures(record)["agent_trace"]
    assert "imulated" in fig.layout.title.text and "imulated" in fig.layout.meta["caption"]
    assert all("simulated" in trace.name for trace in fig.data)


def test_compare_has_prediction_run_and_report(played):
    frame = exp.compare([played[0]]).set_index(["result", "cache"])
    quoted = frame["8x V100 (quoted)"]
    assert quoted["revisit_hit_tokens", "1 GiB"] == 45056 and quoted["ttft_revisit", "1 GiB"] == 321.58
    assert quoted["cap_tokens", "default"] == 225200 and quoted["query_tokens", "each phase"] == 50688
    assert frame["predicted"]["warm_hit_tokens", "default"] == 1536
    column = next(name for name in frame.columns if name.endswith("block 32"))
    assert frame[column]["ttft_cold", "default"] > 0
    assert frame["predicted"].isna()["ttft_cold", "default"], "no time is predicted"


def test_replay_refuses_other_parameters(monkeypatch, played):
    record, root = played
    monkeypatch.setenv("LABKIT_RUNS_DIR", str(root))
    assert exp.load(record.run_id, expect=SMALL).run_id == record.run_id
    with pytest.raises(RecordError, match="seed"):
        exp.load(record.run_id, expect=replace(SMALL, seed=5))


@pytest.mark.parametrize(("server", "fault", "oracle"), [
    ("large0", "one_hit_more", "engine_equals_model"), ("small0", "probe", "query_tokens"),
    ("large1", "usage", "prompt_tokens"),
    ("large0", "identity", "identities"), ("small0", "restart", "no_restart"), ("large0", "no_salt", "salts_isolate"),
    ("small1", "capacity", "capacity"), ("large1", "left", "nothing_left"), ("large0", "short", "no_failures"),
    ("large1", "one_hit_more", "same_in_every_start"), ("small0", "one_hit_more", "block_arithmetic_1_GiB"),
])  # fmt: skip
def test_oracles_notice(monkeypatch, tmp_path, server, fault, oracle):
    monkeypatch.setenv("LABKIT_RUNS_DIR", str(tmp_path))
    install(monkeypatch, exp, faults={server: (fault,)})
    record = exp.run(SMALL)
    assert record.status == "failed"
    assert oracle in {found.name for found in record.oracles if not found.passed}


def test_a_server_that_dies_keeps_what_was_measured(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_RUNS_DIR", str(tmp_path))
    install(monkeypatch, exp, faults={"large1": ("dies",)})
    record = exp.run(SMALL)
    assert record.status == "failed" and record.failure["message"].endswith("large1 died: CUDA out of memory")
    assert len(record.samples["ttft default cold"]["values"]) == 2 and "hit_tokens" not in record.results
    with pytest.raises(RecordError, match="CUDA out of memory"):
        exp.check(record)


def test_small_runs_use_one_server_of_each_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_RUNS_DIR", str(tmp_path))
    install(monkeypatch, exp)
    record = exp.run(replace(SMALL, starts=1), preset="smoke")
    assert record.status == "ok", [oracle for oracle in record.oracles if not oracle.passed]
    assert set(record.results["routing"]["prefix-aware"]) == {"large0", "small0"}
    assert record.results["noise_floor_pct"] is not None, "rewarm over warm is noise as well"


def test_no_engine_is_one_line_and_a_usage_error(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_RUNS_DIR", str(tmp_path))
    monkeypatch.setenv("LABKIT_VLLM_PYTHON", str(tmp_path / "nowhere"))
    with pytest.raises(EngineMissing, match="labkit engine install"):
        exp.run(SMALL)
    assert "engine install" in (exp.missing("cpu") or "") and not list(tmp_path.iterdir())


@pytest.mark.parametrize("preset", ["cpu", "gpu1"])
def test_presets_keep_the_settings_of_the_report(preset):
    params = build_params(exp.Params, exp.SLUG, preset)
    found = exp.predict(params)
    assert found["query_tokens"] == 50688 and found["hit_tokens"]["1 GiB"]["revisit"] == 45056
    warm = {16: 49920, 32: 49152}
    assert found["hit_tokens"]["default"]["revisit"] == warm[params.block_size]
    assert {size: phases["warm"] for size, phases in found["by_block_size"]["default"].items()} == {
        str(size): hits for size, hits in warm.items()}
    assert found["cap_tokens"]["1 GiB"] == 18720
    if params.block_size == 16:
        assert found["cap_tokens"]["default"] == 225200
        assert {case: round(rate, 1) for case, rate in found["lifetime_pct"].items()} == {
            "default": 76.9, "1 GiB": 74.9}


def test_smoke_is_the_same_with_half_the_requests():
    found = exp.predict(build_params(exp.Params, exp.SLUG, "smoke"))
    assert found["hit_tokens"] == found["closed_form"]
    assert found["hit_tokens"]["1 GiB"]["revisit"] == found["hit_tokens"]["1 GiB"]["cold"] == 20 * 1024
    assert found["hit_tokens"]["default"]["revisit"] == 24 * 1024 and found["cap_tokens"]["1 GiB"] == 18720


@pytest.mark.parametrize(("wrong", "name"), [
    ({"device": "tpu"}, "device"), ({"block_size": 16}, "block_size"), ({"together": 1}, "together"),
    ({"num_anchors": 99}, "num_anchors"), ({"tail_lengths": ()}, "tail_lengths"), ({"popularity": (0,)}, "popularity"),
    ({"max_model_len": 100}, "max_model_len"), ({"max_client_lag_s": 0}, "max_client_lag_s"), ({"starts": 0}, "starts"),
])  # fmt: skip
def test_bad_parameters_name_the_argument(wrong, name):
    with pytest.raises(ValueError, match=name):
        exp.Params(**wrong)


@pytest.mark.slow
def test_the_real_engine(monkeypatch, tmp_path):
    """Two servers for a minute or two; every counter of every step as predicted, and nothing left behind."""
    if os.environ.get("LABKIT_VLLM_PYTHON") is None and exp.missing("cpu"):
        pytest.skip(exp.missing("cpu"))
    monkeypatch.setenv("LABKIT_RUNS_DIR", str(tmp_path))
    record = exp.run(replace(SMALL, starts=1, max_client_lag_s=2.0, timeout_s=600), preset="smoke")
    assert record.status == "ok", (record.failure, [oracle for oracle in record.oracles if not oracle.passed])
