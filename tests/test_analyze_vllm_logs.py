"""A vLLM server's log as releases, launchers and pasting change it."""

import json

import pytest

from labkit.analyze.kinds import UnreadableInput
from labkit.analyze.vllm_log_lines import log_lines
from labkit.analyze.vllm_server_log import parse_server_log, read_server_log

CAUSE = "ValueError: heads do not divide"


@pytest.mark.parametrize("before", [
    "ERROR 02-03 04:05:06 engine.py:366] ", "ERROR 02-03 04:05:06 [core.py:708] ", "ERROR [core.py:708] ",
    "(Worker_TP1 pid=8) ERROR 02-03 04:05:06 [v1/worker/gpu.py:7] ", "(EngineCore pid=9) ", "(EngineCore_DP0 pid=9) ",
    "(VllmWorker rank=1 pid=8) ", "(EngineCore_0 pid=9) (VllmWorker TP1 pid=8) ",
    "(RayWorkerWrapper pid=8, ip=10.0.0.2) ", "(pid=8, ip=10.0.0.2) ERROR 02-03 04:05:06 [x.py:1] ",
    "\x1b[1;36m(EngineCore_0 pid=9) \x1b[0;0m ", "[1;36m(EngineCore_0 pid=9)[0;0m ", "^[[36m(Worker pid=9)^[[0m ",
    "vllm-1  | ", "vllm_openai_1 | (RayWorkerWrapper pid=8) ERROR 02-03 04:05:06 worker_base.py:148] ", "  | ",
    "2026-02-03T04:05:06.123456789Z ", "2026-02-03T04:05:06.123456789+01:00 stderr F (EngineCore pid=9) ",
    "2026-02-03 04:05:06.982 [Error] (Process) (EngineCore pid=9) ERROR 02-03 04:05:06 [core.py:1136] ",
    "2026-02-03 04:05:06.982 node-0 >> (EngineCore_DP0 pid=9) ", "[pod/server-0/vllm] ", "[rank0]: ", "3: ",
    "[1,3]<stderr>: ", "Feb  3 04:05:06 host vllm[870]: (EngineCore pid=9) ", "# ", "> ",
    "node-0: (EngineCore pid=9) ", "[node01] ", "04:05:06 ", "2026/02/03 04:05:06 ", "ERROR ", "ERROR: ",
    "ERROR 2026-02-03 04:05:06,123 app x -- ", "2026-02-03 04:05:06,123\tERROR worker.py:409 -- ",
    "2026-02-03 04:05:06,123 - ERROR - ", "2026-02-03T04:05:06.1+00:00 host vllm[9]: ",
])
def test_what_stands_before_a_message(before):
    for behind in ("", "\r", " [repeated 7x across cluster]"):
        assert parse_server_log(f"{before}{CAUSE}{behind}\n")["cause"] == CAUSE
    assert parse_server_log(f"{before}# GPU blocks: 12, # CPU blocks: 34")["kv_cache_blocks"] == 12


@pytest.mark.parametrize("before", ["node01: ", "1733000000{}\t", "server-7d9f vllm ", "E {}| [x] 7 "])
def test_a_traceback_tells_what_stands_before_every_line(before):
    lines = ("Traceback (most recent call last):", "  File x", CAUSE, "RuntimeError: later")
    text = "".join(f"{before.format(100 + number)}{line}\n" for number, line in enumerate(lines))
    assert parse_server_log("other\n" + text)["cause"] == CAUSE


def test_levels_are_counted_in_every_form():
    text = ("ERROR 02-03 04:05:06 a.py:1] x\nERROR:    y\n1 | (APIServer pid=1) ERROR 02-03 04:05:06 [a.py:1] z\n"
            "INFO 02-03 04:05:06 [a.py:1] no ERROR here\n")
    assert parse_server_log(text)["num_errors"] == 3


def test_one_object_a_line():
    text = "\n".join(json.dumps(record) for record in (
        {"levelname": "INFO", "name": "vllm", "message": "vLLM API server version 0.26.0"},
        {"levelname": "ERROR", "message": "EngineCore failed to start.", "exc_info": f"Traceback:\n  File x\n{CAUSE}"},
        {"log": "\x1b[31mERROR\x1b[0m 02-03 04:05:06 [a.py:1] KeyError: 'w'\n", "stream": "stderr"},
        {"log": 3}, {"message": "OSError: \ud800", "level": 30}))
    seen = parse_server_log(text + "\n{not json\n{}\n")
    assert (seen["engine_version"], seen["cause"], seen["num_errors"]) == ("0.26.0", CAUSE, 2)
    assert log_lines('{"log": "{}"}')[0].text == "{}"
    assert parse_server_log('{"message": "OSError: \\ud800"}')["cause"].encode(), "any encoder takes it"


LOGO = "(APIServer pid=1) INFO 04-15 07:22:41 [utils.py:299]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version {}0.19.1rc1{}\n"


@pytest.mark.parametrize(("line", "key", "value"), [
    (LOGO.format("", ""), "engine_version", "0.19.1rc1"),
    (LOGO.format("\x1b[1m", "\x1b[0m"), "engine_version", "0.19.1rc1"),
    ("INFO:     Uvicorn running on socket ('0.0.0.0', 8000) (Press CTRL+C to quit)", "port", 8000),
    ("Starting vLLM API server 0 on http://[fd00:1234::5]:8443", "port", 8443),
    ("Starting vLLM server on unix:/tmp/x", "port", None),
    ("Loading model weights took in total 14.96 GiB of device memory", "model_load_gib", 14.96),
    ("GPU blocks: 1952, # CPU blocks: 2048", "kv_cache_blocks", 1952),
    ("# cpu blocks: 1170, # CPU blocks: 0", "kv_cache_blocks", 1170),
    ("Initializing a V1 LLM engine (v0.14.1) with config: model='m', max_seq_len=4096, x", "model_len", 4096),
    ("GPU + host KV cache size: 1,000 tokens, Maximum concurrency for 4,096 tokens per request: 0.24x",
     "kv_cache_tokens", 1000),
    ("GPU KV cache size: 1,000 tokens, Maximum concurrency for 4,096 tokens per request: 0.24x",
     "max_concurrency", 0.24),
    ("vLLM gRPC server started on 0.0.0.0:50051", "ready", True),
])
def test_facts_of_other_releases_and_builds(line, key, value):
    assert parse_server_log(line)[key] == value


def capacity(tag, tokens, concurrency):
    return (f"{tag}INFO 02-03 04:05:06 [kv.py:1] GPU KV cache size: {tokens:,} tokens\n"
            f"{tag}INFO 02-03 04:05:06 [kv.py:2] Maximum concurrency for 1,000 tokens per request: {concurrency}x\n")


def stats(who, running):
    return (f"INFO 02-03 04:05:06 [loggers.py:1] {who}Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: "
            f"2.0 tokens/s, Running: {running} reqs, Waiting: 0 reqs, Deferred: 4 reqs, GPU KV cache usage: 10.9%, "
            "External prefix cache hit rate: 33.0%\n")


def test_engines_that_share_the_data():
    text = (capacity("(EngineCore_DP0 pid=8) ", 9000, 9.0) + capacity("(EngineCore_DP1 pid=9) ", 8000, 8.0)
            + stats("Engine 001: ", 5) + stats("Engine 000: ", 6))
    seen = parse_server_log(text)
    assert (seen["kv_cache_tokens"], seen["max_concurrency"], seen["model_len"]) == (8000, 8.0, 1000)
    assert [(one["engine"], one["kv_cache_tokens"], one["max_concurrency"], one["last_stats"]["running"])
            for one in seen["engines"]] == [(0, 9000, 9.0, 6), (1, 8000, 8.0, 5)]
    assert seen["last_stats"]["engine"] == 0 and seen["last_stats"]["prefix_hit_pct"] is None
    together = parse_server_log(text + stats("2 Engines Aggregated: ", 11))["last_stats"]
    blocks = "Engine 00{}: vllm cache_config_info with initialization after num_gpu_blocks is: 900\n"
    assert parse_server_log(blocks.format(0))["kv_cache_blocks"] == 900
    assert parse_server_log(blocks.format(0) + blocks.format(1))["kv_cache_blocks"] is None, "a sum over engines"
    assert together["engine"] is None and together["running"] == 11 and together["kv_usage_pct"] == 10.9


def test_a_lone_engine_has_what_the_log_says():
    """It has a number in its statistics and none in its tag; one of several is known by its tag alone."""
    (lone,) = parse_server_log(capacity("(EngineCore pid=8) ", 9000, 9.0) + stats("Engine 000: ", 6))["engines"]
    assert (lone["engine"], lone["kv_cache_tokens"], lone["last_stats"]["running"]) == (0, 9000, 6)
    two = parse_server_log(capacity("", 9000, 9.0) + stats("Engine 000: ", 6) + stats("Engine 001: ", 6))["engines"]
    assert [one["kv_cache_tokens"] for one in two] == [None, None]


def test_pipeline_stages_have_what_the_smallest_has():
    seen = parse_server_log(capacity("", 9000, 9.0) + capacity("", 8000, 8.0))
    assert (seen["kv_cache_tokens"], seen["max_concurrency"], seen["engines"]) == (8000, 8.0, [])


def test_the_first_engines_hit_rate_has_its_own_line():
    line = stats("", 1).replace(", External prefix cache hit rate: 33.0%", ".")
    rate = "INFO 02-03 04:05:06 metrics.py:471] Prefix cache hit rate: GPU: 52.36%, CPU: 0.00%\n"
    assert parse_server_log(rate.replace("52", "51") + line + rate)["last_stats"]["prefix_hit_pct"] == 52.36
    assert parse_server_log(rate + line)["last_stats"]["prefix_hit_pct"] is None


VERSION = "INFO 02-03 04:05:06 [x.py:1] vLLM API server version 0.{}.0\n"
READY = "INFO:     Application startup complete.\n"


def test_the_last_of_several_starts_counts():
    failed = VERSION.format(11) + capacity("", 9000, 9.0) + f"{CAUSE}\n"
    seen = parse_server_log(failed + VERSION.format(12) + capacity("", 9500, 9.5) + READY)
    assert seen["ready"] and seen["cause"] is None
    assert (seen["engine_version"], seen["kv_cache_tokens"]) == ("0.12.0", 9500)
    assert (seen["num_starts"], seen["earlier_causes"]) == (2, [CAUSE])
    seen = parse_server_log(VERSION.format(11) + READY + failed)
    assert (seen["ready"], seen["cause"], seen["earlier_causes"]) == (False, CAUSE, [None])
    assert parse_server_log(READY)["num_starts"] == 0, "the log begins later"


@pytest.mark.parametrize(("text", "cause"), [
    ("usage: vllm serve [options]\nvllm serve: error: unrecognized arguments: --x", "vllm serve: error: unrecognized "
     "arguments: --x"),
    ("KeyError: 'new_model'\n\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most\n"
     + CAUSE, CAUSE),
    ("KeyError: 'w'\n" + CAUSE, "KeyError: 'w'"),
    ("RuntimeError: CUDA error: out of memory", "CUDA out of memory"),
    ("RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB", "NPU out of memory"),
    ("triton.runtime.errors.OutOfResources: out of memory", "triton.runtime.errors.OutOfResources: out of memory"),
    ("httpx.ReadTimeout", "httpx.ReadTimeout"), ("Fatal Python error: Aborted", "Fatal Python error: Aborted"),
    ("terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: x", "CUDA error: x"),
    ("ERROR 02-03 04:05:06 [x.py:1] Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down.\n"
     "RuntimeError: cancelled", "Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down."),
    ("RuntimeError: cancelled\n" + CAUSE, CAUSE),
    ("x.ValidationError: 1 validation error for VllmConfig\nquantization\n  Input should be 'a' [type=literal_error]",
     "x.ValidationError: 1 validation error for VllmConfig: quantization: Input should be 'a' [type=literal_error]"),
    ("RuntimeError: Worker failed with error 'CUDA out of memory', please check the stack trace above for the root "
     "cause", "CUDA out of memory"),
    ("RuntimeError: Worker failed with error 'x', please check the stack trace above for the root cause\n" + CAUSE,
     CAUSE),
    ("INFO 02-03 04:05:06 [logger.py:1] Received request: prompt: 'This error: CUDA out of memory'", None),
    ("WARNING 02-03 04:05:06 [x.py:1] Failed to import from vllm._C with ImportError('libcuda.so')", None),
    ("INFO 02-03 04:05:06 [x.py:1] If out-of-memory error occurs during capture, use less", None),
])
def test_causes(text, cause):
    seen = parse_server_log(text)
    assert seen["cause"] == cause and seen["exit_expected"] == (cause is not None)


def test_a_failure_without_its_cause_is_a_failure():
    seen = parse_server_log("(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above.")
    assert not seen["ready"] and seen["cause"] is None and seen["exit_expected"]


@pytest.mark.parametrize(("text", "crash"), [
    (f"(EngineCore pid=9) ERROR 02-03 04:05:06 [c.py:1] EngineCore encountered a fatal error.\n{CAUSE}\n"
     "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.", CAUSE),
    (f"{CAUSE}\nCRITICAL 02-03 04:05:06 launcher.py:99] MQLLMEngine is already dead, terminating", CAUSE),
    ("CRITICAL 02-03 04:05:06 launcher.py:99] Engine loop is dead", "Engine loop is dead"),
    (f"ERROR 02-03 04:05:06 [serving.py:9] {CAUSE}", None),
])
def test_a_server_that_was_ready_and_died(text, crash):
    seen = parse_server_log(READY + text)
    assert seen["ready"] and seen["cause"] is None and seen["crash"] == crash and not seen["exit_expected"]


@pytest.mark.parametrize("text", ["", "hello\n", "<html>502</html>", "# nThread 1 nGpus 8\n"])
def test_other_files_are_refused(text):
    with pytest.raises(UnreadableInput, match="no line of a vLLM server"):
        read_server_log(text)
    assert read_server_log("(APIServer pid=1) INFO 02-03 04:05:06 [vllm.py:1] x\n")["ready"] is False
    assert read_server_log("vllm: error: unrecognized arguments: --x")["exit_expected"]


def test_no_line_takes_long():
    for text in ("(a" + "=" * 9999, "(a" + " a" * 9999, "a " * 30000, "A" * 99999, "a." * 30000, "1: " * 3000,
                 "| " * 9999, "[" * 9999, "Starting vLLM server" + " on http:" * 3000, "(pid=1) " * 3000):
        parse_server_log(text)
