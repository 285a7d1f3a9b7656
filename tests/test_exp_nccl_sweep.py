"""The collective lab on real gloo ranks, with a played nccl-tests, and what the slice does when a run goes wrong."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from labkit import machine
from labkit.analyze.collective_files import Cell
from labkit.analyze.collective_tables import fit_frame, winner_frame
from labkit.claims import verify
from labkit.conduct import Outcome
from labkit.experiments import nccl_sweep as exp
from labkit.hardware import load_profile
from labkit.launch.process import LaunchError, LaunchResult
from labkit.presets import available_presets, build_params
from labkit.records import RecordError, check_run, load_record

TINY = dict(max_bytes=2**16, pair_sets=("0-1 2-3",), pair_bytes=2**16, num_warmup=1, num_samples=3)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """(record, run directory, progress lines) of one real run: two ranks, and four for the pairs."""
    root, lines = tmp_path_factory.mktemp("runs"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_RUNS_DIR", str(root))
        record = exp.run(exp.Params(**TINY), run_id="tiny", progress=lines.append)
        yield record, root / exp.SLUG / "tiny", lines


def test_two_ranks_pass_every_oracle(lab):
    record, _, _ = lab
    assert record.status == "ok", (record.failure, record.oracles)
    names = set(exp.check(record)["name"])
    assert len(names) == 5 and {"data equal the closed form, element by element, after timing",
                                "loopback carried at least the bytes that the collective must move"} <= names


def test_every_collective_was_measured_and_checked(lab):
    record, _, _ = lab
    results = record.results
    assert set(results["time_us"]) == {"auto", *exp.COLLECTIVES[1:]} and results["refused_collectives"] == {}
    assert results["wrong_elements"] == 0 and results["num_checked"] == 6 * 4 + 2 + 3
    assert list(exp.table(record)["size"])[:4] == ["1 KiB", "4 KiB", "16 KiB", "64 KiB"]
    assert len(exp.table(record)) == 24 and results["engine"] == "torch"
    for case, sizes in results["busbw_gb_per_s"].items():
        for label, found in sizes.items():
            share = found["value"] / results["algbw_gb_per_s"][case][label]
            half = case in ("all_gather", "reduce_scatter", "all_to_all")
            assert share == pytest.approx(0.5 if half else 1.0, rel=1e-5)


def test_pairs_ran_alone_and_together(lab):
    record, _, _ = lab
    results = record.results
    assert results["pair_procedure"] is True and results["pair_overlap"]["0-1 2-3"] >= 0.5
    assert set(results["pair_detail"]["0-1 2-3"]) == {"0-1", "2-3"} and results["pair_together"]["0-1 2-3"]["value"] > 0
    assert not {"topo_matrix_limit", "debug_env", "nccl_version"} & set(results)  # a CPU has no answer to these
    assert set(results["directions"]) == {"forward alone", "backward alone", "both, each way"}


def test_samples_prediction_and_files_are_kept(lab):
    record, run_dir, lines = lab
    assert check_run(run_dir) == [] and load_record(run_dir) == record
    (process,) = record.samples["time_us.auto.all_reduce.64 KiB"]["values"]
    assert len(process) == 3 and record.results["time_us"]["auto"]["64 KiB"]["n"] == 3
    predicted = record.prediction["values"]
    assert predicted["ring_tree_crossover_bytes"] == 0 and predicted["num_cells"] == 3
    assert predicted["wire_bytes"]["all_reduce"]["64 KiB"] == 2 * 2**16
    assert {artifact["path"] for artifact in record.artifacts} >= {"sweep/ranks.jsonl", "sweep/cells.jsonl"}
    assert lines[0].startswith("cell 1/3, p0-auto: measured") and len(lines) == 3
    assert exp.load("tiny", expect=exp.Params(**TINY)) == record
    with pytest.raises(RecordError, match="num_samples=3, expected 4"):
        exp.load("tiny", expect=exp.Params(**{**TINY, "num_samples": 4}))


def test_figures_and_comparison_of_a_cpu_run(lab):
    record, _, _ = lab
    figures = exp.figures(record)
    assert {"bandwidth", "collectives", "pairs", "directions"} <= set(figures)  # a fit needs times that grow
    assert all(record.run_id in figure.layout.meta["caption"] for figure in figures.values())
    side_by_side = exp.compare([record]).set_index(["result", "case"])
    assert side_by_side.loc[("best_combo", "1 MiB"), "8x V100 (quoted)"] == "Ring+Simple"
    assert side_by_side.loc[("pair_alone", "SYS"), "8x V100 (quoted)"] == 27.45


GPU = dict(device="cuda", world_size=2, min_bytes=1024, max_bytes=2**20, combos=exp.COMBOS, channels=(1, 2),
           with_logs=True, timing="both", pair_bytes=2**20, collectives=("all_reduce", "broadcast"), num_samples=3)
LINES = [f"n:1:2 [0] NCCL INFO {line}" for line in (
    "  Algorithm   |                          Tree                  |                          Ring                  |",
    "  Protocol    |           LL |        LL128 |       Simple |           LL |        LL128 |       Simple |",
    "    AllReduce |   8.0/  61.1 |  16.5/ 180.6 |  16.4/ 232.2 |   7.8/ 141.0 |  17.8/ 331.2 |  15.2/ 360.0 |",
    "comm 0x1 rank 0 nranks 2 - Init COMPLETE", "Trees [0] 1/-1/-1->0->-1", "NCCL version 2.28.9+cuda13.0",
    "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM")]
RATE = {"LL": 100, "LL128": 200, "Simple": 300}
LATENCY = {"LL": 10, "LL128": 15, "Simple": 30}


def time_us(case, size):
    """A made machine: protocols as in the textbook, and a tree that is 1 us slower."""
    protocol = "Simple" if "+" not in case else case.split("+")[1]
    return LATENCY[protocol] + size / RATE[protocol] / 1e3 + case.startswith("Tree")


def log_lines(case, sizes):
    pair = ("RING", "LL") if case == "auto" else ("RING", "SIMPLE") if case.startswith("ch") else tuple(
        part.upper() for part in case.split("+"))
    channels = int(case[2:]) if case.startswith("ch") else 4
    return [f"n:1:2 [0] NCCL INFO AllReduce: {size} Bytes -> Algo {pair[0]} proto {pair[1]} "
            f"channel{{Lo..Hi}}={{0..{channels - 1}}}" for size in sizes]


def fake_gpu(change=lambda plan, rows: None, seen=None):
    """A launcher that writes what the worker would on two GPUs, from `time_us`."""
    def launch(worker, *, run_dir, **_):
        assert worker == "collective_cells"
        cells = json.loads((run_dir / "params.json").read_text())["cells"]
        if seen is not None:
            seen.extend(cells)
        with open(run_dir / "cells.jsonl", "w") as stream:
            for plan in cells:
                case = plan["name"].split("-", 1)[1]
                folder = run_dir / "cells" / plan["name"]
                folder.mkdir(parents=True)
                status = {"name": plan["name"], "status": "measured", "reason": None, "wall_s": 1.0}
                for rank in range(2):
                    rows = [{"kind": "setup", "num_ranks": 2}]
                    for collective, sizes in plan["sizes"].items():
                        for size in sizes:
                            rows.append(timed(plan, case, collective, size))
                    change(plan, rows)
                    rows = [{"rank": rank, **row} for row in [*rows, {"kind": "end"}]]
                    (folder / f"rank{rank}.jsonl").write_text("\n".join(map(json.dumps, rows)))
                if "INFO" in plan["env"]["NCCL_DEBUG"]:
                    lines = LINES + log_lines(case, plan["sizes"]["all_reduce"])
                    (folder / "nccl_rank0.log").write_text("\n".join(lines))
                if case == "Tree+LL128":
                    status |= {"status": "refused", "reason": "no algorithm/protocol available"}
                stream.write(json.dumps(status) + "\n")
        return LaunchResult(argv=["python"], wall_s=0.0, log=run_dir / "log.txt")
    return launch


def timed(plan, case, collective, size):
    row = {"kind": "times", "collective": collective, "size_bytes": size, "num_calls": 4, "timing": "graph",
           "graph_error": None, "loopback_bytes": None, "num_wrong": 0,
           "starts_s": [float(i) for i in range(plan["num_samples"])],
           "times_us": [time_us(case, size)] * plan["num_samples"]}
    return row if plan["kind"] == "times" else {**row, "kind": "pair", "phase": "alone 0", "pair": [0, 1]}


@pytest.fixture
def gpu(monkeypatch, tmp_path, two_h200):
    """Run with the made machine; returns the record."""
    monkeypatch.setenv("LABKIT_RUNS_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("NCCL_TESTS_HOME", raising=False)

    def run(change=lambda plan, rows: None, seen=None, **changes):
        monkeypatch.setattr(exp, "launch_worker", fake_gpu(change, seen))
        return exp.run(exp.Params(**{**GPU, **changes}), run_id=f"r{len(list(tmp_path.glob('*/*')))}")
    return run


def test_a_matrix_gives_winners_fits_channels_and_the_library_choice(gpu):
    record = gpu()
    results = record.results
    assert record.status == "ok", (record.failure, [o for o in record.oracles if not o.passed])
    assert results["best_combo"] == {"1 KiB": "Ring+LL", "4 KiB": "Ring+LL", "16 KiB": "Ring+LL", "64 KiB": "Ring+LL",
                                     "256 KiB": "Ring+LL", "1 MiB": "Ring+LL128"}
    assert results["refused"] == {"p0-Tree+LL128": "no algorithm/protocol available"}
    assert len(results["forced_pairs_in_log"]) == 5 and set(results["chosen_channels"].values()) == {4}
    assert results["fit"]["Ring+LL"]["alpha_us"] == pytest.approx(10)
    assert results["fit"]["Ring+LL"]["worst_held_out_pct"] < 1e-6
    assert results["crossover_bytes"]["Ring+LL / Ring+LL128"] == pytest.approx(5e3 / (1 / 100 - 1 / 200))
    assert results["crossover_bytes"]["Tree+LL / Ring+LL"] is None
    assert set(results["chosen"].values()) == {"Ring+LL"} and results["transport"] == {"0-1": ["P2P/CUMEM"]}
    assert results["debug_env"] is True and results["nccl_version"] == "2.28.9"
    assert list(results["channel_busbw"]) == ["1", "2"] and results["channels_in_log"] == {"1": [1], "2": [2]}
    figures = exp.figures(record)
    assert set(figures) == {"bandwidth", "collectives", "time_by_pair", "fit", "residuals", "channels", "directions"}
    assert "LL to LL128" in figures["time_by_pair"].layout.title.text
    fits, best = fit_frame(record).set_index("case"), winner_frame(record).set_index("size")
    assert (fits.loc["Ring+LL", "nccl_alpha_us"], fits.loc["Ring+LL", "nccl_gb_per_s"]) == (7.8, 141.0)
    assert list(best.index) == ["1 KiB", "4 KiB", "16 KiB", "64 KiB", "256 KiB", "1 MiB"]
    assert best.loc["1 MiB", "loss_pct"] == pytest.approx(
        100 * (time_us("auto", 2**20) / time_us("Ring+LL128", 2**20) - 1), rel=1e-3)


def test_a_forced_cell_that_ran_another_pair_fails_the_run(gpu, monkeypatch):
    own = log_lines
    monkeypatch.setitem(globals(), "log_lines", lambda case, sizes: [
        line.replace("RING", "TREE") if case.startswith("Ring") else line for line in own(case, sizes)])
    failed = [oracle.name for oracle in gpu().oracles if not oracle.passed]
    assert failed == ["the library's log names the forced pair at every size"]


def test_wrong_data_fail_the_run(gpu):
    def spoil(plan, rows):
        if plan["name"] == "p0-Ring+LL":
            rows[3]["num_wrong"] = 1
    record = gpu(spoil)
    assert record.status == "failed" and record.results["wrong_elements"] == 2
    with pytest.raises(RecordError, match="p0-Ring\\+LL all_reduce 16 KiB"):
        exp.check(record)


@pytest.fixture
def two_h200(monkeypatch):
    """This machine says that it has two H200."""
    here = machine.detect()
    gpus = tuple(machine.Gpu(index=i, name="NVIDIA H200") for i in range(2))
    monkeypatch.setattr(machine, "detect", lambda: replace(here, gpus=gpus, links={"0-1": "NV18"}))


def standing(tmp_path):
    return {row.id: row.status for row in verify(lab=exp.SLUG, roots=[tmp_path], tag="h200-x2")}


def test_the_ledger_takes_the_structural_claims_from_a_gpu_record(gpu, two_h200, tmp_path):
    record = gpu()
    assert record.hardware_tag == "h200-x2" and record.prediction["values"]["floor_us"]["1 MiB"] == pytest.approx(
        2**20 / 450e9 * 1e6)
    found = standing(tmp_path)
    for claim in ("nccl-wrong-zero", "audit-oracle-nccl", "nccl-debug-env", "nccl-threshold-factors"):
        assert found[claim] == "verified", claim
    for claim in ("nccl-pair-procedure", "nccl-topo-matrix-limit", "nccl-best-time", "nccl-channel-busbw"):
        assert found[claim] == "not_run", claim  # no two pairs, or another machine's figures


def test_a_record_with_a_wrong_element_proves_nothing(gpu, two_h200, tmp_path):
    def spoil(plan, rows):
        rows[1]["num_wrong"] = int(plan["name"] == "p0-Ring+LL")
    assert gpu(spoil).status == "failed" and standing(tmp_path)["nccl-wrong-zero"] == "not_run"


PROGRAM = """#!/usr/bin/env python3
import json, os, sys
args = sys.argv[1:]
if "--help" in args:
    print("[-J,--jsonfile <path>]"); sys.exit(0)
value = lambda flag: args[args.index(flag) + 1]
if os.environ.get("NCCL_ALGO") == "Tree" and os.environ.get("NCCL_PROTO") == "LL128":
    print("n: Test NCCL failure common.cu:1 'invalid usage'"); sys.exit(3)
rows, size = [], int(value("-b"))
while size <= int(value("-e")):
    side = {"time": 40.0 + size / 1e5, "alg_bw": 1.0, "bus_bw": 1.0, "nwrong": 0.0}
    rows.append({"size": size, "count": size // 4, "type": "float", "redop": "sum", "root": "    -1",
                 "out_of_place": side, "in_place": dict(side, time=1.0)})
    size *= int(value("-f"))
json.dump({"version": 1, "args": sys.argv, "env": [f"{k}={v}" for k, v in os.environ.items()], "nccl_version": 22809,
           "config": {"nthreads": 1, "ngpus": int(value("-g")), "validation": 1, "devices": [{"rank": 0, "group": 0,
           "hostname": "secret-host"}]}, "results": rows, "out_of_bounds": {"count": 0, "okay": "true"},
           "average_bus_bandwidth": {"bandwidth": 1.0, "okay": "unchecked"}, "errors": []}, open(value("-J"), "w"))
"""


def test_nccl_tests_is_the_engine_where_it_is_found(gpu, monkeypatch, tmp_path):
    home = tmp_path / "nccl-tests" / "build"
    home.mkdir(parents=True)
    (home / "all_reduce_perf").write_text(PROGRAM)
    (home / "all_reduce_perf").chmod(0o755)
    monkeypatch.setenv("NCCL_TESTS_HOME", str(home.parent))
    monkeypatch.setenv("MY_API_KEY", "do-not-keep-me")
    seen = []
    record = gpu(seen=seen, large_bytes=(2**30,))
    results = record.results
    assert record.status == "ok", (record.failure, [o for o in record.oracles if not o.passed])
    assert results["engine"] == "nccl-tests" and "nccl-tests" in results["timing"]
    assert results["time_us"]["Ring+LL"]["1 MiB"]["value"] == pytest.approx(40 + 2**20 / 1e5)  # out of place
    assert "Test NCCL failure" in results["refused"]["p0-Tree+LL128"]
    by_worker = [plan for plan in seen if plan["kind"] == "times" and plan["num_samples"]]
    assert by_worker and not any("all_reduce" in plan["sizes"] for plan in by_worker)
    assert results["time_us"]["broadcast"]["1 MiB"]["n"] == 3
    run_dir = Path(os.environ["LABKIT_RUNS_DIR"]) / exp.SLUG / record.run_id
    kept = [path.read_text(errors="replace") for path in run_dir.rglob("*") if path.is_file()]
    assert not any("do-not-keep-me" in text or "secret-host" in text for text in kept)
    assert sum(path.name == "out.json" for path in run_dir.rglob("*")) == 8  # auto, five pairs, two channel counts


def test_a_missing_program_is_a_failed_run_only_if_it_was_asked_for(gpu):
    assert gpu(engine="torch").results["engine"] == "torch"
    record = gpu(engine="nccl-tests")
    assert record.status == "failed" and "NCCL_TESTS_HOME" in record.failure["message"]


def test_a_failed_launch_is_recorded_with_its_cause(monkeypatch, tmp_path):
    def launch(worker, *, run_dir, **_):
        raise LaunchError("collective_cells failed (exit code 1): cell p0-auto: boom", log_path=run_dir / "log.txt")

    monkeypatch.setenv("LABKIT_RUNS_DIR", str(tmp_path))
    monkeypatch.setattr(exp, "launch_worker", launch)
    record = exp.run(exp.Params(**TINY), run_id="broken")
    assert record.status == "failed" and exp.table(record).empty and exp.figures(record) == {}
    with pytest.raises(RecordError, match="boom"):
        exp.check(record)


def test_a_rank_file_that_is_cut_is_a_failed_run(lab, monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_RUNS_DIR", str(tmp_path))

    def launch(worker, *, run_dir, **_):
        (run_dir / "cells.jsonl").write_text('{"name": "p0-auto", "status": "measured", "reason": null, "wall_s": 1}\n')
        (run_dir / "cells" / "p0-auto").mkdir(parents=True)
        (run_dir / "cells" / "p0-auto" / "rank0.jsonl").write_text('{"kind": "setup", "num_ra')
        return LaunchResult(argv=["python"], wall_s=0.0, log=run_dir / "log.txt")

    monkeypatch.setattr(exp, "launch_worker", launch)
    record = exp.run(exp.Params(**TINY), run_id="cut")
    assert record.status == "failed" and "rank0.jsonl" in record.failure["message"]


def test_pair_sets_are_named_by_their_link():
    params = exp.Params(device="cuda", pair_sets=("0-1 2-3", "0-2 1-3", "4-5"))
    links = {"0-1": "PIX", "2-3": "PIX", "0-2": "SYS", "1-3": "PIX"}
    assert exp._families(params, links) == {"pairs0": "PIX", "pairs1": "0-2 1-3", "pairs2": "4-5"}
    assert exp._families(exp.Params(pair_sets=("0-1 2-3",)), {}) == {"pairs0": "0-1 2-3"}


@pytest.mark.parametrize(("changes", "message"), [
    ({"world_size": 1}, "world_size=1: expected at least 2"),
    ({"device": "gpu"}, "device='gpu': expected cpu or cuda"),
    ({"combos": ("Ring+LL",)}, "combos=.*: expected nothing on a CPU"),
    ({"channels": (1,)}, "channels=.*: expected nothing on a CPU"),
    ({"with_logs": True}, "with_logs=True: expected nothing on a CPU"),
    ({"timing": "graph"}, "timing='graph': expected eager on a CPU"),
    ({"engine": "nccl-tests"}, "engine='nccl-tests': expected torch on a CPU"),
    ({"device": "cuda", "combos": ("Ring",)}, "combos='Ring': expected an algorithm and a protocol"),
    ({"device": "cuda", "channels": (0,)}, "channels=.*: expected numbers of at least 1"),
    ({"pair_sets": ("0-1 1-2",)}, "pair_sets='0-1 1-2': expected disjoint pairs"),
    ({"max_bytes": 8}, "max_bytes=8: expected at least min_bytes=1024"),
    ({"world_size": 3}, "min_bytes=1024: expected whole float32 elements of each rank"),
    ({"collectives": ("broadcast",)}, "collectives=.*: expected all_reduce and others"),
    ({"cell_timeout_s": 0}, "cell_timeout_s=0: expected above 0"),
])
def test_bad_parameters_are_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        exp.Params(**changes)


def test_presets_hold_the_reports_settings():
    assert available_presets(exp.SLUG) == ["smoke", "cpu", "gpu2", "gpu8"]
    for preset in ("gpu2", "gpu8"):
        params = build_params(exp.Params, exp.SLUG, preset)
        assert params.combos == exp.COMBOS and {1, 2, 4, 8} <= set(params.channels)
        assert (params.min_bytes, params.max_bytes, params.channel_bytes) == (1024, 2**28, 2**28)
        assert params.num_processes >= 3 and params.num_samples >= 20 and params.world_size == int(preset[3:])
    eight = build_params(exp.Params, exp.SLUG, "gpu8")
    assert eight.pair_sets == ("0-1 2-3 4-5 6-7", "0-4 1-5 2-6 3-7")


def test_predicted_floors_are_the_links():
    params = build_params(exp.Params, exp.SLUG, "gpu8")
    floors = exp.predict(params, hardware=load_profile("h200"))["floor_us"]
    link = load_profile("h200").value("link_one_way_bytes_per_s")
    assert floors["256 MiB"] == pytest.approx(2**28 * 1.75 / link * 1e6)
    assert exp.predict(params)["floor_us"] == {} and exp.predict(params)["ring_tree_crossover_bytes"] is None
    assert exp.predict(params)["num_steps"] == {"Ring": 14, "Tree": 6}


def test_the_outcome_of_no_cells_has_no_winner():
    outcome = Outcome()
    cell = Cell(name="p0-auto", status="measured", reason=None, wall_s=0.0)
    exp.fill_outcome(exp.Params(), {"p0-auto": cell}, outcome, planned=[], links={}, link_bytes_per_s=None)
    assert outcome.results["best_combo"] == {} and not all(oracle.passed for oracle in outcome.oracles)
