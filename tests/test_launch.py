"""The guard: output, deadline and an empty process table afterwards, with plain programs (no torch)."""

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from pathlib import Path

import psutil
import pytest

from labkit.launch.guard import SHM, remove_shm, shm_files
from labkit.launch.process import LaunchError, check_run_dir, describe_exit, launch_worker, run_program, thread_env
from labkit.paths import ROOT

GRACE_S = 0.7


@pytest.fixture
def mark():
    """A variable whose value no other process has; at the end no process with it may be alive."""
    value = uuid.uuid4().hex
    yield {"LABKIT_TEST_MARK": value}
    left = alive(value)
    for process in left:
        process.kill()
    assert not left


def alive(value):
    """Processes that inherited the mark, zombies not counted."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("LABKIT_TEST_MARK") == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_until(condition, timeout_s=15.0):
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def python(code):
    return [sys.executable, "-c", textwrap.dedent(code)]


def run(code, run_dir, mark, *, timeout_s=30.0, **more):
    return run_program(python(code), run_dir=run_dir, timeout_s=timeout_s, env=mark, grace_s=GRACE_S, **more)


# --- output and exit codes -------------------------------------------------------------------------------------------


def test_output_goes_to_the_log_and_line_by_line_to_progress(tmp_path, mark):
    seen = []
    ended = run(r"""
        import os, sys
        print("one"); print("two", file=sys.stderr); print(os.getcwd()); print(os.environ["LABKIT_TEST_MARK"])
        print(sys.stdin.read() == "")
        sys.stdout.buffer.write(b"bad \xff byte\r\nno newline at the end")
        """, tmp_path, mark, progress=seen.append)
    assert (ended.exitcode, ended.timed_out, ended.ended) == (0, False, [])
    assert sorted(seen[:2]) == ["one", "two"]
    assert seen[2:] == [str(tmp_path), mark["LABKIT_TEST_MARK"], "True", "bad \ufffd byte", "no newline at the end"]
    assert (tmp_path / "log.txt").read_bytes().endswith(b"bad \xff byte\r\nno newline at the end")
    run("print('again')", tmp_path, mark)
    assert "two" in (tmp_path / "log.txt").read_text(errors="replace")  # a second launch appends


def test_a_line_without_end_does_not_stop_the_run(tmp_path, mark):
    seen = []
    run("print('x' * 1_000_000, end='')", tmp_path, mark, progress=seen.append)
    assert "".join(seen) == "x" * 1_000_000


def test_a_slow_reader_does_not_slow_the_program(tmp_path, mark):
    def slow(line):
        if line == "0":
            wait_until((tmp_path / "done").exists)  # 2 MB of lines: far more than a pipe holds

    run("""
        for i in range(20_000): print(i) if i == 0 else print("x" * 100)
        open("done", "w").close()
        """, tmp_path, mark, progress=slow)
    assert (tmp_path / "done").exists()


@pytest.mark.parametrize("code, exitcode", [
    ("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9), ("import os; os.abort()", -6)])
def test_exit_codes_come_back(tmp_path, mark, code, exitcode):
    assert run(code, tmp_path, mark).exitcode == exitcode


def test_exits_in_words():
    words = [describe_exit(code) for code in (0, 1, -15, -11, -250, None)]
    assert words == ["exit code 0", "exit code 1", "killed by SIGTERM", "killed by SIGSEGV", "killed by signal 250",
                     "exit code unknown"]


def test_bad_arguments_are_named(tmp_path):
    for timeout_s in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="timeout_s="):
            run_program(["true"], run_dir=tmp_path, timeout_s=timeout_s)
    with pytest.raises(ValueError, match=r"run_dir=.*existing folder"):
        run_program(["true"], run_dir=tmp_path / "no", timeout_s=1)
    with pytest.raises(ValueError, match=r"params\.json"):
        check_run_dir(tmp_path)
    (tmp_path / "params.json").write_text("{}")
    with pytest.raises(ValueError, match="worker='nosuch'"):
        launch_worker("nosuch", run_dir=tmp_path, timeout_s=1)


def test_a_program_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(LaunchError, match=r"^cannot start nosuch-program: No such file or directory$"):
        run_program(["nosuch-program"], run_dir=tmp_path, timeout_s=5)


def test_threads_are_shared_out(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = len(os.sched_getaffinity(0))
    assert thread_env(1, None) == {"OMP_NUM_THREADS": str(cores)}
    assert thread_env(10 * cores, {}) == {"OMP_NUM_THREADS": "1"}
    assert thread_env(1, {"OMP_NUM_THREADS": "5"}) == {}
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert thread_env(1, None) == {}


# --- stopping --------------------------------------------------------------------------------------------------------

FAMILY = """
import os, signal, subprocess, sys, time
# A child, and a grandchild that has left the session and lost its parent.
subprocess.Popen(["sleep", "300"])
orphan = "import subprocess; subprocess.Popen(['sleep', '300'], start_new_session=True)"
subprocess.Popen([sys.executable, "-c", orphan])
"""


def test_deadline_ends_a_program_that_ignores_sigterm_with_all_its_family(tmp_path, mark):
    started = time.monotonic()
    ended = run(FAMILY + "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf'); time.sleep(300)",
                tmp_path, mark, timeout_s=3.0)
    assert (ended.timed_out, ended.exitcode) == (True, -9)
    assert sorted(ended.ended)[-2:] == ["sleep", "sleep"]
    assert time.monotonic() - started < 20 and alive(mark["LABKIT_TEST_MARK"]) == []


def test_sigterm_comes_first_so_that_a_program_can_clean_up(tmp_path, mark):
    ended = run("""
        import signal, sys, time
        def leave(*_):
            print("cleaned up"); sys.exit(7)
        signal.signal(signal.SIGTERM, leave)
        print("ready"); time.sleep(300)
        """, tmp_path, mark, timeout_s=3.0)
    assert (ended.timed_out, ended.exitcode) == (True, 7)
    assert (tmp_path / "log.txt").read_text().split() == ["ready", "cleaned", "up"]


def test_a_good_end_leaves_nothing_either(tmp_path, mark):
    ended = run(FAMILY + "time.sleep(0.5)", tmp_path, mark)
    assert (ended.exitcode, ended.timed_out, ended.ended) == (0, False, ["sleep", "sleep"])
    assert alive(mark["LABKIT_TEST_MARK"]) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_exception_in_progress_stops_the_run_and_comes_out(tmp_path, mark, error):
    def fail(line):
        raise error("stop")

    with pytest.raises(error, match="stop"):
        run(FAMILY + "print('x'); time.sleep(300)", tmp_path, mark, timeout_s=200, progress=fail)
    assert alive(mark["LABKIT_TEST_MARK"]) == []


def test_a_program_that_ends_as_it_is_told_to_stop_keeps_its_exit_code():
    """In a process of its own, because the guard collects every child of its process."""
    code = """
        import psutil, time
        from labkit.launch.guard import _Run
        run = _Run(["sh", "-c", "exit 5"])
        while psutil.Process(run.program.pid).status() != psutil.STATUS_ZOMBIE: time.sleep(0.01)
        started = time.monotonic()
        run.stop(15.0)
        print(run.exitcode, time.monotonic() - started < 10)
        """
    done = subprocess.run(python(code), cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
                          text=True, timeout=60)
    assert done.stdout == "5 True\n", done.stderr


LAUNCHER = """
import sys
from pathlib import Path
from labkit.launch.process import run_program
run_program([sys.executable, "-c", {code!r}], run_dir=Path({run_dir!r}), timeout_s=200, grace_s=0.7)
"""


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_launcher_takes_its_run_along(tmp_path, mark, signum):
    code = FAMILY + "open('ready', 'w').close(); time.sleep(300)"
    launcher = subprocess.Popen(python(LAUNCHER.format(code=code, run_dir=str(tmp_path))), env={**os.environ, **mark},
                                cwd=ROOT, stderr=subprocess.PIPE)
    wait_until((tmp_path / "ready").exists)
    assert len(alive(mark["LABKIT_TEST_MARK"])) >= 4
    launcher.send_signal(signum)
    _, stderr = launcher.communicate(timeout=90)
    assert launcher.returncode == -signum
    assert (b"KeyboardInterrupt" in stderr) == (signum == signal.SIGINT)
    wait_until(lambda: not alive(mark["LABKIT_TEST_MARK"]))


def test_a_killed_guard_is_reported_and_its_program_gets_sigterm(tmp_path, mark):
    def kill_guard(line):
        (program,) = [p for p in alive(mark["LABKIT_TEST_MARK"]) if "print('x')" in " ".join(p.cmdline())
                      and "guard" not in " ".join(p.cmdline())]
        program.parent().kill()

    with pytest.raises(LaunchError, match="guard process ended without a report"):
        run("import time; print('x'); time.sleep(300)", tmp_path, mark, progress=kill_guard)
    wait_until(lambda: not alive(mark["LABKIT_TEST_MARK"]))


def test_two_runs_at_once_end_apart(tmp_path, mark):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    ended = {}
    codes = {"a": "import time; time.sleep(300)", "b": "import time; time.sleep(2.5); print('done')"}

    def launch(name, timeout_s):
        ended[name] = run(codes[name], tmp_path / name, mark, timeout_s=timeout_s)

    threads = [threading.Thread(target=launch, args=("a", 0.8)), threading.Thread(target=launch, args=("b", 60.0))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (ended["a"].timed_out, ended["b"].timed_out, ended["b"].exitcode) == (True, False, 0)
    assert (tmp_path / "b" / "log.txt").read_text() == "done\n"


def test_no_port_and_no_descriptor_stays_open(tmp_path, mark):
    ports = []
    before = len(os.listdir("/proc/self/fd"))
    ended = run("""
        import socket, time
        server = socket.create_server(("127.0.0.1", 0)); print(server.getsockname()[1]); time.sleep(300)
        """, tmp_path, mark, timeout_s=3.0, progress=lambda line: ports.append(int(line)))
    assert ended.timed_out
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", ports[0]), timeout=2).close()
    assert len(os.listdir("/proc/self/fd")) == before


# --- disk ------------------------------------------------------------------------------------------------------------


def test_a_full_disk_under_the_log_stops_the_run(tmp_path, mark):
    (tmp_path / "log.txt").symlink_to("/dev/full")  # every write there fails with ENOSPC
    with pytest.raises(LaunchError, match=r"^cannot write log\.txt: No space left on device$"):
        run("import time; print('x'); time.sleep(300)", tmp_path, mark, timeout_s=200)


def test_a_log_that_cannot_be_opened_is_one_line(tmp_path, mark):
    (tmp_path / "log.txt").mkdir()
    with pytest.raises(LaunchError, match=r"^cannot write log\.txt: Is a directory$"):
        run("print('x')", tmp_path, mark)


# --- shared memory ---------------------------------------------------------------------------------------------------

needs_shm = pytest.mark.skipif(not SHM.is_dir(), reason="this system has no /dev/shm")


@needs_shm
def test_shared_memory_of_a_stopped_run_is_removed_and_no_other(tmp_path, mark):
    name, streams = uuid.uuid4().hex, []

    def make_foreign(line):  # while the run lasts; looks like NCCL's, but this process has it open
        streams.append(open(SHM / f"nccl-{name}", "wb"))  # noqa: SIM115 (open until the test ends)

    try:
        ended = run(f"""
            import mmap, time
            from pathlib import Path
            shm = Path({str(SHM)!r})
            handle = open(shm / "odd-{name}", "wb+"); handle.truncate(4096)
            mapped = mmap.mmap(handle.fileno(), 4096)
            (shm / "torch_1_{name}").write_text("left by a dead rank")
            (shm / "result-{name}").write_text("a file somebody may want")
            print("ready"); time.sleep(300)
            """, tmp_path, mark, timeout_s=3.0, progress=make_foreign)
        assert ended.timed_out and streams
        assert {entry for entry in shm_files() if name in entry} == {f"nccl-{name}", f"result-{name}"}
    finally:
        for stream in streams:
            stream.close()
        for path in SHM.glob(f"*{name}"):
            path.unlink()


@needs_shm
def test_a_semaphore_of_another_program_outlives_the_run():
    """The map of the process that made it shows another name, one that is gone: only the inode tells."""
    before = shm_files()
    semaphore = multiprocessing.get_context("spawn").Semaphore(1)
    try:
        new = set(shm_files()) - set(before)
        assert new, "multiprocessing keeps its semaphores elsewhere"
        assert not new & set(remove_shm(before, set())) and new <= set(shm_files())
    finally:
        del semaphore


@needs_shm
def test_files_from_before_the_run_are_not_touched():
    path = SHM / f"torch_{uuid.uuid4().hex}"
    path.write_text("older")
    try:
        assert remove_shm(shm_files(), {path.stat().st_ino}) == [] and path.exists()
        assert path.name in remove_shm({}, set())
    finally:
        path.unlink(missing_ok=True)


# --- one worker without torchrun -------------------------------------------------------------------------------------


@pytest.fixture
def worker(tmp_path, mark):
    """Writes a module and launches it as a worker."""
    (tmp_path / "code").mkdir()
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "params.json").write_text('{"x": 1}')

    def launch(code, **more):
        (tmp_path / "code" / "pack").mkdir(exist_ok=True)
        (tmp_path / "code" / "pack" / "the_worker.py").write_text(textwrap.dedent(code))
        more = {"timeout_s": 30, **more}
        return launch_worker("pack.the_worker", run_dir=run_dir, grace_s=GRACE_S,
                             env={**mark, "PYTHONPATH": str(tmp_path / "code")}, **more)

    launch.run_dir = run_dir
    return launch


def test_a_worker_gets_its_run_dir_and_arguments(worker):
    result = worker("""
        import json, os, sys
        from pathlib import Path
        run_dir = Path(sys.argv[sys.argv.index("--run-dir") + 1])
        out = [json.loads((run_dir / "params.json").read_text()), sys.argv[3:], os.environ["OMP_NUM_THREADS"].isdigit()]
        (run_dir / "rank0.jsonl").write_text(json.dumps(out))
        """, args=["--extra"])
    assert json.loads((worker.run_dir / "rank0.jsonl").read_text()) == [{"x": 1}, ["--extra"], True]
    assert result.argv == [sys.executable, "-m", "pack.the_worker", "--run-dir", str(worker.run_dir), "--extra"]
    assert result.log == worker.run_dir / "log.txt" and 0 < result.wall_s < 30


def test_a_failing_worker_is_one_line_with_its_error(worker):
    with pytest.raises(LaunchError) as caught:
        worker("""
            def step():
                raise ValueError("boom\\nsecond line")
            step()
            """)
    error = caught.value
    assert str(error) == "pack.the_worker failed (exit code 1): ValueError: boom; see log.txt"
    assert (error.exitcode, error.error, error.timed_out, error.rank) == (1, "ValueError: boom", False, None)
    assert error.traceback.startswith("Traceback") and "in step" in error.traceback
    assert error.log_path == worker.run_dir / "log.txt"
    assert error.as_failure() == {"message": str(error), "rank": None, "exitcode": 1, "error": "ValueError: boom",
                                  "timed_out": False, "log": "log.txt"}


def test_a_killed_a_silent_and_a_hung_worker(worker):
    with pytest.raises(LaunchError, match=r"\(killed by SIGKILL\): killed by signal 9 \(out of memory\?\)"):
        worker("import os; os.kill(os.getpid(), 9)")
    with pytest.raises(LaunchError, match=r"\(exit code 4\): giving up; see log\.txt"):
        worker("print('giving up'); raise SystemExit(4)")
    with pytest.raises(LaunchError, match=r"timed out after 3 s; last line: waiting") as caught:
        worker("import time; print('waiting'); time.sleep(300)", timeout_s=3.0)
    assert caught.value.timed_out


def test_the_children_import_this_labkit(worker):
    worker("import labkit; from pathlib import Path; Path('where').write_text(labkit.__file__)")
    assert Path((worker.run_dir / "where").read_text()) == ROOT / "labkit" / "__init__.py"
