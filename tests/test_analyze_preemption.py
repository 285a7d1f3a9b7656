"""What the preemption lab makes of its rounds: a stand-in engine gives its counts back; planted lies are noticed."""

import copy
import json
from types import SimpleNamespace

import pytest

from labkit.analyze import preemption as analyze
from labkit.analyze import preemption_lines as reader
from labkit.analyze.preemption_costs import calibrate, times_with, used_points
from labkit.analyze.preemption_oracles import oracles
from labkit.analyze.preemption_plan import contrast, point_labels, prediction, rounds
from labkit.conduct import plain_params
from labkit.experiments import vllm_preemption as exp
from labkit.launch.load_plan import Request
from tests.preemption_engine import STEP_S, StandIn, page

SMALL = {"num_blocks": (36, 144), "num_requests": 8, "prompt_tokens": 96, "output_tokens": 80, "max_model_len": 256,
         "max_num_seqs": 8, "max_num_batched_tokens": 256, "small_concurrency": (3, 8), "large_concurrency": (8,),
         "rounds": 2, "stagger_ms": (0, 40), "step_ms": 10.0, "token_us": 1.0, "request_us": 0.0}
PARAMS = plain_params(exp.Params(**SMALL))


def made_lines(tmp_path, params=PARAMS, *, usage=True):
    """Lines of a run on stand-ins, as the slice would write them."""
    predicted = prediction(params, kv_bytes_per_token=512)
    servers, lines = {}, []
    for cache, blocks in predicted["blocks"].items():
        settings = SimpleNamespace(num_blocks=blocks, kv_cache_memory_bytes=None, **{
            name: params[name] for name in ("block_size", "max_model_len", "max_num_seqs", "max_num_batched_tokens")})
        folder = tmp_path / cache.replace(" ", "")
        folder.mkdir()
        servers[cache] = StandIn(settings, folder, usage=usage)
        lines.append(reader.server_line(servers[cache].log_text(), startup_s=30.0, cache=cache, start=0))
    for about in rounds(params, predicted, start=0):
        gap = about["gap_ms"]
        plan = [Request(prompt_ids=(1,) * params["prompt_tokens"], output_tokens=about["output_tokens"],
                        at_s=gap / 1e3 * number if gap else None) for number in range(about["num_requests"])]
        seen = servers[about["cache"]].observe(plan, concurrency=about["concurrency"],
                                               held=about["purpose"] != "stagger")
        load = seen.release.load
        lines.append(reader.round_line(
            plan, load.answers, started_s=load.started_s, ended_s=load.ended_s, released_s=seen.release.released_s,
            lag_p99_s=0.001, how=seen.release.how, before=seen.before, after=seen.after, samples=seen.samples,
            log_text=seen.log_text, **about))
    return json.loads(json.dumps(lines)), predicted


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return made_lines(tmp_path_factory.mktemp("engine"))


def judged(lines, predicted, params=PARAMS):
    found = analyze.results(lines, params, predicted)
    return found, {oracle.name: oracle for oracle in oracles(params, lines, found, predicted)}


def test_names():
    assert list(point_labels(PARAMS)) == ["1 GiB / 3", "1 GiB / 8", "4 GiB / 8"]
    assert contrast(PARAMS) == ("1 GiB / 8", "4 GiB / 8")


def test_counts_that_went_in_come_out(made):
    lines, predicted = made
    found, checks = judged(lines, predicted)
    assert all(oracle.passed for oracle in checks.values()), [o for o in checks.values() if not o.passed]
    told = predicted["points"]["1 GiB / 8"]
    assert told["preemptions"] > 0 and found["count"] == {
        "1 GiB / 3": 0, "1 GiB / 8": told["preemptions"], "4 GiB / 8": 0}
    assert found["recomputed_tokens"]["1 GiB / 8"] == told["recomputed_tokens"] > 0
    assert found["kv_tokens"] == {"1 GiB / 3": 1152, "1 GiB / 8": 1152, "4 GiB / 8": 4608}
    assert found["num_steps"]["1 GiB / 8"] == [told["num_steps"]] * 2
    assert found["num_steps"]["1 GiB / 3"][0] > predicted["points"]["1 GiB / 3"]["num_steps"], "a client is late"
    assert found["steps_different"] == 0 and found["usage_different"] == 0 and found["steps_compared"] > 500
    quiet = predicted["plan"]["quiet_concurrency"]
    assert found["plan"]["preemptions"][str(quiet)] == 0 < found["plan"]["preemptions"][str(quiet + 1)]
    assert [seen["gap_ms"] for seen in found["stagger"]] == [0, 40]
    assert all(seen["preemptions"] == seen["model"] for seen in found["stagger"])


def test_times_from_the_release(made):
    """The stand-in's steps take 10 ms each, whatever is in them, so times are the model's to the millisecond."""
    lines, predicted = made
    found, _ = judged(lines, predicted)
    for label in ("1 GiB / 8", "4 GiB / 8"):
        told = times_with(PARAMS, predicted, label, {"step_ms": 1e3 * STEP_S, "request_us": 0.0, "token_us": 0.0})
        assert {name: found[name][label]["value"] for name in told} == pytest.approx(told, rel=0.01)
    assert found["ttft"]["1 GiB / 8"]["n"] == 2 and found["requests"]["1 GiB / 8"]["ttft_s"]["n"] == 16


def test_unit_costs_that_went_in_come_out(made):
    """From three means of quiet rounds; whatever the round that preempts says."""
    _, predicted = made
    costs = {"step_ms": 4.0, "request_us": 300.0, "token_us": 20.0}
    found = {name: {} for name in ("throughput", "ttft", "tpot", "e2el")}
    for label in point_labels(PARAMS):
        for name, value in times_with(PARAMS, predicted, label, costs).items():
            found[name][label] = {"value": value if label != "1 GiB / 8" else 1e9}
    assert calibrate(PARAMS, predicted, found) == pytest.approx(costs)
    assert "1 GiB / 8" not in {label for _, label in used_points(PARAMS)}
    free = {name: dict(by_label) for name, by_label in found.items()}
    free["tpot"]["1 GiB / 3"] = {"value": 1.2 * free["tpot"]["4 GiB / 8"]["value"]}
    assert calibrate(PARAMS, predicted, free)["request_us"] == 0, "fewer requests a step, yet slower: noise"
    del found["tpot"]["1 GiB / 3"]
    assert calibrate(PARAMS, predicted, found) is None
    assert calibrate({**PARAMS, "small_concurrency": [8]}, predicted, found) is None


def test_what_the_report_explains_and_what_it_does_not(made):
    lines, predicted = made
    found, _ = judged(lines, predicted)
    assert found["implicit_throttle"] == {
        "fewer_running": True, "recomputes": True, "longer_decode": True, "earlier_first_token": False}
    assert found["ratios"]["throughput_pct"] < 90 and found["ratios"]["tpot_slower_pct"] > 0
    assert found["ratios"]["ttft_lower_pct"] == pytest.approx(0, abs=0.1)
    assert found["cold_ttft"]["1 GiB"]["ratio"] == pytest.approx(1, abs=0.01)


def change(lines, purpose, **changes):
    lines = copy.deepcopy(lines)
    line = next(line for line in lines if line.get("purpose") == purpose and line["label"] != "1 GiB / 3")
    for name, value in changes.items():
        owner, _, key = name.rpartition("__")
        (line[owner] if owner else line)[key] = value(line) if callable(value) else value
    return lines


def without_last_step(line):
    return line["steps"][:-1]


def more_tokens(line):
    return [*line["steps"][:-1], [*line["steps"][-1][:4], line["steps"][-1][4] + 1, *line["steps"][-1][5:]]]


def failed_request(line):
    return [{**line["requests"][0], "success": False, "error": "cut"}, *line["requests"][1:]]


def short_request(line):
    return [{**line["requests"][0], "output_tokens": 79}, *line["requests"][1:]]


@pytest.mark.parametrize(("purpose", "changes", "failing"), [
    ("point", {"counts__preemptions": 0}, "preemptions by the engine's counter, each round"),
    ("point", {"steps": more_tokens}, "tokens computed again by the engine's log"),
    ("point", {"steps": more_tokens}, "steps in which the engine and the model differ"),
    ("point", {"steps": without_last_step}, "steps of rounds whose requests were all released together"),
    ("stagger", {"steps": more_tokens}, "steps in which the engine and the model differ"),
    ("point", {"requests": failed_request}, "requests that failed or have another number of tokens"),
    ("plan", {"requests": short_request}, "requests that failed or have another number of tokens"),
    ("point", {"requests": lambda line: line["requests"][1:]}, "requests answered"),
    ("point", {"counts__generation_tokens": 9}, "requests finished, prompt and generation tokens by the counters"),
    ("cold", {"page_error": "server restarted between scrapes"},
     "rounds whose two pages of metrics are of one life of the server"),
    ("point", {"checks": [{"name": "sources sum", "passed": False, "expected": 1, "seen": 2}]},
     "identities of the counters that do not hold"),
    ("point", {"num_lost_steps": 3}, "steps missing in the log"),
    ("plan", {"counts__preemptions": 1}, "preemptions at the planner's concurrency"),
    ("point", {"samples": [{"t_s": 1.0, "kv_cache_usage": 1.01, "running": 8, "waiting": 0}]},
     "sampled peaks of the cache's use (%)"),
    ("point", {"samples": [{"t_s": 1.0, "kv_cache_usage": 0.5, "running": 9, "waiting": 0}]},
     "peaks of running requests, sampled"),
])
def test_oracles_notice(made, purpose, changes, failing):
    lines, predicted = made
    _, checks = judged(change(lines, purpose, **changes), predicted)
    assert not checks[failing].passed, checks[failing]


def test_without_a_release_the_model_gets_the_arrivals(made):
    """A server that cannot be held: counts are judged by the model on the arrivals that its log shows."""
    lines, predicted = copy.deepcopy(made)
    for line in lines:
        if line["kind"] == "round":
            line["how"] = "sent at once: /pause answered 404"
    _, checks = judged(lines, predicted)
    assert all(oracle.passed for oracle in checks.values()), [o for o in checks.values() if not o.passed]
    assert "arrivals" in checks["preemptions by the engine's counter, each round"].detail
    assert "steps of rounds whose requests were all released together" not in checks
    _, checks = judged(change(lines, "point", counts__preemptions=9), predicted)
    assert not checks["preemptions by the engine's counter, each round"].passed


def test_nothing_sampled_is_noticed(made):
    lines, predicted = made
    lines = [{**line, "samples": []} if line["kind"] == "round" else line for line in lines]
    _, checks = judged(lines, predicted)
    assert not checks["sampled peaks of the cache's use (%)"].passed


def test_a_planner_that_is_too_careful_is_noticed(made):
    lines, predicted = copy.deepcopy(made)
    for line in lines:
        if line.get("purpose") == "plan":
            line["counts"]["preemptions"] = 0
    _, checks = judged(lines, predicted)
    assert not checks["preemptions at one above the planner's concurrency"].passed


@pytest.mark.parametrize(("change", "failing"), [
    ({"kv_cache_tokens": 1120}, "tokens of the cache by the server's log"),
    ({"max_concurrency": 4.49}, "maximum concurrency as the server's log prints it")])
def test_another_cache_is_noticed(made, change, failing):
    lines, predicted = made
    lines = [{**line, **change} if line["kind"] == "server" and line["cache"] == "1 GiB" else line for line in lines]
    _, checks = judged(lines, predicted)
    assert not checks[failing].passed


def test_a_wrong_use_of_the_cache_after_a_step_is_noticed(made):
    lines, predicted = copy.deepcopy(made)
    lines[-1]["steps"][20][6] += 0.2
    _, checks = judged(lines, predicted)
    assert not checks["steps after which the use of the cache differs from the model"].passed


def test_rounds_that_were_not_run_are_noticed(made):
    lines, predicted = made
    for purpose in ("cold", "point", "plan", "stagger"):
        left = [line for line in lines if line.get("purpose") != purpose]
        assert not judged(left, predicted)[1]["rounds that were run"].passed


def test_an_older_release_s_log_has_no_use_of_the_cache(tmp_path):
    lines, predicted = made_lines(tmp_path, usage=False)
    found, checks = judged(lines, predicted)
    assert "steps after which the use of the cache differs from the model" not in checks
    assert all(oracle.passed for oracle in checks.values()) and found["peak_kv_step"]["1 GiB / 8"] is None


def test_a_restarted_server_is_noticed(tmp_path):
    """Two pages of two lives: no count is a difference of theirs."""
    before, after = (page(preemptions=n, prompt=n, generation=n, finished=n, start=start) for n, start in (
        (9, 1.0), (4, 500.0)))
    line = reader.round_line([], [], started_s=0.0, ended_s=2.0, released_s=1.0, lag_p99_s=0.0, how="", before=before,
                             after=after, samples=[], log_text="", purpose="point")
    assert "restarted" in line["page_error"] and line["counts"]["preemptions"] is None


def test_lines_that_are_damaged_are_told(tmp_path):
    assert reader.read_lines(tmp_path) == []
    (tmp_path / reader.LINES).write_text('{"kind": "server"}\n{"kind":\n')
    with pytest.raises(ValueError, match="line 2"):
        reader.read_lines(tmp_path)
    assert reader.num_finished("<html>") == -1
