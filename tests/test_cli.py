"""The command line as a stranger meets it: stdout is data, stderr is one line, exit 0 / 1 / 2."""

import json
import sys

import pytest

from labkit import cli
from labkit.records import RunRecord, open_run_dir, publish


@pytest.fixture
def labkit(capsys, monkeypatch, tmp_path):
    """The CLI in process, as a function of its arguments; gives exit code, stdout and stderr."""
    monkeypatch.setenv("LABKIT_RUNS_DIR", str(tmp_path / "runs"))

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["labkit", *arguments])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        streams = capsys.readouterr()
        code = stopped.value.code
        return (0 if code is None else code), streams.out, streams.err

    return call


@pytest.fixture
def make_record(tmp_path):
    def make(run_id, **changes):
        run_dir = open_run_dir("ddp_buckets", run_id, params={"world_size": 2}, root=tmp_path / "runs")
        fields = dict(
            experiment="ddp_buckets", run_id=run_id, preset="cpu", status="ok", created_utc="2026-01-01T00:00:00Z",
            finished_utc="2026-01-01T00:00:09Z", params={"world_size": 2}, results={"bucket_count": {"1 MiB": 50}},
        )
        publish(RunRecord(**(fields | changes)), run_dir)
        return run_dir

    return make


@pytest.mark.parametrize(
    ("arguments", "close"),
    [
        (("dcotor",), "doctor"),
        (("runs", "lst"), "list"),
        (("run", "ddp_bucket"), "ddp_buckets"),
        (("run", "ddp_buckets", "--preset", "smokey"), "smoke"),
        (("run", "ddp_buckets", "--preset", "smoke", "-p", "wrld_size=2"), "world_size"),
        (("batch", "triton_rmsnrm"), "triton_rmsnorm"),
        (("batch", "--preset", "gpu3"), "gpu"),
        (("analyze", "torch_trce", "x.json"), "torch_trace"),
        (("calc", "rooflin"), "roofline"),
        (("calc", "roofline", "ridge_flop_per_bite"), "ridge_flop_per_byte"),
        (("calc", "roofline", "ridge_flop_per_byte", "peak_flops_per_s=1"), "peak_flop_per_s"),
        (("claims", "show", "ddp-bucket-cuont"), "ddp-bucket-count"),
    ],
)
def test_a_misspelt_name_is_refused_with_the_close_one(labkit, arguments, close):
    code, out, err = labkit(*arguments)
    assert code == 2 and out == ""
    assert "did you mean" in err and close in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("run",), ("run", "ddp_buckets", "-p", "world_size"), ("run", "ddp_buckets", "-p", "world_size=[1"),
        ("run", "ddp_buckets", "--preset", "smoke", "-p", "world_size=-3"), ("runs", "show", "nope"), ("--bogus",),
        ("calc", "roofline", "ridge_flop_per_byte"),
        ("calc", "roofline", "ridge_flop_per_byte", "peak_flop_per_s=-1", "bytes_per_s=2"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(labkit, arguments):
    code, out, err = labkit(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("labkit: ") and len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("arguments", [(), ("runs",), ("claims",)])
def test_no_command_shows_help_and_exits_2(labkit, arguments):
    code, out, err = labkit(*arguments)
    assert code == 2 and "Commands" in err and out == ""


def test_help_exits_0(labkit):
    code, out, _ = labkit("--help")
    assert code == 0 and "doctor" in out


def test_unreadable_input_is_one_line_and_exit_1(labkit, tmp_path):
    page = tmp_path / "trace.json"
    page.write_text("<html>502 Bad Gateway</html>")
    for path in (page, tmp_path / "absent.json", tmp_path):
        code, out, err = labkit("analyze", "torch_trace", str(path), "--json")
        assert (code, out) == (1, ""), err
        assert err.startswith("labkit: ") and len(err.strip().splitlines()) == 1


def test_runs_list_show_and_check(labkit, make_record, tmp_path):
    run_dir = make_record("20260101T000000Z_cpu-2c_00000000")
    open_run_dir("ddp_buckets", "20260102T000000Z_cpu-2c_00000000", params={}, root=tmp_path / "runs")
    code, out, _ = labkit("runs", "list", "ddp_buckets", "--json")
    local = {r["run_id"]: r["status"] for r in json.loads(out)}
    assert code == 0
    assert local["20260101T000000Z_cpu-2c_00000000"] == "ok"
    assert local["20260102T000000Z_cpu-2c_00000000"] == "incomplete"
    code, out, _ = labkit("runs", "show", run_dir.name, "--json")
    assert code == 0 and json.loads(out)["results"]["bucket_count"] == {"1 MiB": 50}
    assert labkit("runs", "check", run_dir.name)[0] == 0
    text = (run_dir / "record.json").read_text()
    (run_dir / "record.json").write_text(text.replace("50", "51"))
    code, out, _ = labkit("runs", "check", run_dir.name)
    assert code == 1 and "ok" not in out.split(":", 1)[1]


def test_runs_compare_shows_both_sides(labkit, make_record):
    first = make_record("20260101T000000Z_cpu-2c_00000000")
    second = make_record("20260103T000000Z_cpu-2c_00000001", results={"bucket_count": {"1 MiB": 51}})
    code, out, _ = labkit("runs", "compare", first.name, second.name)
    assert code == 0 and "50" in out and "51" in out


def test_calc_calls_the_formula(labkit):
    code, out, _ = labkit("calc", "roofline", "ridge_flop_per_byte", "peak_flop_per_s=8e12", "bytes_per_s=2e12")
    assert (code, float(out)) == (0, 4.0)
    code, out, _ = labkit("calc", "roofline")
    assert code == 0 and "ridge_flop_per_byte(" in out


def test_doctor_and_list_are_json_on_request(labkit):
    code, out, _ = labkit("doctor", "--json")
    assert code == 0 and json.loads(out)
    code, out, _ = labkit("list", "--json")
    assert code == 0 and {row["slug"] for row in json.loads(out)} >= {"ddp_buckets", "triton_rmsnorm"}


def test_claims_verify_rows_have_exactly_the_documented_keys(labkit):
    code, out, _ = labkit("claims", "verify", "--lab", "ddp_buckets", "--json")
    rows = json.loads(out)
    keys = {"id", "kind", "role", "status", "expected", "seen", "tolerance", "record", "reason"}
    assert code == 0 and rows and all(set(row) == keys for row in rows)
    assert {row["status"] for row in rows} <= {"verified", "reproduced_elsewhere", "differs", "not_run"}


def test_an_answer_for_people_has_no_anchors(tmp_path, labkit):
    (tmp_path / "result.json").write_text('{"completed": 2, "duration": 1.0}')
    code, out, _ = labkit("analyze", "vllm_bench_results", str(tmp_path / "result.json"))
    assert code == 0 and out.count("completed: 2") == 2 and "&id" not in out
