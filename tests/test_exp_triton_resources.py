"""The triton_resources lab: a real compilation for three targets, the oracles, and the slice on a made-up GPU host."""

import json
import shutil
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from labkit import machine
from labkit.analyze import resource_oracles as oracles
from labkit.analyze import resource_tables as tables
from labkit.analyze import resource_times as times
from labkit.analyze import resources as analyze
from labkit.experiments import triton_resources as exp
from labkit.hardware import load_profile
from labkit.launch.process import LaunchError
from labkit.machine import Gpu, detect
from labkit.presets import UsageError, available_presets, build_params
from labkit.records import RecordError, check_run

# 20 is a target that no Triton of today compiles for: it must be refused, and cost nothing else.
SMALL = exp.Params(targets=(70, 90, 20), long_targets=(70,), bare_targets=(70,), hidden=(256, 512), num_warps=(1, 2))


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """One real compilation, and its run directory."""
    pytest.importorskip("triton")
    with pytest.MonkeyPatch.context() as patch:
        root = tmp_path_factory.mktemp("runs")
        patch.setenv("LABKIT_RUNS_DIR", str(root))
        record = exp.run(SMALL, preset="smoke")
        yield record, root / exp.SLUG / record.run_id


def passed(judged):
    return {oracle.name: oracle.passed for oracle in judged}


# A real compilation


def test_cross_compiled_without_a_gpu(live):
    record, run_dir = live
    assert record.status == "ok" and check_run(run_dir) == [], record.failure
    assert len(exp.check(record)) >= 9
    assert record.results["cuobjdump"] is True
    assert set(record.results["registers"]) == {"h256/w1", "h256/w2", "h512/w1", "h512/w2"}
    assert all(15 <= registers <= 64 for registers in record.results["registers"].values())
    assert record.results["compiler"]["triton"] and record.results["compiler"]["ptxas"]["sm_90"]


def test_equal_elements_a_thread_need_nearly_equal_registers(live):
    """h256/w1 and h512/w2 give a thread 8 elements each."""
    record, _ = live
    assert record.results["equal_share"]["sm_70"]["8"] == [
        record.results["registers"]["h256/w1"], record.results["registers"]["h512/w2"]]
    assert record.results["equal_share_spread"] == {"sm_70": pytest.approx(0, abs=4)}


def test_a_target_that_the_compiler_lacks_is_refused_not_a_crash(live):
    record, _ = live
    assert set(record.results["refused"]) == {"sm_20 h256/w1", "sm_20 h256/w2"}
    assert any("sm_20" in note for note in record.notes) and "sm_20" not in record.results["by_target"]["registers"]


def test_hints_decide_how_wide_a_load_is(live):
    record, _ = live
    loads = record.results["by_target"]["max_load_bytes"]["sm_70"]
    assert loads["h256/w1"] == 16 and loads["h256/w1 bare"] == 2 and loads["h256/w2"] == 8
    frame = tables.bare_table(record)
    assert list(frame["cell"]) == ["h256/w1", "h256/w2"] and list(frame["bare_max_load_bytes"]) == [2, 2]


def test_no_cubins_or_paths_are_left_in_the_run(live):
    _, run_dir = live
    assert {path.name for path in run_dir.rglob("*") if path.is_file()} == {
        "params.json", "prediction.json", "record.json", "rank0.jsonl", "log.txt"}
    text = (run_dir / "compile" / "rank0.jsonl").read_text()
    assert "/tmp" not in text and str(run_dir) not in text


def test_tables_and_figures_of_a_compilation(live):
    record, _ = live
    frame = exp.table(record)
    assert len(frame) == 8 and set(frame["target"]) == {"sm_70", "sm_90"} and frame["blocks_per_sm"].notna().all()
    assert tables.target_table(record).columns.tolist() == ["cell", "sm_70", "sm_90"]
    told = tables.compiler_table([record])
    assert {name for text in told["target"] for name in text.split(", ")} == {"sm_70", "sm_90", "sm_20"}
    assert set(told["triton"]) == {record.results["compiler"]["triton"]}
    drawn = exp.figures(record)
    assert set(drawn) == {"registers", "bounds"}
    assert all(fig.layout.meta["caption"] and fig.layout.meta["alt"] for fig in drawn.values())
    side = exp.compare([record]).set_index(["quantity", "cell"])
    assert side.loc[("registers", "h8192/w8"), "V100 PCIe (quoted)"] == 54
    assert side.loc[("occupancy_pct", "h4096/w2"), "V100 PCIe (quoted)"] == 25


def test_replay_refuses_other_parameters(live, monkeypatch):
    record, run_dir = live
    monkeypatch.setenv("LABKIT_RUNS_DIR", str(run_dir.parents[1]))
    assert exp.load(record.run_id, expect=SMALL).run_id == record.run_id
    with pytest.raises(RecordError, match="seed"):
        exp.load(record.run_id, expect=replace(SMALL, seed=1))


# What each oracle notices


def cell(**changes):
    good = {
        "name": "h16384/w1", "target": 90, "hidden": 16384, "num_warps": 1, "hints": True, "registers": 255,
        "stack_bytes": 800, "static_shared_bytes": 0, "ptxas_registers": 255, "ptxas_stack_bytes": 800,
        "ptxas_shared_bytes": 0, "spill_store_bytes": 700, "spill_load_bytes": 800, "elf_registers": 255,
        "elf_stack_bytes": 800, "sass_store_bytes": 700, "sass_load_bytes": 800, "dynamic_shared_bytes": 0,
        "max_load_bytes": 16, "row_registers": 256, "elements_per_thread": 512, "blocks_per_sm": 8,
        "placed_blocks_per_sm": 8, "occupancy_pct": 12.5, "naive_occupancy_pct": 12.5,
    }  # fmt: skip
    return good | changes


def test_a_good_cell_passes_every_oracle():
    assert all(passed(oracles.compile_oracles([cell()], asked=3, refused=2)).values())


@pytest.mark.parametrize(("name", "changes"), [
    ("registers_three_ways", {"elf_registers": 254}), ("registers_three_ways", {"ptxas_registers": None}),
    ("stack_three_ways", {"ptxas_stack_bytes": 0}), ("static_shared_two_ways", {"static_shared_bytes": 1024}),
    ("occupancy_two_ways", {"placed_blocks_per_sm": 9}), ("naive_bound_is_never_lower", {"naive_occupancy_pct": 10}),
    ("row_is_held", {"registers": 55, "ptxas_registers": 55, "elf_registers": 55}),
    ("vector_loads_follow_the_hints", {"max_load_bytes": 8}), ("vector_loads_follow_the_hints", {"hints": False}),
    ("certain_spills_spill", {"spill_store_bytes": 0, "sass_store_bytes": 0}),
    ("spills_in_the_machine_code", {"sass_load_bytes": 796}),
])  # fmt: skip
def test_each_oracle_notices(name, changes):
    judged = passed(oracles.compile_oracles([cell(), cell(**changes)], asked=2, refused=0))
    assert [oracle for oracle, is_right in judged.items() if not is_right] == [name]


def test_a_missing_cell_is_noticed():
    assert not passed(oracles.compile_oracles([cell()], asked=2, refused=0))["every_cell_is_answered"]
    assert not any(passed(oracles.compile_oracles([], asked=0, refused=0)).values()), "nothing looked at is no pass"


def test_reserved_shared_memory_is_not_the_kernels():
    line = {"kind": "kernel", "target": 90, "hidden": 256, "num_warps": 2, "block": 256, "hints": True,
            "cuobjdump": "Resource usage:\n Function k:\n  REG:20 STACK:0 SHARED:1024 LOCAL:0\n",
            "ptxas": "ptxas info : Compiling entry function 'k' for 'sm_90a'\nptxas info : Used 20 registers\n",
            "dynamic_shared_bytes": 8, "max_load_bytes": 8, "max_store_bytes": 8}  # fmt: skip
    (seen,) = analyze.compiled_cells([line], kernel="k")
    assert (seen["static_shared_bytes"], seen["reserved_shared_bytes"], seen["elf_registers"]) == (0, 1024, None)
    (older,) = analyze.compiled_cells([{**line, "target": 80}], kernel="k")
    assert (older["static_shared_bytes"], older["reserved_shared_bytes"]) == (1024, 0)
    (unknown,) = analyze.compiled_cells([{**line, "target": 61}], kernel="k")
    assert unknown["occupancy_pct"] is None and unknown["registers"] == 20


DEVICE = {"kind": "device", "driver_cuda": 13000, "cc_major": 9, "cc_minor": 0, "num_sms": 132,
          "max_threads_per_sm": 2048, "shared_memory_per_sm_bytes": 233472, "registers_per_sm": 65536,
          "shared_memory_per_block_bytes": 232448, "max_blocks_per_sm": 32,
          "reserved_shared_memory_bytes": 1024}  # fmt: skip
# 99 registers: 3,328 a warp, 4 warps a sub-partition, 16 in all; two warps a block.
CASE = {"kind": "case", "name": "k0", "registers": 99, "static_shared_bytes": 100,
        "launches": [[64, 0, False, 8, 0], [64, 60_000, True, 3, 0], [64, 60_000, False, 0, 0]]}  # fmt: skip


def test_driver_answers_by_hand():
    # 60,100 + 1,024 bytes, in 128s: 61,184; three of them in 233,472. Without opting in, more than 48 KiB is refused.
    results, judged = oracles.driver_results([DEVICE, CASE])
    assert all(passed(judged).values()) and results["driver_cases"] == results["driver_equal"] == 3
    assert results["driver_zero"] == 1 and results["driver_registers"] == {"least": 99, "most": 99, "different": 1}


def test_a_driver_that_disagrees_is_named():
    odd = {**CASE, "launches": [[64, 0, False, 10, 0]]}
    results, judged = oracles.driver_results([DEVICE, CASE, odd])
    assert not passed(judged)["driver_agrees"] and results["driver_equal"] == 3 and results["driver_cases"] == 4
    assert "driver 10, formula 8" in next(o.detail for o in judged if o.name == "driver_agrees")
    _, judged = oracles.driver_results([{**DEVICE, "max_blocks_per_sm": 24}, CASE])
    assert not passed(judged)["driver_limits"]
    _, judged = oracles.driver_results([{**DEVICE, "cc_major": 7, "cc_minor": 2}, CASE])
    assert not passed(judged)["driver_agrees"]


# A made-up GPU host


def sweep_lines(process, *, slow=1.0):
    """One row length, two num_warps, a dial of two settings: times chosen so that ratios are round."""
    kernels = [{"kind": "kernel", "hidden": 256, "num_warps": w, "blocks_per_sm": 32, "registers": r,
                "dynamic_shared_bytes": 8 * (w - 1), "local_bytes": 0, "triton_registers": r, "triton_spills": 0}
               for w, r in ((1, REGISTERS[0]), (2, REGISTERS[1]))]  # fmt: skip
    calls = {"w1": 0.004 * slow, "w2": 0.002, "w2 b1": 0.008, "w2 b32": 0.002, "copy": 0.0019, "copy_again": 0.001938}
    checks = [{"kind": "check", "what": name, "hidden": 256, "passed": True} for name in calls if name[0] == "w"]
    dials = [{"kind": "dial", "name": f"w2 b{b}", "hidden": 256, "num_warps": 2, "blocks": b, "driver_blocks": b,
              "error": 0} for b in (1, 32)]  # fmt: skip
    timing = [{"kind": "timing", "mode": mode, "name": name, "hidden": 256, "ms": [ms, ms]}
              for mode in times.MODES for name, ms in calls.items()]  # fmt: skip
    return [{**DEVICE, "process": process}, *kernels, *dials, *checks, *timing, {"kind": "done"}]


REGISTERS = [0, 0]


@pytest.fixture
def gpu_host(live, monkeypatch, tmp_path):
    """A machine with one H200: the compiler's lines are real, the GPU workers' are made up."""
    record, compiled = live
    REGISTERS[:] = [record.results["by_target"]["registers"]["sm_90"][f"h256/w{w}"] for w in (1, 2)]
    here = replace(detect(), gpus=(Gpu(index=0, name="NVIDIA H200"),))
    monkeypatch.setattr(machine, "detect", lambda: here)
    monkeypatch.setenv("LABKIT_RUNS_DIR", str(tmp_path))
    monkeypatch.setattr(exp, "query_metrics", lambda **_: ({"a", "b"}, SimpleNamespace(text="", exitcode=0)))
    options = {"fail": "", "case": CASE, "sweep": sweep_lines}

    def launch(worker, *, run_dir, **_):
        params = json.loads((run_dir / "params.json").read_text())
        assert (run_dir.parent / "prediction.json").is_file(), "predicted before anything runs"
        if worker == options["fail"]:
            raise LaunchError(f"{worker}: planted", log_path=run_dir / "log.txt", exitcode=1)
        if worker == "triton_compile":
            shutil.copy(compiled / "compile" / "rank0.jsonl", run_dir / "rank0.jsonl")
        else:
            lines = [DEVICE, options["case"]] if worker == "occupancy_driver" else options["sweep"](params["process"])
            (run_dir / "rank0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return SimpleNamespace(argv=["python", "-m", f"labkit.workers.{worker}"])

    monkeypatch.setattr(exp, "launch_worker", launch)
    return options


GPU = replace(SMALL, device="cuda", timed_hidden=(256,), rows=1000, dial_warps=(2,), num_processes=2, driver_kernels=1)


def test_gpu_run_from_launch_to_figures(gpu_host):
    record = exp.run(GPU, preset="gpu1")
    assert record.status == "ok", (record.failure, [o for o in record.oracles if not o.passed])
    results = record.results
    # 1,000 rows of 256 fp16 twice and the weight once: 1,024,512 bytes
    assert results["gb_per_s"]["h256/w2"]["value"] == pytest.approx(1_024_512 / 0.002 / 1e6)
    assert results["ms"]["h256/w1"] == {"value": 0.004, "unit": "ms", "n": 4, "p10": 0.004, "p90": 0.004,
                                        "num_processes": 2}  # fmt: skip
    assert results["slowdown"] == {"h256/w1": 2.0, "h256/w2": 1.0}
    assert results["copy_fraction"]["h256/w2"]["value"] == pytest.approx(0.95)
    assert results["noise_pct"]["h256"] == pytest.approx(100 * (1 - 0.0019 / 0.001938))
    assert results["dial_occupancy_pct"]["h256/w2"] == {"1": 100 * 2 / 64, "32": 100.0}
    assert results["dial_in_flight_kib"]["h256/w2"] == {"1": 0.5, "32": 16.0}
    assert results["knee_blocks"] == {"h256/w2": 32} and results["gpu_target"] == "sm_90"
    assert results["ncu_text"] == {"text": "no refusal, 2 counters listed", "exit_code": 0}
    assert record.samples["stream h256/w1"]["values"] == [[0.004, 0.004]] * 2
    assert record.prediction["values"]["hardware"] == "h200" and "h256" in record.prediction["values"]["knee_blocks"]
    assert set(exp.figures(record)) == {"registers", "bounds", "times", "dial"}
    row = exp.table(record).dropna(subset=["ms"]).set_index("cell").loc["h256/w1"]
    assert row["target"] == "sm_90" and row["slowdown"] == 2.0 and row["ms_n"] == 4


def test_dial_beside_littles_law_by_hand(gpu_host):
    """One block: 0.008 ms. 32 blocks: 0.002 ms, where the law allows 32 times the rate, but a copy takes 0.0019."""
    frame = tables.dial_table(exp.run(GPU)).set_index("blocks")
    assert frame.loc[1, "residual_pct"] == pytest.approx(0)
    assert frame.loc[32, "little_gb_per_s"] == pytest.approx(1_024_512 / 0.0019 / 1e6)
    assert frame.loc[32, "residual_pct"] == pytest.approx(100 * (0.0019 / 0.002 - 1))


def test_time_if_every_spill_reached_memory_by_hand():
    cells = [cell(), cell(target=80), cell(hints=False, name="bare"), cell(name="h16384/w2", num_warps=2,
             spill_store_bytes=0, spill_load_bytes=0)]  # fmt: skip
    found = times.with_spills(cells, target=90, rows=100, bytes_per_s=1e12, launch_floor_s=1e-6)
    # (2 x 100 x 16,384 + 16,384) x 2 bytes; 100 rows x 32 threads x (700 + 800) bytes on top for one warp
    assert found == {"h16384/w1": pytest.approx(0.001 + (6_586_368 + 4_800_000) / 1e9),
                     "h16384/w2": pytest.approx(0.001 + 6_586_368 / 1e9)}  # fmt: skip


def test_predicted_times_by_hand():
    plan = exp.predict(replace(GPU, timed_hidden=(4096,), rows=8192), hardware=load_profile("h200"))
    # (2 x 8,192 x 4,096 + 4,096) x 2 bytes at 4.3e12 bytes/s, and 2.7 us
    assert plan["ms"] == {"h4096/w1": pytest.approx(0.0027 + 134_225_920 / 4.3e9), "h4096/w2": plan["ms"]["h4096/w1"]}
    assert plan["knee_blocks"]["h4096"] == pytest.approx(4.3e12 / 132 * 1.5e-6 / 16_384)


@pytest.mark.parametrize("worker", ["triton_compile", "occupancy_driver", "warp_sweep"])
def test_a_worker_that_fails_gives_a_failed_record(gpu_host, worker):
    gpu_host["fail"] = worker
    record = exp.run(GPU)
    assert record.status == "failed" and record.failure and "planted" in record.failure["message"]
    assert ("registers" in record.results) == (worker != "triton_compile"), "what was known is kept"
    with pytest.raises(RecordError, match="planted"):
        exp.check(record)


def changed(**new):
    def lines(process):
        return [{**line, **new} if line["kind"] == new.get("kind", "") else line for line in sweep_lines(process)]

    return lines


@pytest.mark.parametrize(("oracle", "sweep"), [
    ("outputs_are_right", changed(kind="check", passed=False)),
    ("driver_loads_what_was_compiled", changed(kind="kernel", registers=31)),
    ("driver_occupancy_of_these_kernels", changed(kind="kernel", blocks_per_sm=31)),
    ("dial_holds_the_blocks_asked_for", changed(kind="dial", driver_blocks=5)),
    ("not_faster_than_the_memory", lambda process: [
        {**line, "ms": [1e-5]} if line["kind"] == "timing" else line for line in sweep_lines(process)]),
])  # fmt: skip
def test_gpu_oracles_notice(gpu_host, oracle, sweep):
    gpu_host["sweep"] = sweep
    record = exp.run(GPU)
    assert record.status == "failed" and oracle in [o.name for o in record.oracles if not o.passed]


def test_an_unpermitted_counter_is_read_from_the_text(gpu_host, monkeypatch):
    seen = SimpleNamespace(text="==ERROR== ERR_NVGPUCTRPERM - no permission", exitcode=0)
    monkeypatch.setattr(exp, "query_metrics", lambda **_: (set(), seen))
    assert exp.run(GPU).results["ncu_text"] == {"text": "ERR_NVGPUCTRPERM", "exit_code": 0}


# Parameters


@pytest.mark.parametrize(("changes", "message"), [
    ({"targets": ()}, "targets"), ({"targets": (70, 70)}, "targets"), ({"num_warps": (3,)}, "num_warps"),
    ({"long_targets": (75,)}, "long_targets"), ({"bare_targets": (75,)}, "bare_targets"), ({"device": "gpu"}, "device"),
    ({"rounds": 0}, "rounds"), ({"seed": True}, "seed"), ({"eps": 0}, "eps"), ({"hidden": (0,)}, "hidden"),
    ({"dial_warps": (32,), "device": "cuda"}, "dial_warps"), ({"block_us": -1}, "block_us"),
])  # fmt: skip
def test_bad_parameters_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        exp.Params(**changes)


def test_presets_and_a_machine_without_gpus(monkeypatch):
    assert available_presets(exp.SLUG) == ["smoke", "cpu", "gpu1"]
    built = {name: build_params(exp.Params, exp.SLUG, name) for name in available_presets(exp.SLUG)}
    claimed = {f"h{h}/w{w}" for h in (4096, 8192) for w in (1, 2, 4, 8)}
    for name, params in built.items():
        compiled = {analyze.cell_name(c) for c in exp.cells(params) if c["target"] == 70}
        assert claimed <= compiled and len(params.targets) == 6, name
    assert built["gpu1"].num_processes >= 3 and built["gpu1"].rounds >= 20 and built["gpu1"].driver_kernels >= 200
    monkeypatch.setattr(machine, "detect", lambda: replace(detect(), gpus=()))
    with pytest.raises(UsageError, match="no GPU"):
        exp.run(built["gpu1"])


def test_predictions_cover_every_cell_and_are_plain():
    params = build_params(exp.Params, exp.SLUG, "cpu")
    plan = exp.predict(params)
    assert json.loads(json.dumps(plan)) == plan and asdict(params)
    known = {analyze.cell_name(c) for c in exp.cells(params) if c["hints"]}
    assert set(plan["registers"]) == set(plan["row_registers"]) == known
    assert plan["must_spill"]["sm_90"]["h16384/w1"] is True and plan["must_spill"]["sm_70"]["h8192/w1"] is False


def test_the_ledger_takes_its_structural_claim_from_a_committed_record(tmp_path):
    from labkit.claims import verify
    from labkit.paths import RECORDS

    rows = {row.id: row for row in verify(lab=exp.SLUG, roots=[tmp_path, RECORDS], tag="cpu-2c")}
    assert rows["occ-cuobjdump"].status == "verified" and rows["occ-cuobjdump"].record
    assert rows["occ-mechanism"].status == "verified" and rows["occ-mechanism"].record
    assert rows["occ-registers"].seen is None or set(rows["occ-registers"].seen) == set(rows["occ-registers"].expected)
    assert not [row.id for row in rows.values() if row.status == "differs"]
