"""The server launcher and every way a server can fail it, with a stand-in that behaves like vLLM at its worst."""

import json
import os
import re
import signal
import threading
import time

import psutil
import pytest

from labkit.analyze.vllm_metrics import gauges_now
from labkit.analyze.vllm_server_log import first_cause
from labkit.launch import vllm_server
from labkit.launch.metrics_sampler import sampled
from labkit.launch.process import LaunchError
from labkit.launch.vllm_server import ServerSettings, free_port, vllm_servers
from tests.server_faults import (
    SETTINGS,
    Marks,
    is_free,
    model_folder,
    random_kill,
    stand_in,
    start_launcher,
    wait_until,
)
from tests.vllm_stand_in import FAILS


@pytest.fixture
def marks(tmp_path):
    """Afterwards no process of the test lives and no shared-memory file of its servers is there."""
    marks = Marks()
    yield marks
    wait_until(lambda: not marks.alive(), timeout_s=30.0)
    logs = "".join(path.read_text(errors="replace") for path in tmp_path.rglob("log.txt"))
    assert marks.kill_left(logs) == ([], set())


@pytest.fixture
def opened(tmp_path, marks):
    """Starts servers of a plan; a context manager."""
    python, model = stand_in(tmp_path), model_folder(tmp_path)

    def opened(count=1, *, settings=SETTINGS, model=model, **plan):
        options = {name: plan.pop(name) for name in ("ready_timeout_s", "progress", "gpu_memory") if name in plan}
        env = {**marks.env, "LABKIT_STAND_IN": json.dumps(plan)}
        return vllm_servers([settings] * count, engine_python=python, model=model, env=env, explain=first_cause,
                            run_dirs=[tmp_path / f"s{k}" for k in range(count)], timeout_s=120, **options)
    return opened


def process_of(marks, word):
    return next(process for process in marks.alive() if word in " ".join(process.cmdline())
                and "launch.guard" not in " ".join(process.cmdline()))


def test_a_server_answers_and_is_gone_afterwards(opened, marks, tmp_path):
    told = []
    with opened(progress=told.append, ready_s=0.3) as (server,):
        assert server.startup_s >= 0.3 and server.model == "lab" and server.log == tmp_path / "s0" / "log.txt"
        assert gauges_now(server.scrape())["running"] == 3
        assert server.post("/pause?mode=keep") == 404, "a release without the endpoint"
        assert wait_until(lambda: "engine is up" in server.log_text())
        assert len(marks.alive()) >= 3 and any("psm_stand_in" in name for name in marks.new_shm())
        server.raise_if_dead()
        port = server.port
    assert told == [f"server s0 ready after {server.startup_s:.0f} s"]
    assert marks.alive() == [] and is_free(port) and not any("psm_stand_in" in name for name in marks.new_shm())
    assert server.post("/pause") == 0
    server.stop()


def test_arguments_are_those_of_the_settings():
    settings = ServerSettings(block_size=16, num_blocks=7, kv_cache_memory_bytes=2**30, max_model_len=100,
                              max_num_seqs=3, max_num_batched_tokens=64, enable_prefix_caching=False,
                              enforce_eager=False, extra=("--seed", "1"))
    words = " ".join(settings.arguments())
    for part in ("--block-size 16", "--num-gpu-blocks-override 7", f"--kv-cache-memory-bytes {2**30}",
                 "--max-model-len 100", "--max-num-seqs 3", "--max-num-batched-tokens 64", "--seed 1",
                 "--no-enable-prefix-caching", "--dtype bfloat16", "--load-format dummy", "--served-model-name lab"):
        assert part in words
    assert "--enforce-eager" not in words and "--enforce-eager" in SETTINGS.arguments()
    assert "--kv-cache-memory-bytes" not in SETTINGS.arguments()


@pytest.mark.parametrize("fault", FAILS)
def test_a_server_that_does_not_start_tells_the_first_cause(opened, fault):
    with pytest.raises(LaunchError) as caught, opened(fault=fault):
        pytest.fail("it cannot be ready")
    message = str(caught.value)
    assert message.startswith("vLLM server s0 did not start (exit code 1): ") and FAILS[fault][1] in message
    assert message.endswith("; see s0/log.txt") and "\n" not in message and "initialization failed" not in message
    assert caught.value.log_path.name == "log.txt" and not caught.value.timed_out


def test_a_silent_end_and_a_missing_program(opened, tmp_path):
    said = r"did not start \(exit code 3\): .*vLLM API server version"
    with pytest.raises(LaunchError, match=said), opened(fault="silent"):
        pytest.fail("it cannot be ready")
    with pytest.raises(LaunchError, match=r"did not start \(cannot start .*No such file"), vllm_servers(
            [SETTINGS], engine_python=tmp_path / "nowhere", model=tmp_path, explain=first_cause,
            run_dirs=[tmp_path / "gone"]):
        pytest.fail("it cannot be ready")


def test_a_wrong_model_folder_and_too_many_blocks(opened, tmp_path):
    with pytest.raises(LaunchError, match="Can't load the configuration"), opened(model=tmp_path / "no_model"):
        pytest.fail("it cannot be ready")
    huge = ServerSettings(block_size=32, num_blocks=10**9, max_model_len=512, max_num_seqs=4,
                          max_num_batched_tokens=512)
    with pytest.raises(LaunchError, match="not enough memory"), opened(settings=huge):
        pytest.fail("it cannot be ready")


def test_one_that_fails_stops_the_other(opened, marks, tmp_path):
    broken = ServerSettings(block_size=32, num_blocks=10**9, max_model_len=512, max_num_seqs=4,
                            max_num_batched_tokens=512)
    with pytest.raises(LaunchError, match="server b did not start"), vllm_servers(
            [SETTINGS, broken], engine_python=tmp_path / "python", model=tmp_path / "model", env=marks.env,
            explain=first_cause, run_dirs=[tmp_path / "a", tmp_path / "b"]):
        pytest.fail("they cannot be ready")
    assert marks.alive() == []


def test_never_ready_ends_at_the_deadline(opened, marks):
    with pytest.raises(LaunchError, match=r"was not ready after \d+ s: ") as caught, opened(
            fault="never", ready_timeout_s=1.5):
        pytest.fail("it cannot be ready")
    assert caught.value.timed_out and marks.alive() == []
    assert int(re.search(r"after (\d+) s", str(caught.value))[1]) < 30


def test_a_port_that_is_taken_is_left_to_its_owner(opened, monkeypatch):
    taken = vllm_server.socket.create_server(("127.0.0.1", 0))
    ports = iter([taken.getsockname()[1], free_port()])
    monkeypatch.setattr(vllm_server, "free_port", lambda: next(ports))
    with taken, opened(ready_s=0.1) as (server,):
        assert server.port != taken.getsockname()[1] and server.scrape()
        assert first_cause(server.log_text()) is None, "the first try is not this server's log"
        assert "address already in use" in server.log.read_text(), "but it is kept"


def test_a_port_that_is_always_taken_is_one_line(opened, monkeypatch):
    taken = vllm_server.socket.create_server(("127.0.0.1", 0))
    monkeypatch.setattr(vllm_server, "free_port", lambda: taken.getsockname()[1])
    with taken, pytest.raises(LaunchError, match=r"did not start \(exit code 1\): address already in use"), opened():
        pytest.fail("it cannot be ready")


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_that_dies_is_told_by_the_next_look(opened, marks, signum):
    said = rf"server s0 died \(killed by {signum.name}\): .*; see s0/log.txt"
    with pytest.raises(LaunchError, match=said), opened() as (server,):
        process_of(marks, "--port").send_signal(signum)
        assert wait_until(lambda: is_free(server.port))
        server.scrape()
    assert marks.alive() == [], "its engine too"


def test_a_dead_server_is_dead_to_raise_if_dead_and_to_the_sampler(opened, marks):
    with opened() as (server,):
        with sampled(server.scrape, read=gauges_now, period_s=0.05) as samples:
            time.sleep(0.3)
            process_of(marks, "--port").kill()
            assert wait_until(lambda: is_free(server.port))
            time.sleep(0.3)
        assert samples[0]["running"] == 3 and "died" in samples[-1]["error"]
        with pytest.raises(LaunchError, match="died"):
            server.raise_if_dead()


@pytest.mark.parametrize(("fault", "told"), [("metrics_empty", "no sample|empty"), ("metrics_html", "not Prometheus")])
def test_a_page_that_is_none_is_an_error_of_the_sample(opened, fault, told):
    with opened(fault=fault) as (server,):
        with sampled(server.scrape, read=gauges_now, period_s=0.05) as samples:
            time.sleep(0.2)
        assert samples and all(set(sample) == {"t_s", "scrape_s", "error"} for sample in samples)
        with pytest.raises(ValueError, match=told):
            gauges_now(server.scrape())


def test_a_page_with_an_error_status_is_one_line(opened):
    with opened(fault="metrics_500") as (server,):
        with pytest.raises(LaunchError, match=r"no metrics page: HTTP 500; see s0/log.txt"):
            server.scrape()


def test_two_servers_at_once_do_not_meet(opened, marks):
    with opened(2, ready_s=0.2) as servers:
        assert servers[0].port != servers[1].port
        assert {server.log_text().count("Uvicorn running") for server in servers} == {1}
        process_of(marks, f"--port {servers[0].port}").kill()
        assert wait_until(lambda: is_free(servers[0].port))
        assert gauges_now(servers[1].scrape())["running"] == 3
        servers[1].raise_if_dead()


def test_two_launchers_at_once_do_not_meet(tmp_path, marks):
    python, model = stand_in(tmp_path), model_folder(tmp_path)
    launchers = [start_launcher(tmp_path / name, python=python, model=model, marks=marks, servers=2)
                 for name in ("a", "b")]
    ports = [port for launcher in launchers for port in json.loads(launcher.stdout.readline())]
    assert len(set(ports)) == 4
    launchers[0].kill()
    launchers[0].communicate()
    assert wait_until(lambda: is_free(ports[0]) and is_free(ports[1]))
    assert not is_free(ports[2]) and not is_free(ports[3])
    launchers[1].send_signal(signal.SIGINT)
    launchers[1].communicate(timeout=120)
    assert wait_until(lambda: not marks.alive())


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_launcher_that_ends_takes_its_servers_along(tmp_path, marks, signum):
    launcher = start_launcher(tmp_path / "run", python=stand_in(tmp_path), model=model_folder(tmp_path), marks=marks)
    (port,) = json.loads(launcher.stdout.readline())
    os.killpg(launcher.pid, signum)  # Ctrl-C goes to every process of the terminal's group
    _, told = launcher.communicate(timeout=120)
    assert launcher.returncode == -signum and ("KeyboardInterrupt" in told) == (signum == signal.SIGINT)
    assert wait_until(lambda: not marks.alive()) and is_free(port)


def test_a_killed_guard_leaves_no_deaf_engine(opened, marks, monkeypatch):
    """The one process that ends the others is itself killed, and the engine ignores what the kernel sends."""
    monkeypatch.setattr(vllm_server, "GRACE_S", 1.0)
    with opened() as (server,):
        assert wait_until(lambda: "engine is up" in server.log_text())
        next(process for process in marks.alive() if "launch.guard" in " ".join(process.cmdline())).kill()
        assert wait_until(lambda: is_free(server.port)), "the kernel has sent it SIGTERM"
        with pytest.raises(LaunchError, match=r"server s0 died \(the guard process ended without a report"):
            server.raise_if_dead()
        assert marks.alive() == []


def test_an_error_in_the_block_ends_the_servers_and_comes_out(opened, marks):
    with pytest.raises(ZeroDivisionError), opened(2):
        _ = 1 / 0
    assert marks.alive() == []


def test_gpu_memory_must_return(opened, monkeypatch):
    monkeypatch.setattr(vllm_server, "GPU_RETURN_S", 0.3)
    used = iter([1 << 30] + [5 << 30] * 100)
    with pytest.raises(LaunchError, match="GPU memory did not return: 5120 MiB in use, 1024 MiB before"):
        with opened(gpu_memory=lambda: next(used)):
            pass
    back = iter([1 << 30, 5 << 30, (1 << 30) + (100 << 20)])
    with opened(gpu_memory=lambda: next(back)):
        pass
    assert list(back) == []


def test_bad_arguments(tmp_path):
    with pytest.raises(ValueError, match="run_dirs: 1 of them, expected one for each of 2"), vllm_servers(
            [SETTINGS] * 2, engine_python=tmp_path, model=tmp_path, explain=first_cause, run_dirs=[tmp_path]):
        pass


def test_twenty_random_kills_leave_nothing(tmp_path):
    """Any process of the run, at any moment, four at a time; then no process, port or shared-memory file is left."""
    python, model = stand_in(tmp_path), model_folder(tmp_path)
    found = {}

    def some(seeds):
        for seed in seeds:
            found[seed] = random_kill(seed, tmp_path / f"run{seed}", python=python, model=model, latest_s=2.0,
                                      settle_s=150.0)

    threads = [threading.Thread(target=some, args=(range(start, 20, 4),)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bad = [outcome for outcome in found.values() if any(outcome[1:])]
    assert len(found) == 20 and bad == [], bad
    assert len({outcome[0].rsplit(" ", 2)[1] for outcome in found.values()}) >= 3, "all kinds of processes were met"


def test_the_check_sees_what_is_left(tmp_path, marks):
    """A guard for the tests above: an engine that nobody ends is found."""
    engine = psutil.Popen(["sleep", "60"], env={**os.environ, **marks.env})
    assert [process.pid for process in marks.alive()] == [engine.pid]
    engine.kill()
    engine.wait()
