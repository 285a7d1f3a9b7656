"""Lines and results of the prefix-cache lab from made-up pages, and the drill with real processes."""

import json
import sys
from types import SimpleNamespace

import pytest

from labkit.analyze import prefix_cache as results
from labkit.analyze import prefix_cache_tables as tables
from labkit.analyze.prefix_cache_lines import blocks_on, num_finished, server_line, step_line, told
from labkit.analyze.prefix_cache_oracles import drill_oracle
from labkit.launch.counted_load import processes_of, still_running
from labkit.launch.load_client import Answer, Load
from labkit.launch.load_plan import Request
from labkit.launch.supervise import start_program
from labkit.workers.orphan_drill import drill, within

CONFIG = 'vllm:cache_config_info{block_size="32",num_cpu_blocks="None",num_gpu_blocks="585"} 1.0\n'


def page(*, queries=0, hits=0, finished=0, prompt=None, generated=0, start=5.0):
    prompt = queries if prompt is None else prompt
    return (f"vllm:prefix_cache_queries_total {queries}\nvllm:prefix_cache_hits_total {hits}\n"
            f"vllm:num_preemptions_total 0\nvllm:prompt_tokens_total {prompt}\n"
            f"vllm:generation_tokens_total {generated}\n"
            f'vllm:request_success_total{{finished_reason="length"}} {finished}\n'
            f'vllm:prompt_tokens_by_source_total{{source="local_compute"}} {prompt - hits}\n'
            f'vllm:prompt_tokens_by_source_total{{source="local_cache_hit"}} {hits}\n'
            f"process_start_time_seconds {start}\n" + CONFIG)


def answer(index, *, ttft_s, tokens=2, sent=10.0, prompt=4):
    event = b'data: {"choices": [{"index": 0, "text": "a", "token_ids": [7]}]}\n\n'
    usage = (b'data: {"choices": [], "usage": {"prompt_tokens": %d, "completion_tokens": %d}}\n\ndata: [DONE]\n\n'
             % (prompt, tokens))
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    return Answer(index=index, planned_s=None, sent_s=sent, ended_s=sent + 1,
                  pieces=[(sent + ttft_s, head + event), (sent + ttft_s + 0.5, event * (tokens - 1) + usage)])


def step(**changes):
    plan = [Request(prompt_ids=(1, 2, 3, 4), output_tokens=2)] * 2
    load = Load(answers=[answer(0, ttft_s=0.1), answer(1, ttft_s=0.3)], started_s=10.0, ended_s=12.0, loop_lag_s=[],
                cpu_s=0.1)
    seen = {"plan": plan, "load": load, "before": page(queries=80, hits=16, finished=5, generated=9),
            "after": page(queries=88, hits=20, finished=7, generated=13), **changes}
    return step_line("large0", "cold", **seen)


def test_a_step_by_hand():
    line = step()
    assert results.counted(line) == {"query_tokens": 8, "hit_tokens": 4, "preemptions": 0, "generated_tokens": 4}
    assert line["ttft_ms"] == pytest.approx([100, 300]) and line["wall_s"] == 2.0 and line["num_failed"] == 0
    assert line["sent_prompt_tokens"] == line["usage_prompt_tokens"] == line["pair"]["prompt_tokens"] == 8
    assert line["pair"]["requests_finished"] == 2 and all(check["passed"] for check in line["pair"]["checks"])
    assert line["before"]["prefix_cache_queries"] == 80 and line["after"]["prefix_cache_hits"] == 20
    assert "4 of 8 tokens hit" in told(line) and "failed" not in told(line)
    json.dumps(line, allow_nan=False)


def test_what_never_came_back_is_a_failure():
    load = Load(answers=[answer(0, ttft_s=0.1)], started_s=10.0, ended_s=12.0, loop_lag_s=[], cpu_s=0.1)
    line = step(load=load)
    assert line["num_failed"] == 1 and line["ttft_ms"] == [100.0] and "1 failed" in told(line)


def test_a_restart_has_no_counts():
    line = step(after=page(queries=8, hits=4, finished=2, start=99.0))
    with pytest.raises(ValueError, match="large0 cold: server restarted"):
        results.counted(line)


def test_a_page_without_the_counter_is_named():
    lacking = "\n".join(text for text in page(queries=88).splitlines() if "preemptions" not in text) + "\n"
    with pytest.raises(ValueError, match="no counter of preemptions"):
        results.counted(step(after=lacking, before=lacking))


def test_server_line_takes_the_log_and_else_the_page():
    options = dict(page=page(), block_size=32, startup_s=3.0, version="0.32.0")
    log = "INFO 11-30 02:46:32 [kv_cache_utils.py:2327] CPU KV cache size: 225,216 tokens, Maximum concurrency\n"
    assert server_line("large1", log=log, **options)["kv_cache_tokens"] == 225216
    found = server_line("small0", log="", **options)
    assert found["kv_cache_tokens"] == 18720 and found["cache"] == "small"
    assert blocks_on("vllm:x 1\n") is None and num_finished(page(finished=3)) == 3 and num_finished("<html>") == 0


def phases(hits, *, cache="large", start=0, ttft=None, queries=100):
    """Lines of one server with these hit tokens by phase; each page carries on from the one before."""
    lines, total = [], {"prefix_cache_queries": 7, "prefix_cache_hits": 0, "preemptions": 0, "generation_tokens": 0}
    for name, hit in zip(results.PHASES, hits):
        pair = {"prefix_cache_queries": queries, "prefix_cache_hits": hit, "preemptions": 0, "generation_tokens": 4}
        after = {key: total[key] + pair[key] for key in total}
        lines.append({"kind": "step", "server": f"{cache}{start}", "cache": cache, "name": name, "num_requests": 10,
                      "wall_s": 2.0, "ttft_ms": (ttft or {}).get(name, [10.0, 20.0, 30.0]), "pair": pair,
                      "client_lag_p99_s": 0.001, "before": dict(total), "after": after})
        total = after
    return lines


def test_rates_of_a_phase_and_of_a_life():
    found = results.results([*phases([50, 90, 0, 90, 90]), *phases([50, 90, 0, 50, 90], cache="small")])
    assert found["hit_pct"]["1 GiB"]["revisit"] == 50.0 and found["lifetime_pct"] == {"default": 64.0, "1 GiB": 56.0}
    assert list(found["lifetime_pct_after"]["default"].values()) == pytest.approx([50, 70, 46.667, 57.5, 64])
    assert found["global_misleads"] is True and found["counter_diff"] is True
    assert found["hit_small"] == {"hit": 50, "query": 100, "pct": 50.0}


def test_a_lifetime_rate_that_tells_is_not_called_misleading():
    flat = results.results([*phases([50, 90, 60, 90, 90]), *phases([50, 90, 60, 50, 90], cache="small")])
    assert flat["global_misleads"] is False, "no phase is far below the lifetime rate"


def test_times_by_hand_and_the_noise_floor():
    slow = {"revisit": [40.0, 40.0, 100.0], "warm": [10.0, 20.0, 30.0]}
    other = {"warm": [11.0, 22.0, 33.0], "revisit": [40.0, 40.0, 100.0]}
    found = results.results([*phases([1] * 5, ttft=slow), *phases([1] * 5, ttft=other, start=1)])
    assert found["ttft_ms"]["default"]["warm"]["n"] == 6 and found["ttft_warm"]["default"] == 21.0
    assert found["ttft_ms"]["default"]["warm"]["p95"] == 33.0 and found["ttft_ms"]["default"]["warm"]["value"] == 21.0
    assert found["revisit_warm_mean"]["default"] == pytest.approx(60 / 21, abs=1e-3)
    assert found["revisit_warm_p95"]["default"] == pytest.approx(100 / 33, abs=1e-3)
    assert found["aa_ratio"]["default, warm, two starts"] == pytest.approx(1.1)
    assert found["aa_ratio"]["default, rewarm over warm"] == pytest.approx(20 / 21, abs=1e-3)
    assert found["noise_floor_pct"] == pytest.approx(10.0) and found["throughput_ratio"]["default"] == 1.0


def test_counters_that_do_not_add_up_are_noticed():
    lines = phases([50, 90, 0, 90, 90])
    lines[2]["pair"] = {**lines[2]["pair"], "prefix_cache_hits": 3}
    assert results.is_difference(lines) is False
    fresh = phases([50, 90, 0, 90, 90])
    for line in fresh:  # totals that begin anew at each step would be differences already
        line["before"], line["after"] = dict.fromkeys(line["before"], 0), dict(line["pair"])
    assert results.is_difference(fresh) is False


def test_lifecycle_needs_every_server_gone_and_the_drill():
    good = {"term_ignored": True, "child_survived": True, "left_after_group_kill": 0}
    lines = [{"kind": "server", "server": "large0"},
             {"kind": "end", "server": "large0", "num_processes": 3, "num_left": 0}]
    assert results.lifecycle(lines, good) == {"server_lifecycle": True, "lifecycle_why": True}
    assert results.lifecycle(lines[:1], good) == {"server_lifecycle": False, "lifecycle_why": False}
    left = [lines[0], {**lines[1], "num_left": 1}]
    assert results.lifecycle(left, good)["server_lifecycle"] is False
    alone = [lines[0], {**lines[1], "num_processes": 1}]
    assert results.lifecycle(alone, good)["lifecycle_why"] is False
    assert results.lifecycle(lines, {**good, "child_survived": False})["lifecycle_why"] is False
    assert drill_oracle(good).passed and not drill_oracle({**good, "left_after_group_kill": 1}).passed


def test_drill_with_real_processes():
    assert drill() == {"term_ignored": True, "child_survived": True, "left_after_group_kill": 0}


def test_processes_are_found_below_their_guard_and_seen_gone(tmp_path):
    code = ("import subprocess, sys, time\n"
            "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
            "print('up', flush=True)\ntime.sleep(60)\n")
    argv = [sys.executable, "-c", code]
    running = start_program(argv, run_dir=tmp_path, timeout_s=60, grace_s=1.0)
    try:
        assert within(lambda: "up" in (tmp_path / "log.txt").read_text())
        found = processes_of(argv)
        assert len(found) == 2 and still_running(found) == 2
    finally:
        running.stop()
    assert still_running(found) == 0 and processes_of(argv) == []


def test_lines_that_are_none_are_refused(tmp_path):
    path = tmp_path / "steps.jsonl"
    assert results.read_lines(path) == []
    path.write_text('{"kind": "end"}\n[1]\n')
    with pytest.raises(ValueError, match="expected JSON objects with a kind"):
        results.read_lines(path)


def test_a_slow_client_and_a_dead_server_are_launch_errors(monkeypatch, tmp_path):
    from labkit.launch import counted_load
    from labkit.launch.load_client import LoadClientError
    from labkit.launch.supervise import LaunchError

    server = SimpleNamespace(host="h", port=1, model="m", log=tmp_path / "log.txt", scrape=lambda: page(finished=1),
                             raise_if_dead=lambda: None)
    options = dict(before=page(), num_finished=num_finished, concurrency=1, timeout_s=1.0, max_lag_p99_s=1.0)
    plan = [Request(prompt_ids=(1,), output_tokens=1)]
    monkeypatch.setattr("labkit.launch.server.send_load", lambda *args, **kwargs: "the load")
    assert counted_load.send_counted(server, plan, **options).after == page(finished=1)
    pages = iter([page(), page(), page(finished=1)])
    server.scrape = lambda: next(pages)
    assert num_finished(counted_load.send_counted(server, plan, **options).after) == 1, "the page lags behind"
    server.scrape = page
    late = counted_load.send_counted(server, plan, settle_s=0.0, **options)
    assert num_finished(late.after) == 0, "not waited for for ever"

    def slow(*args, **kwargs):
        raise LoadClientError("woke late")

    monkeypatch.setattr("labkit.launch.server.send_load", slow)
    with pytest.raises(LaunchError, match="woke late"):
        counted_load.send_counted(server, plan, **options)


def test_noise_is_what_equal_things_differ_by():
    """The large cache's phases are alike but for chance; the small one's revisit takes twice as long."""
    times = {"default": {"cold": (10.0, 11.0), "warm": (10.0, 12.0), "pollution": (10.0, 10.0), "revisit": (11.0, 11.0),
                         "rewarm": (11.0, 11.0)}, "1 GiB": dict.fromkeys(results.PHASES, (10.0, 10.0))}
    times["1 GiB"]["revisit"] = (20.0, 20.0)
    record = SimpleNamespace(
        samples={f"ttft {case} {name}": {"unit": "ms", "values": [[value] * 20 for value in starts]}
                 for case, phases in times.items() for name, starts in phases.items()},
        results={"requests_per_s": {case: {name: [5.0, 5.0] for name in results.PHASES} for case in times}})
    noise = tables.noise_table(record)
    assert len(noise) == 2 * 5 + 3 and not noise["same"].iloc[-1] and noise["same"].iloc[:-1].all()
    by_what = noise.set_index("what")["mean_ttft"]
    assert by_what["default, warm, last start over first"] == 1.2 and by_what["1 GiB, revisit over warm"] == 2.0
    assert by_what["default, rewarm over warm"] == 1.0
    found = tables.above_noise(noise).set_index("quantity")
    assert found["above_noise"].to_dict() == {"mean_ttft": True, "p95_ttft": True, "requests_per_s": False}
    assert found.loc["mean_ttft", "noise_high"] == 1.2
