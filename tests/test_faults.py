"""Faults on purpose, in real two-rank runs: the record is complete or plainly incomplete, and nothing keeps running."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
import uuid

import psutil
import pytest

from labkit.launch.guard import shm_files
from labkit.launch.process import LaunchError, launch_worker
from labkit.launch.torchrun import launch_torchrun
from labkit.paths import ROOT
from labkit.records import (
    RecordError,
    RunRecord,
    check_run,
    describe_artifacts,
    load_record,
    open_run_dir,
    publish,
    run_status,
)

WORKER = "tests.workers_for_tests.reduce_steps"
GRACE_S = 3.0


@pytest.fixture
def mark():
    """Marks every process of a test; afterwards none may be alive, and no shared-memory file may be new."""
    value = uuid.uuid4().hex
    before = set(shm_files())
    yield {"LABKIT_TEST_MARK": value, "OMP_NUM_THREADS": "1"}
    left = marked(value)
    for process in left:
        process.kill()
    assert not left
    assert {name for name in set(shm_files()) - before if name.startswith(("nccl-", "torch_", "psm_"))} == set()


def marked(value):
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("LABKIT_TEST_MARK") == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_until(condition, timeout_s=60.0):
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def launch(run_dir, mark, *, timeout_s=120.0, steps=4, fail=None, backend="gloo"):
    run_dir.mkdir(exist_ok=True)
    params = {"steps": steps, "step_s": 0.01, "fail": fail or {}, "backend": backend}
    (run_dir / "params.json").write_text(json.dumps(params))
    return launch_torchrun(WORKER, run_dir=run_dir, num_procs=2, timeout_s=timeout_s, env=mark, grace_s=GRACE_S)


# --- ranks that fail -------------------------------------------------------------------------------------------------


def test_two_launches_at_once_do_not_meet_and_leave_nothing(tmp_path, mark):
    results = {}

    def one(name, fail):
        results[name] = launch(tmp_path / name, mark, fail=fail)

    threads = [threading.Thread(target=one, args=("a", {})), threading.Thread(target=one, args=("b", {"1": "orphan"}))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in ("a", "b"):
        ranks = [[json.loads(line) for line in (tmp_path / name / f"rank{k}.jsonl").read_text().splitlines()]
                 for k in (0, 1)]
        assert [[line["sum"] for line in lines] for lines in ranks] == [[1.0] * 4] * 2
        assert {line["threads"] for lines in ranks for line in lines} == {1}
        log = (tmp_path / name / "log.txt").read_text()
        assert "[rank0]:step 3 done\n" in log and "[rank1]:step 3 done\n" in log
        assert sorted(os.listdir(tmp_path / name)) == ["log.txt", "params.json", "rank0.jsonl", "rank1.jsonl"]
    assert (results["a"].ended, results["b"].ended) == ([], ["sleep"])  # what rank 1 left behind was ended
    assert results["a"].argv[1:5] == ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def test_a_rank_that_raises_is_blamed_although_the_other_complains(tmp_path, mark):
    with pytest.raises(LaunchError) as caught:
        launch(tmp_path / "p0", mark, fail={"1": "raise"})
    error = caught.value
    # Unknown where rank 0 ended of it so fast that the agent stopped rank 1 before it was gone.
    how = "exit code 1" if error.exitcode == 1 else "exit code unknown"
    assert str(error) == f"{WORKER}: rank 1 failed ({how}): ValueError: boom on rank 1; see log.txt"
    assert (error.rank, error.error, error.timed_out) == (1, "ValueError: boom on rank 1", False)
    assert error.exitcode in (1, None)
    assert "in misbehave" in error.traceback and error.traceback.rstrip().endswith(error.error)
    kept = json.loads((tmp_path / "p0" / "rank1.error.json").read_text())
    assert kept["message"]["message"] == "ValueError: boom on rank 1"
    assert not (tmp_path / "p0" / "torchrun").exists()


def test_a_rank_that_is_killed_is_blamed_with_its_signal(tmp_path, mark):
    with pytest.raises(LaunchError, match=r"rank 0 failed \(killed by SIGKILL\)") as caught:
        launch(tmp_path / "p0", mark, fail={"0": "kill"})
    assert (caught.value.rank, caught.value.exitcode) == (0, -9)
    assert caught.value.error == "killed by signal 9 (out of memory?)"


def test_a_rank_that_hangs_and_ignores_sigterm_ends_at_the_deadline(tmp_path, mark):
    started = time.monotonic()
    with pytest.raises(LaunchError, match=r"timed out after 12 s; last lines: rank 0: .*; rank 1: ") as caught:
        launch(tmp_path / "p0", mark, fail={"1": "ignore_term_hang"}, timeout_s=12)
    assert caught.value.timed_out and time.monotonic() - started < 12 + 4 * GRACE_S + 20
    if "rank 1 stops here" in (tmp_path / "p0" / "log.txt").read_text():  # a busy machine may not get that far
        assert "rank 1: rank 1 stops here" in str(caught.value)


def test_torchrun_itself_failing_is_said(tmp_path, mark):
    (tmp_path / "params.json").write_text("{}")
    with pytest.raises(LaunchError, match=r"rank \d failed \(exit code 1\): .*No module named .*nosuch"):
        launch_torchrun("tests.nosuch", run_dir=tmp_path, num_procs=1, timeout_s=60, env=mark)


@pytest.mark.parametrize("arguments, message", [
    ({"num_procs": 0}, "num_procs=0"), ({"nnodes": 2}, "rdzv_endpoint=None"), ({"nnodes": 0}, "nnodes=0"),
    ({"timeout_s": 0}, "timeout_s=0"), ({"worker": "ddp_stepz"}, "worker='ddp_stepz': no such module .* mean 'ddp_st")])
def test_bad_arguments_are_named_before_anything_starts(tmp_path, arguments, message):
    (tmp_path / "params.json").write_text("{}")
    arguments = {"worker": WORKER, "run_dir": tmp_path, "num_procs": 1, "timeout_s": 5, **arguments}
    with pytest.raises(ValueError, match=message):
        launch_torchrun(arguments.pop("worker"), **arguments)


def test_several_nodes_meet_at_the_endpoint():
    from labkit.launch.torchrun import _rendezvous

    assert _rendezvous(1, node_rank=None, endpoint=None, job=None) == ["--standalone"]
    assert _rendezvous(2, node_rank=1, endpoint="h:1", job="j") == [
        "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:1", "--node-rank=1", "--rdzv-id=j"]


@pytest.mark.gpu
@pytest.mark.parametrize("what, message, exitcode", [
    ("raise", r"rank 1 failed \(exit code (1|unknown)\): ValueError: boom on rank 1", None),
    ("kill", r"rank 1 failed \(killed by SIGKILL\)", -9),
    ("hang", r"timed out after 1 min 0 s; last lines: .*rank 1: rank 1 stops here", None)])
def test_nccl_ranks_that_fail_on_gpus(tmp_path, mark, what, message, exitcode):
    """Needs two GPUs: the other rank waits inside a collective and is ended with its shared memory."""
    with pytest.raises(LaunchError, match=message) as caught:
        launch(tmp_path / "p0", mark, fail={"1": what}, backend="nccl", timeout_s=60)
    assert caught.value.timed_out == (what == "hang")
    assert exitcode is None or caught.value.exitcode == exitcode


# --- the launcher dies -----------------------------------------------------------------------------------------------

FLOW = """
import sys
from pathlib import Path
from labkit.launch.torchrun import launch_torchrun
from labkit.records import RunRecord, describe_artifacts, open_run_dir, publish, utc_now
began = utc_now()
run_dir = open_run_dir("exp", "r1", params={"steps": 60, "step_s": 0.02}, root=Path(sys.argv[1]))
result = launch_torchrun(sys.argv[2], run_dir=run_dir, num_procs=2, timeout_s=120, grace_s=3)
artifacts = describe_artifacts(run_dir, ["rank0.jsonl", "rank1.jsonl", "log.txt"])
publish(RunRecord(experiment="exp", run_id="r1", preset="smoke", status="ok", created_utc=began, finished_utc=utc_now(),
                  params={}, argv=[result.argv], artifacts=artifacts), run_dir)
"""


@pytest.mark.parametrize("moment", ["starting", "stepping", "random"])
def test_kill_9_of_the_launcher_in_a_real_run(tmp_path, mark, moment):
    run_dir, log = tmp_path / "exp" / "r1", tmp_path / "exp" / "r1" / "log.txt"
    launcher = subprocess.Popen([sys.executable, "-c", FLOW, str(tmp_path), WORKER], cwd=ROOT,
                                env={**os.environ, **mark})
    try:
        if moment == "starting":
            wait_until(log.exists)
        elif moment == "stepping":
            wait_until(lambda: log.exists() and "step 5 done" in log.read_text())
        else:
            wait_s = random.uniform(0.0, 9.0)
            print(f"killed after {wait_s:.3f} s")  # pytest shows it if the test fails
            time.sleep(wait_s)
    finally:
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
    wait_until(lambda: not marked(mark["LABKIT_TEST_MARK"]), timeout_s=30)
    if moment == "random" and not run_dir.exists():
        return  # killed before it began
    status = run_status(run_dir)
    assert status in ("ok", "incomplete") if moment == "random" else status == "incomplete"
    problems = ["incomplete, it has no record.json"] if status == "incomplete" else []
    assert check_run(run_dir) == problems


PUBLISH_LOOP = """
import os, sys
from pathlib import Path
from labkit.records import RunRecord, describe_artifacts, open_run_dir, publish, utc_now
for i in range(10_000):
    run_dir = open_run_dir("exp", f"r{i}", params={"i": i}, root=Path(sys.argv[1]))
    (run_dir / "a.bin").write_bytes(os.urandom(20_000))
    publish(RunRecord(experiment="exp", run_id=f"r{i}", preset="smoke", status="ok", created_utc=utc_now(),
                      finished_utc=utc_now(), params={"i": i}, results={"text": "x" * 20_000},
                      artifacts=describe_artifacts(run_dir, ["a.bin"])), run_dir)
"""


def test_kill_9_while_publishing_leaves_whole_records_or_none(tmp_path, mark):
    seen = {"ok": 0, "incomplete": 0}
    for attempt in range(12):
        root = tmp_path / str(attempt)
        writer = subprocess.Popen([sys.executable, "-c", PUBLISH_LOOP, str(root)], cwd=ROOT,
                                  env={**os.environ, **mark})
        wait_until((root / "exp" / "r1").exists)
        time.sleep(random.uniform(0.0, 0.05))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        for run_dir in (root / "exp").iterdir():
            status = run_status(run_dir)
            seen[status] += 1  # any other state is a KeyError
            assert check_run(run_dir) == ([] if status == "ok" else ["incomplete, it has no record.json"])
            if status == "ok":
                assert load_record(run_dir).params == {"i": int(run_dir.name[1:])}
    assert seen["ok"] >= 12


# --- the disk --------------------------------------------------------------------------------------------------------


@pytest.fixture
def mount(tmp_path):
    """A function from mount options to a tmpfs folder, or to None where this user may not mount."""
    mounted = []

    def make(options):
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        argv = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if os.geteuid() != 0 or subprocess.run(argv, capture_output=True).returncode != 0:
            return None
        mounted.append(folder)
        return folder

    yield make
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)


def make_record(run_dir, **changes):
    times = {"created_utc": "2026-01-31T12:00:00.000Z", "finished_utc": "2026-01-31T12:00:09.500Z"}
    base = dict(experiment="exp", run_id=run_dir.name, preset="smoke", status="ok", params={}, **times)
    return RunRecord(**{**base, **changes})


def publish_on_a_full_disk(root):
    """The record needs more room than there is. Returns the error's text."""
    run_dir = open_run_dir("exp", "r1", params={}, root=root)
    (run_dir / "rank0.jsonl").write_text("{}\n")
    record = make_record(run_dir, artifacts=describe_artifacts(run_dir, ["rank0.jsonl"]), notes=["x" * 200_000])
    with pytest.raises(RecordError) as caught:
        publish(record, run_dir)
    assert run_status(run_dir) == "incomplete" and sorted(os.listdir(run_dir)) == ["params.json", "rank0.jsonl"]
    return str(caught.value)


def test_a_record_that_does_not_fit_leaves_the_run_incomplete(tmp_path, mount):
    if (disk := mount("size=64k")) is not None:
        assert publish_on_a_full_disk(disk).endswith("cannot write record.json: No space left on device")
        return
    # Without the right to mount: a limit on file size fails the same write.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64_000, limits[1]))
        assert publish_on_a_full_disk(tmp_path).endswith("cannot write record.json: File too large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


FILLER = """
import os, resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
with open("rank0.jsonl", "w") as stream:
    for _ in range(1000): print("x" * 1000, file=stream, flush=True)
"""


def test_a_worker_that_fills_the_disk_is_a_failed_run_with_the_reason(tmp_path, mount, mark):
    disk = mount("size=128k")
    package = tmp_path / "code" / "fill_pack"
    package.mkdir(parents=True)
    (package / "filler.py").write_text(FILLER)
    run_dir = open_run_dir("exp", "r1", params={}, root=disk or tmp_path)
    reason = "No space left on device" if disk else "File too large"
    # The worker's traceback may not fit into the log either; then it is the log that is named.
    with pytest.raises(LaunchError, match=reason):
        launch_worker("fill_pack.filler", run_dir=run_dir, timeout_s=60,
                      env={**mark, "PYTHONPATH": str(tmp_path / "code")})
    assert run_status(run_dir) == "incomplete"


def test_an_unwritable_folder_is_one_line(tmp_path, mount, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LABKIT_RUNS_DIR", str(tmp_path / "file"))
    with pytest.raises(RecordError, match=r"cannot|in the way") as caught:
        open_run_dir("exp", "r1", params={})
    assert "\n" not in str(caught.value)
    disk = mount("size=64k")
    if disk is not None:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        folder, reason = disk, "Read-only file system"
    elif os.geteuid() != 0:
        folder, reason = tmp_path / "closed", "Permission denied"
        folder.mkdir(mode=0o500)
    else:
        return  # root without the right to mount: permissions do not bind it, the file above was the test
    with pytest.raises(RecordError, match=f"cannot write the run directory .*: {reason}$"):
        open_run_dir("exp", "r1", params={}, root=folder)


def test_a_cut_artifact_is_found(tmp_path):
    run_dir = open_run_dir("exp", "r1", params={}, root=tmp_path)
    (run_dir / "trace.json").write_text('{"traceEvents": []}')
    publish(make_record(run_dir, artifacts=describe_artifacts(run_dir, ["trace.json"])), run_dir)
    assert check_run(run_dir) == []
    os.truncate(run_dir / "trace.json", 10)
    assert check_run(run_dir) == ["trace.json: 10 bytes, recorded 19"]
