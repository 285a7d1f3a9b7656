"""The checkpoint workers in this process: one real gloo rank, and sums whose order is known."""

import json
import os
import random
import subprocess
import sys

import pytest

pytest.importorskip("torch")

import torch
from torch import distributed as dist

from labkit.analyze.checkpoint_faults import kill_results
from labkit.analyze.ddp_rank_files import read_ranks
from labkit.checkpoints import CheckpointError, step_dir, verify
from labkit.paths import ROOT
from labkit.workers import checkpoint_drill, checkpoint_kills, checkpoint_order
from labkit.workers.checkpoint_cost import order_of
from labkit.workers.checkpoint_dcp import load_dcp, save_dcp
from labkit.workers.checkpoint_io import AsyncSaver, host_copy, load, save
from labkit.workers.checkpoint_state import (
    digest,
    main_state,
    make_job,
    rank_state,
    restore,
    state_digests,
    train_step,
)
from labkit.workers.checkpoint_talk import PROBLEM_CHARS, Talk, cut
from labkit.workers.session import Session

MODEL = {"hidden": 8, "inner": 16, "dropout": 0.3, "batch": 4, "learning_rate": 1e-2, "seed": 5}


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """One rank of a gloo group of one."""
    folder = tmp_path_factory.mktemp("rank")
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 1), rank=0, world_size=1)
    with open(folder / "rank0.jsonl", "w") as stream:
        yield Session(rank=0, world_size=1, device=torch.device("cpu"), run_dir=folder, stream=stream)
    dist.destroy_process_group()


def put(session, job, root, **more):
    return save(Talk(session), root, step=job.step, main=main_state(job), own=rank_state(job), algorithm="sha256",
                durable=False, **more)


def test_a_restored_job_takes_the_same_steps(session, tmp_path):
    job = make_job(session, MODEL, is_fused=False)
    for _ in range(2):
        train_step(job)
    put(session, job, tmp_path)
    saved = state_digests(job)
    kept = [train_step(job) for _ in range(3)]
    fresh = make_job(session, MODEL, is_fused=False)
    assert state_digests(fresh) != saved
    main, own, step = load(session, tmp_path)
    restore(fresh, main, own)
    assert step == 2 and state_digests(fresh) == saved
    assert [train_step(fresh) for _ in range(3)] == kept  # losses, batches, cursors, gradients and weights by hash
    assert [row["cursor"] for row in kept] == [12, 16, 20]


def test_states_of_two_saves_do_not_mix(session):
    job = make_job(session, MODEL, is_fused=False)
    with pytest.raises(RuntimeError, match="main state of step 1, rank state of step 0"):
        restore(job, {**main_state(job), "step": 1}, rank_state(job))


def test_a_background_save_holds_the_state_of_its_start(session, tmp_path):
    job = make_job(session, MODEL, is_fused=False)
    train_step(job)
    saver, wanted = AsyncSaver(session), digest(job.model.state_dict())
    saver.start(tmp_path, step=1, main=main_state(job), own=rank_state(job), algorithm="sha256", durable=False)
    with torch.no_grad():
        for parameter in job.model.parameters():
            parameter.zero_()
    saver.wait()
    assert digest(load(session, tmp_path)[0]["model"]) == wanted != digest(job.model.state_dict())
    saver.start(tmp_path, step=1, main=main_state(job), own=rank_state(job), algorithm="sha256", durable=False)
    with pytest.raises(CheckpointError, match="is committed"):
        saver.wait()
    saver.wait()  # told once


def test_the_ranks_words_arrive_whole_and_are_cut_to_fit(session):
    talk = Talk(session)
    smile = "\N{GRINNING FACE}" * 1000  # twelve bytes of JSON each
    assert talk.open(None) is None
    reports = talk.report([[{"path": "a" * 200}] * 2, cut(smile)])
    assert reports == [[[{"path": "a" * 200}] * 2, smile[:PROBLEM_CHARS]]]
    assert talk.close(smile) == talk.open(smile) == smile[:PROBLEM_CHARS] and talk.close(None) is None
    with pytest.raises(ValueError, match="message of 10002 bytes: expected at most 8192"):
        talk.report("x" * 10000)


def test_no_save_always_follows_the_same_one():
    variants = ["bare", "sha256", "fast", "async", "dcp"]
    rounds = [order_of(variants, index) for index in range(20)]
    assert all(sorted(own) == sorted(variants) for own in rounds)
    firsts = [own[0] for own in rounds]
    assert {name: firsts.count(name) for name in variants} == dict.fromkeys(variants, 4)
    before = [(own[own.index("fast") - 1]) for own in rounds if own.index("fast")]
    assert before.count("sha256") == before.count("async") == 8


def test_a_host_copy_shares_nothing():
    tensor = torch.ones(3)
    copy = host_copy({"a": [tensor, 1], "b": (tensor,)})
    tensor.zero_()
    assert copy["a"][0].sum() == copy["b"][0].sum() == 3 and copy["a"][1] == 1


def test_nothing_is_loaded_rather_than_the_wrong_thing(session, tmp_path):
    with pytest.raises(CheckpointError, match="nothing to resume from: no checkpoint"):
        load(session, tmp_path)
    job = make_job(session, MODEL, is_fused=False)
    put(session, job, tmp_path)
    with open(step_dir(tmp_path, 0) / "main.pt", "ab") as stream:
        stream.write(b"x")
    with pytest.raises(CheckpointError, match=r"damaged, main\.pt of rank 0"):
        load(session, tmp_path)


def test_the_own_gradients_leave_no_trace_and_are_those_of_the_next_step(session):
    job = make_job(session, MODEL, is_fused=False)
    train_step(job)
    before = state_digests(job)
    gathered = checkpoint_order.own_gradients(job)
    assert state_digests(job) == before and all(p.grad is None for p in job.model.parameters())
    train_step(job)
    for name, parameter in job.model.named_parameters():
        assert torch.equal(gathered[name][0], parameter.grad.flatten())


def test_sums_follow_their_order():
    # In float32 1e8 + 1 is 1e8, so the order of the terms decides: (1e8 + 1) - 1e8 is 0, (1e8 - 1e8) + 1 is 1.
    gathered = {"w": [torch.tensor([v, v]) for v in (1e8, 1.0, -1e8)]}
    spans = [{"name": "w", "start": 0, "stop": 1, "ranks": [0, 1, 2]},
             {"name": "w", "start": 1, "stop": 2, "ranks": [0, 2, 1]}]
    sums = checkpoint_order.sums_in_order(gathered, spans)
    assert sums["w"].tolist() == [0.0, 1.0]
    assert checkpoint_order.num_equal(sums, {"w": torch.tensor([[0.0], [0.0]])}) == 1
    assert checkpoint_order.num_equal(checkpoint_order.sums_in_order(gathered, spans[:1]), sums) == 1  # the gap is NaN


def test_digests_see_every_bit():
    value = {"a": torch.zeros(4), "b": [1, None, True]}
    assert digest(value) == digest({"b": [1, None, True], "a": torch.zeros(4)})
    assert digest(value) != digest({"a": -torch.zeros(4), "b": [1, None, True]})
    assert digest(torch.zeros(4)) != digest(torch.zeros(2, 2)) != digest(torch.zeros(4, dtype=torch.int32))


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_the_wrapper_stops_what_dcp_would_load(session, tmp_path):
    state = {"w": torch.full((1000,), 3.0)}
    save_dcp(session, tmp_path, state, step=1, algorithm="sha256")
    directory = step_dir(tmp_path, 1)
    seen = {"w": torch.zeros(1000)}
    load_dcp(directory, seen)
    assert torch.equal(seen["w"], state["w"])
    path = directory / "__0_0.distcp"
    data = bytearray(path.read_bytes())
    data[data.find(torch.full((8,), 3.0).numpy().tobytes()) + 2] ^= 1
    path.write_bytes(data)
    seen["w"].zero_()
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp of rank 0: content changed"):
        load_dcp(directory, seen)
    assert not seen["w"].any()


def test_two_real_ranks_agree_after_kills_and_a_full_disk(tmp_path):
    """In a process of its own: this one has threads of gloo, which a fork would not take along."""
    params = {"world_size": 2, "straggler_timeout_s": 0, "num_kills": 4, "full_disk_ranks": [1], "seed": 1}
    (tmp_path / "params.json").write_text(json.dumps(params))
    subprocess.run([sys.executable, "-m", "labkit.workers.checkpoint_kills", "--run-dir", tmp_path], check=True,
                   cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=120, capture_output=True)
    rows = read_ranks(tmp_path)
    found = kill_results(rows)
    assert found["wrong"] == [] and found["num_points"] == 20 and found["files_as_expected"]
    assert {kind: own["tries"] for kind, own in found["by_fault"].items()} == {"kill": 4, "disk_full": 1, "none": 1}
    assert not list(tmp_path.glob("checkpoints-*"))


def test_all_kills_are_planned_and_the_commit_point_is_never_left_out():
    counted = {"points": [[["create", "main.pt"]] * 15, [["create", "rank00001.pt"]] * 5]}
    params = {"world_size": 2, "straggler_timeout_s": 0, "num_kills": -1, "full_disk_ranks": [], "seed": 0}
    planned = list(checkpoint_kills.plan(params, counted))
    assert len(planned) == 21 and planned[-1] == {"kind": "none"}
    few = list(checkpoint_kills.plan({**params, "num_kills": 2}, counted))
    assert [(fault.get("rank"), fault.get("point")) for fault in few] == [(0, 13), (0, 14), (None, None)]


def test_every_kind_of_the_drill_is_noticed(tmp_path):
    for number, kind in enumerate(checkpoint_drill.KINDS):
        found = checkpoint_drill.run_fault(number, kind, tmp_path / str(number), seed=3)
        assert found["is_detected"] and found["is_recovered"] and found["false_alarms"] == 0, found


def test_the_drills_points_are_those_of_its_writer(tmp_path):
    job = checkpoint_drill.DrillJob(tmp_path, random.Random(1))
    points = []
    job.save(1, at=lambda what, name: points.append((what, name)))
    assert len(points) == job.num_points and points[-1] == ("replaced", "manifest.json")
    assert verify(step_dir(tmp_path, 1)).is_good


def test_the_drill_leaves_its_report_and_no_files(tmp_path, monkeypatch):
    (tmp_path / "params.json").write_text(json.dumps({"num_faults": 3, "seed": 0}))
    monkeypatch.setattr("sys.argv", ["drill", "--run-dir", str(tmp_path)])
    checkpoint_drill.main()
    rows = [json.loads(line) for line in (tmp_path / "rank0.jsonl").read_text().splitlines()]
    assert [row["kind"] for row in rows] == ["fault"] * 3 + ["disk"]
    assert sorted(os.listdir(tmp_path)) == ["params.json", "rank0.jsonl"]


def test_a_child_of_the_caller_is_not_the_drills(tmp_path, monkeypatch):
    (tmp_path / "params.json").write_text(json.dumps({"num_faults": 1, "seed": 0}))
    monkeypatch.setattr("sys.argv", ["drill", "--run-dir", str(tmp_path)])
    started = [subprocess.Popen(["sleep", "30"])]
    try:
        checkpoint_drill.main()
        monkeypatch.setattr(checkpoint_drill, "full_tmpfs", lambda mount: started.append(subprocess.Popen(["true"])))
        with pytest.raises(SystemExit):
            checkpoint_drill.main()
    finally:
        for process in started:
            process.terminate()
            process.wait()
