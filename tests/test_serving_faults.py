"""The serving labs from the command line when the server fails: one line, exit 1, a failed record, nothing left."""

import json
import os
import re
import subprocess
import sys

import pytest

from labkit.paths import ROOT
from labkit.records import load_record, run_status
from tests.server_faults import Marks, stand_in, wait_until
from tests.vllm_stand_in import FAILS

LABS = ("vllm_prefix_cache", "vllm_preemption", "vllm_decode_roofline")
TOO_MANY = {"vllm_prefix_cache": "large_blocks=50000", "vllm_preemption": "num_blocks=[585,50000]"}


def start(slug, tmp_path, marks, plan, *params):
    """`labkit run` with the stand-in as its engine."""
    env = {**os.environ, **marks.env, "LABKIT_VLLM_PYTHON": str(stand_in(tmp_path)), "PYTHONPATH": str(ROOT),
           "LABKIT_RUNS_DIR": str(tmp_path / "runs"), "LABKIT_STAND_IN": json.dumps(plan)}
    argv = [sys.executable, "-m", "labkit", "run", slug, "--preset", "smoke", "--run-id", "r",
            *(word for param in params for word in ("-p", param))]
    return subprocess.Popen(argv, env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def fail(slug, tmp_path, plan, *params):
    """Runs to its end; returns (what is said on stderr, the record). Nothing may be left."""
    marks = Marks()
    lab = start(slug, tmp_path, marks, plan, *params)
    _, told = lab.communicate(timeout=120)
    assert lab.returncode == 1, told
    wait_until(lambda: not marks.alive(), timeout_s=5.0)
    logs = "".join(path.read_text(errors="replace") for path in (tmp_path / "runs").rglob("log.txt"))
    assert marks.kill_left(logs) == ([], set())
    assert "Traceback" not in told
    record = load_record(tmp_path / "runs" / slug / "r")
    assert record.status == "failed" and record.failure["message"] in told
    return told, record


def is_one_line_with_the_log(record, cause):
    message = record.failure["message"]
    assert cause in message and "\n" not in message and message.endswith("/log.txt"), message
    assert record.failure["log"] == "log.txt" and str(ROOT) not in message


@pytest.mark.parametrize("slug", LABS)
def test_a_model_that_cannot_be_loaded(slug, tmp_path):
    _, record = fail(slug, tmp_path, {"fault": "model"})
    is_one_line_with_the_log(record, FAILS["model"][1])


@pytest.mark.parametrize("slug", TOO_MANY)
def test_more_blocks_than_memory(slug, tmp_path):
    _, record = fail(slug, tmp_path, {}, TOO_MANY[slug])
    is_one_line_with_the_log(record, FAILS["host_memory"][1])


@pytest.mark.parametrize("slug", LABS)
def test_a_server_that_dies_in_a_phase(slug, tmp_path):
    _, record = fail(slug, tmp_path, {"fault": "dies", "requests": 3})
    is_one_line_with_the_log(record, "died (exit code 1): CUDA out of memory")
    assert record.results["engine"]["vllm"] == "0.32.0", "what was known before is kept"


@pytest.mark.parametrize("fault", ["metrics_html", "metrics_empty", "metrics_500"])
def test_a_metrics_page_that_is_none(fault, tmp_path):
    told, record = fail("vllm_prefix_cache", tmp_path, {"fault": fault})
    assert {"metrics_html": "not Prometheus", "metrics_empty": "empty", "metrics_500": "HTTP 500"}[fault] in told
    assert "\n" not in record.failure["message"]


def test_a_killed_lab_leaves_no_server(tmp_path):
    marks = Marks()
    lab = start("vllm_prefix_cache", tmp_path, marks, {"ready_s": 60})
    runs = tmp_path / "runs"
    assert wait_until(lambda: any("startup complete" in path.read_text() for path in runs.rglob("log.txt")))
    lab.kill()
    lab.communicate()
    assert wait_until(lambda: not marks.alive())
    assert run_status(runs / "vllm_prefix_cache" / "r") != "ok"


@pytest.mark.parametrize("slug", TOO_MANY)
def test_a_number_of_blocks_that_only_fills_the_memory_here(slug, tmp_path):
    """The scheduler's model keeps every block: the lab refuses before it predicts."""
    lab = start(slug, tmp_path, Marks(), {}, TOO_MANY[slug].replace("50000", "100000000"))
    _, told = lab.communicate(timeout=60)
    assert lab.returncode == 2 and re.search(r"blocks=.*100000000.*(at most|to) 1000000\b", told), told
    assert "Traceback" not in told and not list((tmp_path / "runs").rglob("*.json"))


def test_without_an_engine_nothing_is_begun(tmp_path):
    env = {**os.environ, "LABKIT_VLLM_PYTHON": str(tmp_path / "none"), "LABKIT_RUNS_DIR": str(tmp_path / "runs"),
           "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-m", "labkit", "run", "vllm_prefix_cache", "--preset", "smoke"], env=env,
                          cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "labkit engine install" in done.stderr and "Traceback" not in done.stderr
    assert not list((tmp_path / "runs").rglob("*.json"))
