"""The launcher of Nsight Compute with stand-ins in its place: exit code 0 proves nothing; nothing is left running."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from labkit.analyze.ncu_csv import parse_ncu_csv
from labkit.launch import ncu
from labkit.launch.ncu_stand_ins import RIGHT, TEXTS, run_stand_ins, write_stand_in
from labkit.launch.process import LaunchError

METRICS = ["dram__bytes_read.sum", "lts__t_sector_hit_rate.pct"]


@pytest.fixture
def place(tmp_path):
    """An existing run directory, and script(text) -> path of an executable `ncu` with that body."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "params.json").write_text("{}")

    def script(body):
        path = tmp_path / "ncu"
        path.write_text("#!/bin/sh\n" + body)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return run_dir, script


def count(run_dir, tool, **how):
    return ncu.count_worker("host_counters", run_dir=run_dir, metrics=METRICS, read=parse_ncu_csv,
                            **{"timeout_s": 30, **how}, ncu=tool)


def test_every_stand_in_is_refused_with_its_own_line_and_the_right_one_accepted(tmp_path):
    lines = set()
    for name in TEXTS:
        run_dir = tmp_path / name.replace(" ", "_")
        run_dir.mkdir()
        (run_dir / "params.json").write_text("{}")
        tool = str(write_stand_in(run_dir, name))
        if name == RIGHT:
            seen, missing = count(run_dir, tool)
            assert seen.exitcode == 0 and missing == [] and "134,234,112" in seen.text
            continue
        with pytest.raises(LaunchError, match=r"^ncu: ") as caught:
            count(run_dir, tool)
        lines.add(str(caught.value))
        assert "\n" not in str(caught.value)
    assert len(lines) == len(TEXTS) - 1
    (permission,) = [line for line in lines if "ERR_NVGPUCTRPERM" in line]
    assert "NVreg_RestrictProfilingToAdminUsers=0" in permission and "CAP_SYS_ADMIN" in permission


def test_texts_of_the_stand_ins_are_read_as_their_names_say(tmp_path):
    texts = run_stand_ins(tmp_path, worker="host_counters")
    errors = {name: parse_ncu_csv(text)["error"] for name, text in texts.items()}
    assert errors[RIGHT] is None and "permission" in errors["no permission"]
    assert errors["unknown metric"] == "unknown metric: dram__bytes_red" and "driver" in errors["driver mismatch"]


def test_command_line_leaves_clocks_alone_and_names_every_metric(tmp_path):
    argv = ncu.ncu_argv(["python", "x.py"], ncu="ncu", metrics=METRICS, output=tmp_path / "o", cache_control="none",
                        kernel_name="regex:rms")
    assert argv[argv.index("--clock-control") + 1] == "none" and argv[argv.index("--cache-control") + 1] == "none"
    assert argv[argv.index("--metrics") + 1] == ",".join(METRICS) and argv[-2:] == ["python", "x.py"]
    assert argv[argv.index("--print-units") + 1] == "base" and argv[argv.index("--kernel-name") + 1] == "regex:rms"
    assert argv[argv.index("--profile-from-start") + 1] == "off" and argv[argv.index("--page") + 1] == "raw"
    for bad in ({"metrics": []}, {"metrics": METRICS, "cache_control": "some"}):
        with pytest.raises(ValueError, match=r"metrics|cache_control"):
            ncu.ncu_argv(["x"], ncu="ncu", output=tmp_path / "o", **bad)


def test_the_worker_is_what_the_tool_is_asked_to_run(place):
    run_dir, script = place
    tool = script('echo "$@" > "$(dirname "$0")/args"; cat <<E\n' + TEXTS[RIGHT] + "E\n")
    seen, _ = count(run_dir, tool, env={"SOME": "thing"})
    asked = (Path(tool).parent / "args").read_text()
    assert f"-m labkit.workers.host_counters --run-dir {run_dir}" in asked and seen.argv[0] == tool


def test_a_metric_that_the_tool_does_not_know_is_left_out_and_named(place):
    run_dir, script = place
    tool = script('case "$*" in *lts__t*) echo "==ERROR== Failed to find metric regex:^lts__t_sector_hit_rate$";;\n'
                  f"*) cat <<E\n{TEXTS[RIGHT]}E\n;; esac\n")
    seen, missing = count(run_dir, tool)
    assert missing == ["lts__t_sector_hit_rate.pct"] and "lts__" not in " ".join(seen.argv)


def test_a_tool_that_knows_none_of_the_metrics_is_not_asked_for_ever(place):
    run_dir, script = place
    tool = script('echo x >> "$(dirname "$0")/tries"; echo "==ERROR== Failed to find metric dram__bytes_read.sum"\n'
                  'echo "==ERROR== Failed to find metric lts__t_sector_hit_rate.pct"\n')
    with pytest.raises(LaunchError, match=r"unknown metric: dram__bytes_read.sum, lts__t_sector_hit_rate.pct"):
        count(run_dir, tool)
    assert len((Path(tool).parent / "tries").read_text().split()) == 1


def test_a_program_that_fails_is_named_by_its_last_line(place):
    run_dir, script = place
    tool = script('echo "RuntimeError: out of memory"\nfor a; do [ "$p" = --log-file ] && o=$a; p=$a; done\n'
                  'echo "==ERROR== The application returned an error code (1)." > "$o"; exit 1\n')
    with pytest.raises(LaunchError, match="the profiled program failed; the program's last line: RuntimeError: out"):
        count(run_dir, tool)


def test_a_silent_failure_and_nonsense_have_a_line_too(place):
    run_dir, script = place
    with pytest.raises(LaunchError, match="exit code 7 and said nothing"):
        count(run_dir, script("exit 7\n"))
    with pytest.raises(LaunchError, match="cannot be read"):
        count(run_dir, script("echo hello\n"))


def test_no_tool_is_one_clear_line(place, monkeypatch):
    run_dir, _ = place
    monkeypatch.setattr(ncu, "find_ncu", lambda: None)
    for call in (lambda: count(run_dir, None), lambda: ncu.query_metrics(run_dir=run_dir)):
        with pytest.raises(LaunchError, match="ncu is not installed: expected NVIDIA Nsight Compute"):
            call()
    with pytest.raises(LaunchError, match="cannot start"):
        count(run_dir, "/nowhere/ncu")


def test_a_tool_that_hangs_is_stopped_with_its_children(place):
    run_dir, script = place
    tool = script('sleep 300 & echo $! > "$(dirname "$0")/child"; wait\n')
    began = time.monotonic()
    with pytest.raises(LaunchError, match="timed out after 1 s") as caught:
        count(run_dir, tool, timeout_s=1)
    assert caught.value.timed_out and time.monotonic() - began < 25
    child = int((Path(tool).parent / "child").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_query_lists_names_and_tells_a_refusal(place):
    run_dir, script = place

    def ask(body):
        offered, seen = ncu.query_metrics(run_dir=run_dir, ncu=script(body))
        return offered, ncu.query_answer(offered, seen, read=parse_ncu_csv)

    offered, answer = ask(
        "cat <<E\nDevice NVIDIA H200 (GH100)\n---- ----\nMetric Name  Type  Unit  Description\n"
        "dram__bytes_read   Counter  byte  # of bytes read\nsm__warps_active  Counter  warp  text\nE\n")
    assert offered == {"dram__bytes_read", "sm__warps_active"}
    assert answer == {"exit_code": 0, "num_metrics": 2, "error": None, "remedy": None}
    offered, answer = ask('echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"; exit 0\n')
    assert offered == set() and "ERR_NVGPUCTRPERM" in answer["error"] and "CAP_SYS_ADMIN" in answer["remedy"]
    assert answer["exit_code"] == 0 and ask("exit 0\n")[1]["error"] == "it listed no metrics"


def test_only_what_is_offered_is_asked_for():
    free = ["launch__registers_per_thread", "sm__maximum_warps_per_active_cycle_pct"]
    wanted = ["dram__bytes_read.sum", "sm__new.sum", *free]
    known, missing = ncu.supported(wanted, {"dram__bytes_read"})
    assert missing == ["sm__new.sum"] and known == [name for name in wanted if name != "sm__new.sum"]
    assert ncu.supported(wanted, set()) == (wanted, [])


def test_find_ncu_looks_where_cuda_is(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "ncu"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert ncu.find_ncu() == str(tool)
