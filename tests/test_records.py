"""Records: what goes in comes out, and no byte can change unseen."""

import errno
import hashlib
import json
import math
import os
import re
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import labkit.records.files
from labkit.paths import ROOT
from labkit.records import (
    RECORD_NAME,
    Oracle,
    RecordError,
    RunRecord,
    artifact_problems,
    check_run,
    compare_records,
    describe_artifacts,
    list_runs,
    load_record,
    new_run_id,
    open_run_dir,
    params_hash,
    publish,
    quantity,
    run_status,
    trim_record,
)
from labkit.records.rules import KINDS, ORACLE_FIELDS, path_problem
from labkit.records.schema import parse_record

TIMES = {"created_utc": "2026-01-31T12:00:00.000Z", "finished_utc": "2026-01-31T12:00:09.500Z"}
CALM = dict(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
"""No time limit for one example: the machine is shared. A fixture shared by the examples is put back by the test."""

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12)
OBJECT = st.dictionaries(st.text(), JSON, max_size=5)


def make_record(**changes) -> RunRecord:
    base = dict(experiment="exp", run_id="r1", preset="cpu", status="ok", params={"num_steps": 2}, **TIMES)
    return RunRecord(**{**base, **changes})


def seal(raw: dict) -> str:
    """record.json of any object, right hash or not a record at all: written without the code under test."""
    text = json.dumps({**raw, "record_sha256": "@"}, indent=1, sort_keys=True) + "\n"
    blank = text.replace(' "record_sha256": "@",', ' "record_sha256": "",')
    return text.replace('"@"', f'"{hashlib.sha256(blank.encode()).hexdigest()}"')


@pytest.fixture
def run_dir(tmp_path):
    """A published run with two artifacts."""
    folder = open_run_dir("exp", "r1", params={"num_steps": 2}, root=tmp_path / "runs")
    (folder / "p0").mkdir()
    (folder / "p0" / "rank0.jsonl").write_text('{"kind": "step", "time_s": 0.25}\n')
    (folder / "log.txt").write_text("step 1 done\n")
    record = make_record(
        artifacts=describe_artifacts(folder, ["p0/rank0.jsonl", "log.txt"]),
        results={"step_time": quantity([3.0, 1.0, 2.0], "ms")},
        samples={"step": {"unit": "ms", "values": [[1.0, 2.0]]}},
        oracles=[Oracle(name="sum", passed=True, expected=3, seen=3)])
    publish(record, folder)
    return folder


# --- round trip and change detection ---------------------------------------------------------------------------------


@settings(max_examples=50, **CALM)
@given(params=OBJECT, results=OBJECT, prediction=OBJECT, note=st.text())
def test_any_json_value_comes_back_as_it_went_in(tmp_path_factory, params, results, prediction, note):
    folder = open_run_dir("exp", "r1", params=params, root=tmp_path_factory.mktemp("runs"))
    assert json.loads((folder / "params.json").read_text(encoding="utf-8")) == params
    record = make_record(params=params, prediction=prediction, results={"x": [results]}, notes=[note])
    publish(record, folder)
    assert load_record(folder) == record
    assert check_run(folder) == []


def test_the_record_hash_is_the_sha256_of_the_file_without_it(run_dir):
    text = (run_dir / RECORD_NAME).read_bytes()
    (own,) = re.findall(rb'"record_sha256": "([0-9a-f]{64})"', text)
    assert hashlib.sha256(text.replace(own, b"")).hexdigest() == own.decode()


def test_one_changed_byte_anywhere_in_the_record_is_found(run_dir):
    path, good = run_dir / RECORD_NAME, (run_dir / RECORD_NAME).read_bytes()
    for position in range(len(good)):
        path.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1:])
        assert check_run(run_dir), f"byte {position}: {good[position - 9:position + 9]!r}"


def test_a_record_cut_at_any_length_is_refused(run_dir):
    path, good = run_dir / RECORD_NAME, (run_dir / RECORD_NAME).read_bytes()
    for length in range(len(good)):
        path.write_bytes(good[:length])
        with pytest.raises(RecordError, match=r"record\.json"):
            load_record(run_dir)


@settings(max_examples=100, **CALM)
@given(data=st.data(), junk=st.binary(min_size=1, max_size=3))
@example(data=None, junk=b"\r")
def test_bytes_put_into_or_taken_from_the_record_are_found(run_dir, data, junk):
    path = run_dir / RECORD_NAME
    good = path.read_bytes()
    try:
        position = data.draw(st.integers(0, len(good))) if data else good.index(b"\n")
        path.write_bytes(good[:position] + junk + good[position:])
        assert check_run(run_dir)
        path.write_bytes(good[:position] + good[position + len(junk):])
        assert check_run(run_dir) or position >= len(good)
    finally:
        path.write_bytes(good)


@settings(max_examples=50, **CALM)
@given(content=st.binary(min_size=1, max_size=200), data=st.data())
def test_one_changed_byte_of_an_artifact_is_found(tmp_path_factory, content, data):
    folder = tmp_path_factory.mktemp("exp") / "r1"
    folder.mkdir()
    (folder / "a.bin").write_bytes(content)
    record = make_record(experiment=folder.parent.name, artifacts=describe_artifacts(folder, ["a.bin"]))
    publish(record, folder)
    assert check_run(folder) == []
    position = data.draw(st.integers(0, len(content) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != content[position]))
    (folder / "a.bin").write_bytes(content[:position] + bytes([other]) + content[position + 1:])
    assert check_run(folder) == ["a.bin: content changed (SHA-256 differs)"]


def test_check_names_a_missing_a_shorter_and_a_moved_thing(run_dir, tmp_path):
    (run_dir / "log.txt").write_text("step")
    (run_dir / "p0" / "rank0.jsonl").unlink()
    assert check_run(run_dir) == ["log.txt: 4 bytes, recorded 12", "p0/rank0.jsonl: missing"]
    moved = run_dir.rename(tmp_path / "elsewhere")
    assert f"the record is of exp/r1, the folder is {tmp_path.name}/elsewhere" in check_run(moved)


# --- what is refused -------------------------------------------------------------------------------------------------

BAD_FIELDS = [
    ("status", "fine", "status='fine': expected ok or failed"),
    ("status", None, "status: NoneType, expected str"),
    ("evidence", "guessed", "evidence='guessed'"),
    ("experiment", "../x", "experiment='../x'"),
    ("created_utc", "yesterday", "created_utc='yesterday'"),
    ("params", [1], "params: list, expected dict"),
    ("failure", "boom", "failure: str, expected dict or null"),
    ("argv", ["python"], "argv: expected a list of lists of strings"),
    ("notes", [1], r"notes\[0\]: expected text"),
    ("schema_version", 2, "schema_version 2, expected 1"),
    ("schema_version", True, "schema_version True, expected 1"),
    ("environment", {"hardware": ["h200"]}, "environment.hardware"),
    ("colour", "red", "unknown field 'colour'"),
    ("oracles", [{"name": "a"}], r"oracles\[0\]: expected name, passed"),
    ("oracles", [{"name": "a", "passed": 1, "expected": 0, "seen": 0}], r"oracles\[0\]"),
    ("oracles", [{"name": "a", "passed": False, "expected": 0, "seen": 1}], "status 'ok', but the oracle 'a' failed"),
    ("artifacts", [{"path": "../up", "bytes": 1, "sha256": "0" * 64}], r"artifacts\[0\].path='../up'"),
    ("artifacts", [{"path": "/etc/passwd", "bytes": 1, "sha256": "0" * 64}], "without '..'"),
    ("artifacts", [{"path": "a", "bytes": -1, "sha256": "0" * 64}], r"artifacts\[0\].bytes=-1"),
    ("artifacts", [{"path": "a", "bytes": 1, "sha256": "xyz"}], r"artifacts\[0\].sha256"),
    ("artifacts", [{"path": "a", "bytes": 1, "sha256": "0" * 64, "kept": 0}], r"artifacts\[0\].kept"),
    ("artifacts", ["a"], r"artifacts\[0\]: expected path, bytes and sha256"),
    ("samples", {"step": [1, 2]}, "samples.step: expected an object with unit"),
    ("results", {"t": {"value": 5, "p10": 1, "p90": 2, "unit": "s", "n": 3}}, "results.t: p10 1, value 5, p90 2"),
    ("results", {"a": {"t": {"value": 1, "p10": 1, "p90": 2, "n": 3}}}, "results.a.t: a quantity needs its unit and n"),
    ("results", {"t": {"value": "1", "p10": 1, "p90": 2, "unit": "s", "n": 3}}, "must be numbers"),
    ("results", {"x": float("nan")}, "NaN is not a number"),
    ("results", {"x": [float("-inf")]}, "-Infinity is not a number"),
]


@pytest.mark.parametrize("name, value, message", BAD_FIELDS, ids=lambda v: str(v)[:30])
def test_a_sealed_file_that_breaks_a_rule_is_refused_by_name(tmp_path, name, value, message):
    raw = asdict(make_record())
    (tmp_path / RECORD_NAME).write_text(seal(raw))
    load_record(tmp_path)  # the sealing itself is right
    (tmp_path / RECORD_NAME).write_text(seal({**raw, name: value}))
    with pytest.raises(RecordError, match=message) as error:
        load_record(tmp_path)
    assert "\n" not in str(error.value) and RECORD_NAME in str(error.value)


@pytest.mark.parametrize("name", [f.name for f in fields(RunRecord) if f.name != "schema_version"])
def test_a_missing_field_is_named(name):
    raw = asdict(make_record())
    del raw[name]
    with pytest.raises(RecordError, match=f"^{name} is missing"):
        parse_record(seal(raw))


@pytest.mark.parametrize("text", ["", "null", "[]", "{", '"x"', "[" * 100_000, "{}", "\ufeff{}", "NaN"])
def test_what_is_no_record_gives_one_line(tmp_path, text):
    (tmp_path / RECORD_NAME).write_text(text)
    with pytest.raises(RecordError, match=r"record\.json: (not a record|schema_version|nested)"):
        load_record(tmp_path)


def test_a_record_without_its_hash_is_refused():
    with pytest.raises(RecordError, match="record_sha256 is missing"):
        parse_record(json.dumps(asdict(make_record()), indent=1, sort_keys=True))


NOT_JSON = [float("nan"), float("inf"), object(), {1: 2}, {"a": {None: 1}}, "\ud800", Path("x"), b"x", {1, 2}]


@pytest.mark.parametrize("field", ["params", "results", "prediction", "environment", "failure"])
@pytest.mark.parametrize("value", NOT_JSON, ids=repr)
def test_publish_refuses_what_json_cannot_hold_and_names_it(tmp_path, field, value):
    status = "failed" if field == "failure" else "ok"
    with pytest.raises(RecordError, match=rf"not published: (key of )?{field}\.x") as error:
        publish(make_record(**{"status": status, field: {"x": value}}), tmp_path)
    assert "\n" not in str(error.value)
    assert os.listdir(tmp_path) == []


def test_nan_in_an_oracle_or_a_sample_is_refused(tmp_path):
    oracle = Oracle(name="a", passed=True, expected=1.0, seen=math.nan)
    with pytest.raises(RecordError, match=r"oracles\[0\]\.seen=nan"):
        publish(make_record(oracles=[oracle]), tmp_path)
    with pytest.raises(RecordError, match=r"samples\.t\.values\[0\]\[1\]=nan"):
        publish(make_record(samples={"t": {"unit": "s", "values": [[1.0, math.nan]]}}), tmp_path)


def test_status_and_oracles_must_agree(tmp_path):
    failed = Oracle(name="sum", passed=False, expected=1, seen=2)
    with pytest.raises(RecordError, match="status 'ok', but the oracle 'sum' failed"):
        publish(make_record(oracles=[failed]), tmp_path)
    with pytest.raises(RecordError, match="neither a failure nor a failed oracle"):
        publish(make_record(status="failed"), tmp_path)
    publish(make_record(status="failed", oracles=[failed]), tmp_path)
    assert run_status(tmp_path) == "failed"


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "", ".", "a\\b", "a//b", "./a", RECORD_NAME, 3])
def test_artifact_names_outside_the_run_are_refused(tmp_path, name):
    assert path_problem(name)
    with pytest.raises(RecordError, match="artifact"):
        describe_artifacts(tmp_path, [name])


def test_a_link_out_of_the_run_is_refused(tmp_path):
    (tmp_path / "secret").write_text("s")
    run = tmp_path / "run"
    run.mkdir()
    (run / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(RecordError, match="leads out of the run directory"):
        describe_artifacts(run, ["link"])
    entry = {"path": "link", "bytes": 1, "sha256": hashlib.sha256(b"s").hexdigest()}
    assert "leads out" in artifact_problems(make_record(artifacts=[entry]), run)[0]


def test_a_missing_artifact_is_one_line(tmp_path):
    with pytest.raises(RecordError, match="artifact gone: no such file"):
        describe_artifacts(tmp_path, ["gone"])


# --- publishing ------------------------------------------------------------------------------------------------------


def test_an_artifact_changed_before_publishing_stops_it(tmp_path):
    (tmp_path / "a").write_text("1")
    record = make_record(artifacts=describe_artifacts(tmp_path, ["a"]))
    (tmp_path / "a").write_text("2")
    with pytest.raises(RecordError, match="not published: a: content changed"):
        publish(record, tmp_path)
    assert run_status(tmp_path) == "incomplete"


def test_nothing_is_overwritten(run_dir):
    before = (run_dir / RECORD_NAME).read_bytes()
    with pytest.raises(RecordError, match="never changed"):
        publish(make_record(), run_dir)
    assert (run_dir / RECORD_NAME).read_bytes() == before
    with pytest.raises(RecordError, match="a run is never overwritten"):
        open_run_dir("exp", "r1", params={}, root=run_dir.parents[1])


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_leaves_the_run_incomplete_with_one_line(tmp_path, monkeypatch, step):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(labkit.records.files.os, step, full)
    with pytest.raises(RecordError, match=r"not published: cannot write record\.json: No space left") as error:
        publish(make_record(), tmp_path)
    assert "\n" not in str(error.value)
    assert os.listdir(tmp_path) == [] and run_status(tmp_path) == "incomplete"
    with pytest.raises(RecordError, match=r"cannot write the run directory.*No space left"):
        open_run_dir("exp", "r2", params={}, root=tmp_path)
    assert list_runs(roots=[tmp_path]) == []


@pytest.mark.parametrize("run_id", ["", ".hidden", "a/b", "..", "a b", "ä"])
def test_bad_run_ids_are_refused(tmp_path, run_id):
    with pytest.raises(RecordError, match="run_id="):
        open_run_dir("exp", run_id, params={}, root=tmp_path)


def test_a_file_in_place_of_the_folder_is_one_line(tmp_path):
    (tmp_path / "exp").write_text("")
    with pytest.raises(RecordError, match="a file is in the way"):
        open_run_dir("exp", "r1", params={}, root=tmp_path)
    with pytest.raises(RecordError, match=r"params\.x=nan"):
        open_run_dir("exp2", "r1", params={"x": math.nan}, root=tmp_path)


def test_published_text_names_nothing_of_this_machine(tmp_path):
    argv = [[sys.executable, "-m", "torch.distributed.run", f"--log-dir={tmp_path}/p0/x", str(ROOT / "data/a.json")]]
    failure = {"message": f"FileNotFoundError: '{tmp_path}/p0/params.json' and /home/ann/x"}
    publish(make_record(status="failed", argv=argv, failure=failure, notes=[f"at {ROOT}."]), tmp_path)
    record = load_record(tmp_path)
    assert record.argv == [["python", "-m", "torch.distributed.run", "--log-dir=$RUN_DIR/p0/x", "data/a.json"]]
    assert record.failure == {"message": "FileNotFoundError: '$RUN_DIR/p0/params.json' and ~/x"}
    text = (tmp_path / RECORD_NAME).read_text()
    assert str(ROOT) not in text and str(tmp_path) not in text


# --- listing, comparing, trimming ------------------------------------------------------------------------------------


def test_states_of_a_run(run_dir, tmp_path):
    assert run_status(run_dir) == "ok" and check_run(run_dir) == []
    empty = open_run_dir("exp", "r0", params={}, root=run_dir.parents[1])
    assert run_status(empty) == "incomplete"
    assert check_run(empty) == ["incomplete, it has no record.json"]
    assert list_runs("exp", roots=[run_dir.parents[1]]) == [empty, run_dir]
    assert list_runs("other", roots=[run_dir.parents[1]]) == []
    (run_dir / RECORD_NAME).write_text("{}")
    assert run_status(run_dir) == "unreadable"


@settings(**CALM)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40))
def test_quantity_is_nearest_rank(values):
    found = quantity(values, "ms", num_processes=3)

    def nearest_rank(pct):  # the smallest sample with at least pct % of all samples at or below it
        return min(v for v in values if sum(w <= v for w in values) * 100 >= pct * len(values))

    assert (found["p10"], found["p90"]) == (nearest_rank(10), nearest_rank(90))
    below, above = (sum(v < found["value"] for v in values), sum(v > found["value"] for v in values))
    assert max(below, above) * 2 <= len(values)
    assert (found["n"], found["unit"], found["num_processes"]) == (len(values), "ms", 3)


def test_quantity_refuses_nothing_and_nan():
    with pytest.raises(ValueError, match="at least one"):
        quantity([], "ms")
    with pytest.raises(ValueError, match="finite"):
        quantity([1.0, math.nan], "ms")


def test_run_ids_are_stable_names():
    assert params_hash({"b": 1, "a": 2}) == params_hash({"a": 2, "b": 1}) != params_hash({"a": 2, "b": 2})
    assert params_hash({}) == hashlib.sha256(b"{}").hexdigest()[:8]
    assert re.fullmatch(r"\d{8}T\d{6}Z_h200-x2_44136fa3", new_run_id({}, hardware_tag="h200_x2"))


def test_compare_puts_differences_and_results_side_by_side():
    first = make_record(
        params={"n": 1, "same": 0}, environment={"hardware": {"tag": "cpu-2c"}},
        results={"t": quantity([2.0], "ms"), "count": {"1 MiB": 50}, "only_first": 1})
    second = replace(
        first, params={"n": 2, "same": 0}, environment={"hardware": {"tag": "h200-x2"}},
        results={"t": quantity([1.0], "ms"), "count": {"1 MiB": 50, "4 MiB": 37}, "u": quantity([1.0], "s")})
    rows = {(row["kind"], row["name"]): tuple(row[k] for k in ("unit", "first", "second", "ratio"))
            for row in compare_records(first, second)}
    assert rows == {
        ("param", "n"): (None, 1, 2, None), ("environment", "hardware"): (None, "cpu-2c", "h200-x2", None),
        ("result", "t"): ("ms", 2.0, 1.0, 0.5), ("result", "count.1 MiB"): (None, 50, 50, 1.0),
        ("result", "count.4 MiB"): (None, None, 37, None), ("result", "only_first"): (None, 1, None, None),
        ("result", "u"): ("s", None, 1.0, None)}
    (row,) = compare_records(replace(first, results={"t": quantity([2.0], "ms")}),
                             replace(first, results={"t": quantity([1.0], "us")}))
    assert row["unit"] == "ms / us" and row["ratio"] is None
    with pytest.raises(RecordError, match="cannot compare exp/r1 with other/r1"):
        compare_records(first, replace(second, experiment="other"))


@pytest.fixture
def big_run(tmp_path):
    folder = open_run_dir("exp", "r1", params={}, root=tmp_path / "runs")
    (folder / "p0").mkdir()
    (folder / "p0" / "rank0.jsonl").write_text("{}\n")
    (folder / "trace.json").write_bytes(b"x" * 1000)
    (folder / "log.txt").write_text(f"fine\nsaved to {ROOT}/runs\n")
    publish(make_record(artifacts=describe_artifacts(folder, ["p0/rank0.jsonl", "trace.json", "log.txt"])), folder)
    return folder


def test_trim_keeps_small_public_files_and_the_hashes_of_the_rest(big_run, tmp_path):
    committed = trim_record(big_run, tmp_path / "data", max_bytes=999)
    assert committed == tmp_path / "data" / "exp" / "r1"
    files = sorted(p.relative_to(committed).as_posix() for p in committed.rglob("*") if p.is_file())
    assert files == ["p0/rank0.jsonl", RECORD_NAME]
    assert check_run(committed) == []
    record, original = load_record(committed), load_record(big_run)
    assert {a["path"]: a["kept"] for a in record.artifacts} == {
        "log.txt": False, "p0/rank0.jsonl": True, "trace.json": False}
    assert [{k: v for k, v in a.items() if k != "kept"} for a in record.artifacts] == original.artifacts
    assert replace(record, artifacts=[]) == replace(original, artifacts=[])
    (committed / "trace.json").write_bytes(b"y" * 1000)  # a file put back must be the recorded one
    assert check_run(committed) == ["trace.json: content changed (SHA-256 differs)"]
    (committed / "trace.json").write_bytes(b"x" * 1000)
    assert check_run(committed) == []
    (committed / "p0" / "rank0.jsonl").unlink()
    assert check_run(committed) == ["p0/rank0.jsonl: missing"]


def test_trim_refuses_what_should_not_be_committed(big_run, tmp_path):
    dest = tmp_path / "data"
    for keep, message in ((["trace.json"], "1000 bytes, expected at most 999"), (["nope"], "keep='nope'"),
                          (["log.txt"], "line 2 holds a path")):
        with pytest.raises(RecordError, match=message):
            trim_record(big_run, dest, keep=keep, max_bytes=999)
    (big_run / "p0" / "rank0.jsonl").write_text("{}!")
    with pytest.raises(RecordError, match=r"rank0\.jsonl: content changed"):
        trim_record(big_run, dest)
    with pytest.raises(RecordError, match="incomplete"):
        trim_record(open_run_dir("exp", "r2", params={}, root=tmp_path / "runs"), dest)
    assert not dest.exists()


def test_trim_refuses_a_path_in_the_record_and_an_existing_copy(tmp_path):
    folder = open_run_dir("exp", "r1", params={}, root=tmp_path / "runs")
    publish(make_record(results={"where": f"{ROOT}/x"}), folder)
    with pytest.raises(RecordError, match=r"record\.json: line \d+ holds a path"):
        trim_record(folder, tmp_path / "data")
    other = open_run_dir("exp", "r2", params={}, root=tmp_path / "runs")
    publish(make_record(run_id="r2"), other)
    trim_record(other, tmp_path / "data")
    with pytest.raises(RecordError, match="exists"):
        trim_record(other, tmp_path / "data")
    assert os.listdir(tmp_path / "data" / "exp") == ["r2"]


# --- the documented schema -------------------------------------------------------------------------------------------


def test_the_rules_know_every_field():
    assert set(KINDS) == {f.name for f in fields(RunRecord)}
    assert set(ORACLE_FIELDS) == {f.name for f in fields(Oracle)}


def test_the_schema_page_names_every_field():
    page = (ROOT / "book" / "records.md").read_text(encoding="utf-8")
    for name in [*KINDS, "record_sha256", *ORACLE_FIELDS, "path", "bytes", "sha256", "kept"]:
        assert f"`{name}`" in page, name
