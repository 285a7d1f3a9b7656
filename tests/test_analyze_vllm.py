"""vLLM's pages, logs, results and streams: what no single recorded file shows."""

import json
import math
import random
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import parser as reference

from labkit.analyze import prometheus, sse
from labkit.analyze.vllm_bench import NotBenchResults, parse_bench_results
from labkit.analyze.vllm_metrics import page_summary, pair_summary
from labkit.analyze.vllm_server_log import first_cause, parse_server_log

NAMES = st.from_regex(r"[a-z_:][a-z0-9_:]{0,12}", fullmatch=True)
LABELS = st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True).filter(lambda n: n[:2] != "__"),
                         st.text(st.characters(codec="ascii", min_codepoint=32), max_size=8), max_size=3)
VALUES = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([math.inf, -math.inf]))


def line(name, labels, value):
    escape = lambda text: text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")  # noqa: E731
    inside = ",".join(f'{key}="{escape(text)}"' for key, text in labels.items())
    number = {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, repr(value))
    return f"{name}{{{inside}}} {number}" if labels else f"{name} {number}"


@given(st.lists(st.tuples(NAMES, LABELS, VALUES), min_size=1, max_size=6))
def test_same_samples_as_the_reference_parser(samples):
    text = "\n".join(line(*sample) for sample in samples) + "\n"
    expected = {}
    for family in reference.text_string_to_metric_families(text):
        for sample in family.samples:
            expected.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    assert prometheus.parse_metrics(text) == (expected, 0)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text):
    for summary in (page_summary(text), pair_summary(text, text)):
        json.dumps(summary, allow_nan=False)
        assert isinstance(summary["valid"], bool) and (summary["valid"] or summary["error"])
    json.dumps(parse_server_log(text), allow_nan=False)
    assert sse.read_stream(text)["success"] in (True, False)


@pytest.mark.parametrize(("text", "error"), [
    ("", "empty page"), ("<html>", "not Prometheus text"), ('{"error": "x"}', "not Prometheus text"),
    ("# HELP x y\n", "not one sample"), ("process_start_time_seconds 1\n", "no vLLM metric"),
])
def test_pages_that_are_none(text, error):
    assert not page_summary(text)["valid"] and error in page_summary(text)["error"]
    assert error in pair_summary(text, "vllm:num_preemptions_total 1\n")["error"]


def page(**values):
    return "".join(f'vllm:{name}{{engine="{engine}",model_name="m"}} {value}\n'
                   for name, per_engine in values.items() for engine, value in enumerate(per_engine))


def test_engines_are_summed_and_the_fullest_is_shown():
    before = page(prefix_cache_queries_total=[10, 20], prefix_cache_hits_total=[0, 10])
    after = page(prefix_cache_queries_total=[110, 220], prefix_cache_hits_total=[50, 10], kv_cache_usage_perc=[.2, .9],
                 num_requests_running=[3, 4])
    seen = pair_summary(before, after)
    assert (seen["prefix_cache_queries"], seen["prefix_cache_hits"]) == (300, 50) and seen["engines"] == ["0", "1"]
    assert seen["prefix_cache_hit_rate"] == pytest.approx(50 / 300)
    assert seen["kv_cache_usage"] == 0.9 and seen["running"] == 7


def test_a_counter_that_appears_begins_at_zero():
    assert pair_summary(page(num_preemptions_total=[1]), page(num_preemptions_total=[1, 4]))["preemptions"] == 4


def test_no_queries_give_no_rate():
    quiet = page(prefix_cache_queries_total=[7], prefix_cache_hits_total=[3])
    seen = pair_summary(quiet, quiet)
    assert seen["prefix_cache_queries"] == 0 and seen["prefix_cache_hit_rate"] is None


@pytest.mark.parametrize(("before", "after", "why"), [
    (page(num_preemptions_total=[5]), page(num_preemptions_total=[4]), "(counters went down)"),
    (page(num_preemptions_total=[0, 5]), page(num_preemptions_total=[9]), "(counters went away)"),
    ("process_start_time_seconds 1.0\n" + page(num_preemptions_total=[0]),
     "process_start_time_seconds 9.0\n" + page(num_preemptions_total=[0]), "(process_start_time_seconds changed)"),
])
def test_a_restart_gives_no_numbers(before, after, why):
    assert pair_summary(before, after) == {"valid": False, "error": f"server restarted between scrapes {why}"}


@pytest.mark.parametrize(("before", "after", "why"), [
    (page(num_preemptions_total=[5], prompt_tokens_total=[3]), page(prompt_tokens_total=[4]) + "vllm:num_preem",
     "second scrape lacks preemptions: cut off, restarted, or of another server"),
    (page(prompt_tokens_total=[0]), page(prompt_tokens_total=[9]).replace('"m"', '"other"'),
     "the scrapes are of different models (m; other)"),
])
def test_pages_that_cannot_be_compared(before, after, why):
    assert pair_summary(before, after) == {"valid": False, "error": why}


@pytest.mark.parametrize("prefix", ["ray_vllm:", "ray_vllm_"])
def test_pages_of_ray(prefix):
    rows = (("num_requests_running", "a", 3), ("num_requests_running", "b", 4), ("prefix_cache_queries", "a", 100),
            ("generation_tokens_total", "b", 7))
    text = "".join(f'{prefix}{name}{{ReplicaId="{replica}",engine="0"}} {value}\n' for name, replica, value in rows)
    seen = page_summary(text)
    assert (seen["running"], seen["prefix_cache_queries"], seen["generation_tokens"]) == (7, 100, 7)


@pytest.mark.parametrize(("text", "version"), [
    ("vllm:num_requests_swapped 0\n", "v0"), ("vllm:gpu_prefix_cache_hit_rate -1\n", "v0"),
    ("vllm:gpu_prefix_cache_queries_total 1\nvllm:cpu_cache_usage_perc 0\n", "v1"),
    ("vllm:kv_cache_usage_perc 0\n", "v1"),
    ('vllm:num_requests_running{engine="0"} 1\n', "v1"), ("vllm:num_requests_running 1\n", None),
    ('vllm:num_requests_swapped{engine="vllm",worker_id="w1"} 1\n', "v0"),
])
def test_a_piece_of_a_page_need_not_tell_its_engine(text, version):
    assert page_summary(text)["engine_version"] == version


def test_numbers_that_are_none_are_not_passed_on():
    odd = ("process_start_time_seconds 1e999\nvllm:prompt_tokens_by_source_total{source=\"a\"} +Inf\n"
           "vllm:prompt_tokens_by_source_total{source=\"b\"} 4\n" + page(prompt_tokens_total=[1e308, 1e308]))
    seen = pair_summary("vllm:x 0\n", odd)
    assert seen["prompt_tokens_by_source"] == {"b": 4} and seen["prompt_tokens"] is None
    assert page_summary(odd)["process_start_s"] is None
    assert "no edge" in pair_summary("vllm:x 0\n", histogram(1, 1, edges=("NaN", "+Inf")))["ttft"]["error"]


def test_an_indented_comment_is_no_damage():
    assert page_summary("    # HELP vllm:x y\n    vllm:num_preemptions_total 2\n")["num_odd_lines"] == 0


def test_a_cut_last_line_is_told_and_the_rest_is_used():
    whole = page(num_preemptions_total=[2], prompt_tokens_total=[30])
    seen = page_summary(whole + 'vllm:generation_tokens_total{engine="0",mod')
    assert seen["valid"] and seen["num_odd_lines"] == 1 and seen["preemptions"] == 2 and seen["prompt_tokens"] == 30


@pytest.mark.parametrize(("computed", "passed"), [(70, True), (71, False)])
def test_sources_sum_to_the_prompt(computed, passed):
    def scrape(scale):
        return page(prompt_tokens_total=[100 * scale]) + "".join(
            f'vllm:prompt_tokens_by_source_total{{engine="0",source="{name}"}} {count * scale}\n'
            for name, count in (("local_compute", computed), ("local_cache_hit", 30)))
    seen = pair_summary(scrape(0), scrape(1))
    assert seen["prompt_tokens_by_source"] == {"local_cache_hit": 30, "local_compute": computed}
    assert [check["passed"] for check in seen["checks"]] == [passed]


def histogram(*counts, edges=("0.1", "1.0", "+Inf"), engine=0):
    rows, running = "", 0
    for edge, count in zip(edges, counts):
        running += count
        rows += f'vllm:time_to_first_token_seconds_bucket{{engine="{engine}",le="{edge}"}} {running}\n'
    return rows


def test_quantiles_of_an_interval_and_of_two_engines():
    seen = pair_summary(histogram(5, 0, 0), histogram(5, 8, 0) + histogram(2, 0, 0, engine=1))["ttft"]
    assert seen["count"] == 10 and seen["p50_upper_s"] == 1.0
    assert seen["p50_interp_s"] == pytest.approx(0.1 + 0.9 * 3 / 8)


def test_sums_without_buckets_give_a_mean():
    name, start = "vllm:time_to_first_token_seconds", page(num_preemptions_total=[0])
    seen = pair_summary(start, start + f"{name}_sum 1.0\n{name}_count 4\n")
    assert seen["ttft"] == {"count": 4, "mean_s": 0.25} and "itl" not in seen


def test_buckets_that_cannot_be_used_are_told():
    mixed = histogram(1, 1, 1) + histogram(1, 1, 1, edges=("0.2", "1.0", "+Inf"), engine=1)
    assert "different edges" in pair_summary(histogram(0, 0, 0), mixed)["ttft"]["error"]
    assert "+Inf" in pair_summary("vllm:num_preemptions_total 0\n", histogram(1, 1))["ttft"]["error"]


LOG = """INFO 11-29 17:54:08 [api_server.py:1] vLLM API server version 0.9.1
INFO 11-29 17:54:12 [model_runner.py:1095] Loading model weights took 14.2487 GB
INFO 11-29 17:54:14 [executor_base.py:76] # cuda blocks: 4681, # CPU blocks: 2048
INFO 11-29 17:54:14 [executor_base.py:81] Maximum concurrency for 2048 tokens per request: 36.57x
INFO 11-29 17:54:15 [launcher.py:14] Uvicorn running on http://0.0.0.0:8001
INFO 11-29 17:55:15 [metrics.py:455] Avg prompt throughput: 4.5 tokens/s, Avg generation throughput: 3.5 tokens/s, \
Running: 2 reqs, Swapped: 0 reqs, Pending: 1 reqs, GPU KV cache usage: 7.5%, CPU KV cache usage: 0.0%.
"""


def test_the_first_engines_log():
    seen = parse_server_log(LOG)
    assert not seen["ready"] and seen["cause"] is None and not seen["exit_expected"], "still starting"
    assert parse_server_log(LOG + "INFO:     Application startup complete.\n")["ready"]
    assert (seen["port"], seen["engine_version"], seen["model_load_gib"]) == (8001, "0.9.1", 14.2487)
    assert (seen["kv_cache_blocks"], seen["model_len"], seen["max_concurrency"]) == (4681, 2048, 36.57)
    assert seen["last_stats"] == {"engine": 0, "running": 2, "waiting": 1, "prompt_tps": 4.5, "gen_tps": 3.5,
                                  "kv_usage_pct": 7.5, "prefix_hit_pct": None}


@pytest.mark.parametrize(("line", "cause"), [
    ("(EngineCore_DP0 pid=9) ERROR 11-29 18:00:01 [core.py:9] torch.cuda.OutOfMemoryError: CUDA out of memory. Tried",
     "CUDA out of memory"),
    ("OSError: [Errno 98] Address already in use", "address already in use"),
    ("(APIServer pid=7) OSError: /m does not appear to have a file named config.json.",
     "OSError: /m does not appear to have a file named config.json."),
    ("ValueError: No available memory for the cache blocks. Try increasing", "no memory left for the KV cache"),
    ("pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
     "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig"),
    ("(APIServer pid=7) pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
     "(APIServer pid=7)   Value error, Invalid repository ID or local directory specified: '/m'.\n"
     "(APIServer pid=7) Please verify the following requirements:",
     "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig: Value error, Invalid "
     "repository ID or local directory specified: '/m'."),
])
def test_the_first_cause_of_a_failed_start(line, cause):
    first = "(EngineCore pid=9) ERROR 11-29 [core.py:1] EngineCore failed to start.\n"
    after = "(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above.\nValueError: x\n"
    seen = parse_server_log(first + line + "\n" + after)
    assert seen["cause"] == cause and seen["exit_expected"] and not seen["ready"]
    assert first_cause(first + line + "\n" + after) == cause


RESULT = {"num_prompts": 4, "completed": 4, "failed": 0, "duration": 2.0, "request_rate": "inf", "mean_ttft_ms": 5.0,
          "p99_ttft_ms": float("nan")}


def test_several_results_and_one_cut():
    text = json.dumps(RESULT, indent=1) + json.dumps(RESULT) + "\n" + json.dumps(RESULT)[:-9]
    seen = parse_bench_results(text)
    assert seen["records"] == 3 and seen["first"]["usable"] and seen["first"]["p99_ttft_ms"] is None
    assert not seen["usable"] and seen["third"]["reason"] == "cut off at line 10"
    assert parse_bench_results(json.dumps([RESULT, RESULT]))["records"] == 2


@pytest.mark.parametrize(("change", "reason"), [
    ({"completed": 0}, "no request completed"), ({"mean_itl_ms": -1.7e12}, "negative"),
    ({"ttfts": [0.1, 0.0]}, "not measured"), ({"mean_ttft_ms": 0.0}, "not measured"),
    ({"output_lens": [0, 0]}, "no output token"),
])
def test_results_that_cannot_be_believed(change, reason):
    assert reason in parse_bench_results(json.dumps(RESULT | change))["reason"]


TABLE = """INFO 11-02 10:11:12 [serve.py:9] Starting main benchmark run...
============ Serving Benchmark Result ============
Successful requests:                     3
Failed requests:                         1
Request rate configured (RPS):           inf
Benchmark duration (s):                  2.50
Peak output token throughput (tok/s):    99.00
Output token throughput (tok/s):         48.00
Total Token throughput (tok/s):          4,144.00
---------------Time to First Token----------------
Mean TTFT (ms):                          31.25
P99 TTFT (ms):                           nan
----------------End-to-end Latency----------------
P99.9 E2E Latency (ms):                  250.00
==================================================
Mean TTFT (ms):                          1.00
"""


@pytest.mark.parametrize("before", ["", "[rank0]: ", "bench-7  | ", "2026-11-02T10:11:12Z "])
def test_the_printed_table_is_read_wherever_it_was_kept(before):
    text = "".join(before + line + "\n" for line in (TABLE + TABLE.replace("31.25", "32.5")).splitlines())
    seen = parse_bench_results(text)
    first = seen["first"]
    assert (seen["records"], seen["usable"], first["success_fraction"]) == (2, True, 0.75)
    assert (first["completed"], first["failed"], first["duration"], first["request_rate"]) == (3, 1, 2.5, None)
    assert (first["output_throughput"], first["total_token_throughput"]) == (48.0, 4144.0)
    assert (first["mean_ttft_ms"], first["p99_ttft_ms"], first["p99.9_e2el_ms"]) == (31.25, None, 250.0)
    assert "mean_ttft_ms" not in seen["second"], "a figure without its second decimal was cut"


def test_a_table_that_ends_early_keeps_what_it_has():
    seen = parse_bench_results(TABLE[: TABLE.index("Mean TTFT") + 45])["first"]
    assert seen["usable"] and seen["output_throughput"] == 48.0 and "mean_ttft_ms" not in seen
    assert parse_bench_results("==== Serving Benchmark Result ====")["reason"] == "completed is missing"


@pytest.mark.parametrize("text", ["", "hello", "[]", "3", '{"a": 1}', "[[]]"])
def test_other_files_are_refused(text):
    with pytest.raises(NotBenchResults):
        parse_bench_results(text)


def events(*chunks, done=True):
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n" * done


TOKEN = {"choices": [{"index": 0, "text": "a"}]}


@pytest.mark.parametrize(("text", "error"), [
    (events(TOKEN), None),
    (events(TOKEN, done=False), "cut"),
    (events(), "no token"),
    ("", "no event"),
    ('{"error": {"message": "model not found"}}', "model not found"),
    (events({"object": "error", "message": "old form", "code": 400}), "old form"),
    (events(TOKEN, {"error": {"message": "too long"}}), "too long"),
    ("data: {\n\ndata: [DONE]\n\n", "no JSON object"),
    (events({"choices": [{"delta": {"role": "assistant", "content": ""}}]}), "no token"),
])
def test_what_a_request_came_to(text, error):
    seen = sse.read_stream(text)
    assert seen["success"] == (error is None) and (error is None or error in seen["error"])


def test_a_role_is_no_token_and_reasoning_is():
    seen = sse.read_stream(events({"choices": [{"delta": {"role": "assistant", "content": ""}}]},
                                  {"choices": [{"delta": {"reasoning": "x"}}]},
                                  {"choices": [{"delta": {"content": "y"}}]}))
    assert (seen["content_chunks"], seen["reasoning_chunks"], seen["text"], seen["reasoning_text"]) == (2, 1, "y", "x")


def test_line_ends_do_not_matter():
    text = events(TOKEN, TOKEN)
    rng = random.Random(0)
    assert sse.read_stream(text.replace("\n", "\r\n")) == sse.read_stream(text)
    assert sse.read_stream(text.replace("\n", "\r")) == sse.read_stream(text)
    assert sse.read_stream("".join(rng.choices(string.printable, k=200)))["success"] is False


def test_every_statistic_and_other_tools_names_are_kept():
    other = {"completed": 3, "duration": 2.0, "mean_e2e_latency_ms": 40.0, "std_ttft_ms": 1.5, "p99.9_itl_ms": 7.0,
             "p25_tpot_ms": 2.0, "total_throughput": 9.0, "request_goodput:": 1.25, "max_itl_ms": math.inf}
    seen = parse_bench_results(json.dumps(other))["first"]
    assert (seen["mean_e2el_ms"], seen["std_ttft_ms"], seen["p99.9_itl_ms"], seen["p25_tpot_ms"]) == (40.0, 1.5, 7.0, 2)
    assert (seen["total_token_throughput"], seen["request_goodput"], seen["max_itl_ms"]) == (9.0, 1.25, None)
    assert seen["failed"] is None and seen["success_fraction"] is None


@pytest.mark.parametrize(("errors", "failed"), [
    (["", "refused", None, ""], 1), ([], None), (["", ""], None), (["", 3, "", ""], None)])
def test_failures_are_counted_from_the_recorded_errors_if_they_agree(errors, failed):
    seen = parse_bench_results(json.dumps({"completed": 3, "duration": 1.0, "errors": errors}))["first"]
    assert seen["failed"] == failed and seen["success_fraction"] == (None if failed is None else 0.75)
    assert "negative" in parse_bench_results(json.dumps({"completed": 3, "p1_e2e_latency_ms": -1}))["reason"]


@pytest.mark.parametrize(("counts", "fraction"), [
    ({"completed": 5, "num_prompts": 4}, None), ({"completed": 3.0, "num_prompts": 4.0}, 0.75),
    ({"completed": 4, "failed": None, "num_prompts": 4}, 1.0)])
def test_counts_that_disagree_give_no_share(counts, fraction):
    seen = parse_bench_results(json.dumps({"duration": 1.0} | counts))["first"]
    assert seen["success_fraction"] == fraction and seen["usable"]
