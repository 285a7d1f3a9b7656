"""What every lab does around its measurement, tested on a lab that measures nothing."""

import json
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from labkit import conduct as glue
from labkit.launch.process import LaunchError
from labkit.presets import UsageError
from labkit.records import Oracle, RecordError, load_record


@dataclass(frozen=True)
class Params:
    sizes: tuple[int, ...] = (1, 2)
    seed: int = 0


GOOD = Oracle(name="sum", passed=True, expected=3, seen=3)
BAD = Oracle(name="product", passed=False, expected=2, seen=3, detail="2 items")


@pytest.fixture
def lab(monkeypatch, tmp_path):
    """A lab of one function: what it is to fill the outcome with, and what to raise after that."""
    monkeypatch.setenv("LABKIT_RUNS_DIR", str(tmp_path))

    def run(*oracles, raises=None, run_id="one", params=Params()):
        def measure(run_dir, predicted, outcome):
            assert json.loads((run_dir / "prediction.json").read_text())["values"] == predicted == {"sum": 3}
            (run_dir / "p0").mkdir()
            (run_dir / "p0" / "rank0.jsonl").write_text("{}\n")
            outcome.results["sum"], outcome.argv = 3, [["python", "-m", "labkit.workers.x"]]
            outcome.oracles += oracles
            if raises:
                raise raises
        return glue.conduct("toy", params, preset="smoke", run_id=run_id, predict=lambda: {"sum": 3}, measure=measure)
    return run


def test_a_good_run(lab, tmp_path):
    record = lab(GOOD)
    assert record.status == "ok" and record.failure is None and record.params == {"sizes": [1, 2], "seed": 0}
    assert [entry["path"] for entry in record.artifacts] == ["p0/rank0.jsonl", "params.json", "prediction.json"]
    assert record == load_record(tmp_path / "toy" / "one")
    assert list(glue.oracle_table(record)["name"]) == ["sum"]


@pytest.mark.parametrize(("oracles", "raises", "message"), [
    ((GOOD, BAD), None, "product: expected 2, seen 3 \\(2 items\\)"),
    ((), None, "no oracle"),
    ((GOOD,), ValueError("rank1.jsonl line 1"), "ValueError: rank1.jsonl line 1"),
    ((GOOD,), KeyError("rank"), "KeyError"),
], ids=["oracle", "nothing checked", "unreadable", "lookup"])
def test_a_bad_run_is_kept_as_failed_with_what_it_has(lab, oracles, raises, message):
    record = lab(*oracles, raises=raises)
    assert record.status == "failed" and record.results == {"sum": 3} and record.argv
    with pytest.raises(RecordError, match=message):
        glue.oracle_table(record)


def test_a_failed_launch_names_the_rank(lab, tmp_path):
    record = lab(raises=LaunchError("x: rank 1 failed (exit code 1): boom", log_path=tmp_path / "log.txt", rank=1))
    assert record.status == "failed" and record.failure["rank"] == 1


def test_other_errors_are_not_swallowed(lab):
    with pytest.raises(ZeroDivisionError):
        lab(raises=ZeroDivisionError())


def test_a_run_is_never_overwritten(lab):
    lab(GOOD)
    with pytest.raises(RecordError, match="never overwritten"):
        lab(GOOD)


def test_replay(lab):
    lab(GOOD, run_id="0-old")
    lab(BAD, run_id="b-failed")
    record = lab(GOOD, run_id="a-good")
    assert glue.load_run("toy", "") == record == glue.load_run("toy", "a-good", expect=Params())
    with pytest.raises(RecordError, match="seed=0, expected 1"):
        glue.load_run("toy", "a-good", expect=Params(seed=1))
    with pytest.raises(RecordError, match="no such run of toy"):
        glue.load_run("toy", "never")


def test_newest_records_are_the_good_committed_ones_of_each_preset(lab, monkeypatch, tmp_path):
    for run_id, oracle in (("1", GOOD), ("2", GOOD), ("3", BAD)):
        lab(oracle, run_id=run_id)
    assert glue.newest_records("toy") == []
    monkeypatch.setattr(glue, "RECORDS", tmp_path)
    assert [record.run_id for record in glue.newest_records("toy")] == ["2"]


@dataclass(frozen=True)
class OnGpu:
    device: str = "cuda"


def host(monkeypatch, *names):
    gpus = tuple(SimpleNamespace(name=name) for name in names)
    monkeypatch.setattr(glue.machine, "detect", lambda: SimpleNamespace(gpus=gpus, num_gpus=len(gpus), tag="t"))


def test_a_gpu_that_is_not_there_is_a_usage_error_and_leaves_no_run(monkeypatch, lab, tmp_path):
    host(monkeypatch)
    with pytest.raises(UsageError, match="toy: device='cuda', but this machine has no GPU"):
        lab(GOOD, params=OnGpu())
    assert not (tmp_path / "toy").exists()


def test_own_profile_is_that_of_a_known_gpu(monkeypatch):
    host(monkeypatch, "NVIDIA H200", "NVIDIA H200")
    assert glue.own_profile("cuda").name == "h200" and glue.own_profile("cpu") is None
    host(monkeypatch, "Unheard Of 9000")
    assert glue.own_profile("cuda") is None
