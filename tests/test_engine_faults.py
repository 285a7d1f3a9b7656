"""Faults of the real engine: `pytest -m engine` (minutes; needs vLLM's CPU build: `labkit engine install`)."""

import pytest

from labkit.analyze.vllm_server_log import first_cause
from labkit.engine.find import EngineMissing, find_engine
from labkit.engine.model_folder import write_model_folder
from labkit.launch.process import LaunchError
from labkit.launch.vllm_server import ServerSettings, vllm_servers
from labkit.models import load_model
from tests.server_faults import Marks, is_free, random_kill, wait_until

pytestmark = pytest.mark.engine
FIELDS = {"block_size": 32, "num_blocks": 64, "max_model_len": 512, "max_num_seqs": 4, "max_num_batched_tokens": 512}


@pytest.fixture(scope="module")
def engine():
    try:
        return find_engine("cpu")
    except EngineMissing as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model_folder(load_model("tiny-qwen2"), tmp_path_factory.mktemp("model"))


def opened(engine, model, tmp_path, marks, **fields):
    return vllm_servers([ServerSettings(**{**FIELDS, **fields})], engine_python=engine.python, model=model,
                        run_dirs=[tmp_path / "s0"], explain=first_cause, timeout_s=300, ready_timeout_s=200,
                        env=marks.env)


def cause_of(engine, model, tmp_path, **fields):
    """What is told of a server that cannot start; nothing of it may be left."""
    marks = Marks()
    with pytest.raises(LaunchError) as caught, opened(engine, model, tmp_path, marks, **fields):
        pytest.fail("it must not start")
    assert marks.kill_left() == ([], set())
    message = str(caught.value)
    print(message)
    assert "did not start" in message and "\n" not in message and message.endswith("see s0/log.txt")
    assert "initialization failed" not in message, "a consequence is not the cause"
    return message


def test_a_folder_without_a_model(engine, tmp_path):
    (tmp_path / "empty").mkdir()
    message = cause_of(engine, tmp_path / "empty", tmp_path)
    assert "directory" in message or "config.json" in message


def test_a_cache_too_small_for_one_request(engine, model, tmp_path):
    message = cause_of(engine, model, tmp_path, num_blocks=4)
    assert "KV cache" in message or "max_model_len" in message


def test_a_cache_that_no_memory_holds(engine, model, tmp_path):
    message = cause_of(engine, model, tmp_path, num_blocks=2_000_000_000)
    assert "memory" in message.lower()


def test_a_server_killed_while_it_serves(engine, model, tmp_path):
    marks = Marks()
    with pytest.raises(LaunchError, match=r"died \(killed by SIGKILL\)"), opened(
            engine, model, tmp_path, marks) as (server,):
        port = server.port
        assert len(marks.alive()) >= 3, "guard, API server and engine bear the mark by which they are looked for"
        next(p for p in marks.alive() if "--port" in p.cmdline()).kill()  # not its guard: that has one long argument
        assert wait_until(lambda: is_free(port))
        server.scrape()
    assert marks.kill_left() == ([], set()) and is_free(port)


def test_twenty_random_kills_leave_nothing(engine, model, tmp_path):
    """Any process of the run, from the first second to a server that answers: one after the other."""
    found = [random_kill(seed, tmp_path / f"run{seed}", python=engine.python, model=model, latest_s=30.0, settle_s=60.0,
                         servers=1, settings=FIELDS, alone=True) for seed in range(20)]
    print("\n".join(outcome[0] for outcome in found))
    bad = [outcome for outcome in found if any(outcome[1:])]
    assert bad == []
