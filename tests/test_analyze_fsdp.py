"""Analysis of FSDP runs against traces and logs written by hand."""

import json

import pytest

from labkit.analyze import fsdp_oracles, fsdp_results, fsdp_traces
from labkit.analyze.fsdp_results import Process
from labkit.analyze.job_exit import complaints, job_exit
from labkit.analyze.kinds import UnreadableInput


def gpu_trace(path, kernels, *, limiter=0, pid=0):
    """A trace of one step: (name, collective or None, start us, duration us, elements out, stream)."""
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#0", "pid": pid, "tid": 1, "ts": 0, "dur": 1e4}
    events = [step]
    for i, (name, collective, start, dur, elements, stream) in enumerate(kernels):
        args = {"device": 0, "stream": stream, "correlation": i + 1}
        if collective:
            args |= {"Collective name": collective, "In msg nelems": elements // 2, "Out msg nelems": elements,
                     "dtype": "Half", "Process Group Name": "0", "Group size": 2}
            events.append({"ph": "X", "cat": "cpu_op", "name": f"c10d::{collective}_", "pid": pid, "tid": 1,
                           "ts": start, "dur": 1})
        events.append({"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": start, "dur": dur,
                       "args": args})
        events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": pid, "tid": 1,
                       "ts": start, "dur": 1, "args": {"correlation": i + 1}})
    events += [{"ph": "X", "cat": "user_annotation", "name": "FullyShardedDataParallel.rate_limiter", "pid": pid,
                "tid": 1, "ts": 5, "dur": 1}] * limiter
    path.write_text(json.dumps({"traceEvents": events}))
    return path


NCCL_AG, NCCL_RS = "ncclDevKernel_AllGather_RING_LL(x)", "ncclDevKernel_ReduceScatter_Sum_f16_RING_LL(x)"
STEP = [  # by hand: gathers 0-100 and 80-200, the last 50 under compute 150-300, scatter 250-350 half under it
    (NCCL_AG, "_allgather_base", 0, 100, 1000, 20), (NCCL_AG, "_allgather_base", 80, 120, 500, 20),
    ("gemm", None, 150, 150, 0, 7), (NCCL_RS, "_reduce_scatter_base", 250, 100, 800, 24),
]


def test_a_step_by_hand(tmp_path):
    facts = fsdp_traces.rank_facts(gpu_trace(tmp_path / "trace_rank0.json", STEP, limiter=3))
    assert (facts["ag"]["count"], facts["ag"]["calls"], facts["ag"]["bytes"]) == (2, 2, 2 * 1500)
    assert (facts["rs"]["count"], facts["rs"]["calls"], facts["rs"]["bytes"]) == (1, 1, 2 * 800)
    assert facts["ag"]["union_ms"] == pytest.approx(0.2) and facts["ag"]["exposed_ms"] == pytest.approx(0.15)
    assert facts["rs"]["union_ms"] == pytest.approx(0.1) and facts["rs"]["exposed_ms"] == pytest.approx(0.05)
    assert facts["comm_ms"] == pytest.approx(0.3) and facts["exposed_ms"] == pytest.approx(0.2)
    assert facts["compute_ms"] == pytest.approx(0.15) and facts["limiter_waits"] == 3
    assert facts["others"] == {} and not facts["is_cpu"]


def test_other_communication_is_named(tmp_path):
    kernels = [*STEP, ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "allreduce", 400, 10, 4, 20)]
    assert fsdp_traces.rank_facts(gpu_trace(tmp_path / "t.json", kernels))["others"] == {"all_reduce": 1}


def test_a_trace_without_the_step_is_refused(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": [
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 0, "dur": 5, "args": {"device": 0}}]}))
    with pytest.raises(UnreadableInput, match=r"t\.json: no step 0"):
        fsdp_traces.rank_facts(path)


def test_waiting_is_what_exceeds_the_last_rank(tmp_path):
    late = [(n, c, s, 40 if c == "_allgather_base" else d, e, k) for n, c, s, d, e, k in STEP]
    ranks = [fsdp_traces.rank_facts(gpu_trace(tmp_path / f"trace_rank{i}.json", kernels))
             for i, kernels in enumerate([STEP, late])]
    split = fsdp_traces.split_waiting(ranks)
    assert split["transfer_ms"] == pytest.approx(0.040 + 0.040 + 0.100)
    assert split["longest_wait_ms"] == pytest.approx(0.060 + 0.080)
    fewer = fsdp_traces.rank_facts(gpu_trace(tmp_path / "trace_rank2.json", STEP[1:]))
    assert fsdp_traces.split_waiting([ranks[0], fewer])["transfer_ms"] is None
    assert fsdp_traces.split_waiting(ranks[:1])["transfer_ms"] is None


def step_rows(times):
    """[rank][step] seconds to rows."""
    return [{"kind": "step", "rank": rank, "case": "block+PRE", "index": i, "time_s": time, "loss": 1.0,
             "loopback_bytes": 100 * (i + 1)} for rank, of_rank in enumerate(times) for i, time in enumerate(of_rank)]


def test_a_step_takes_as_long_as_its_slowest_rank():
    processes = [Process(rows=step_rows([[0.1, 0.5], [0.3, 0.2]])), Process(rows=step_rows([[0.4, 0.4], [0.1, 0.1]]))]
    results, samples = fsdp_results.timing(processes, tokens_per_step=40)
    assert samples["step_time_ms.block+PRE"]["values"] == [pytest.approx([300, 500]), pytest.approx([400, 400])]
    time, rate = results["step_time_ms"]["block+PRE"], results["tokens_per_s"]["block+PRE"]
    assert time["value"] == pytest.approx(400) and (time["n"], time["num_processes"]) == (4, 2)
    assert rate["value"] == pytest.approx(100) and rate["p10"] <= rate["value"] <= rate["p90"]
    assert fsdp_results.loopback_seen(processes, ["block+PRE"], world_size=2) == {"block+PRE": 50}


def test_the_median_process_and_its_least_waiting_rank_are_shown(tmp_path):
    processes = []
    for length in (300, 100, 200):  # the second rank of each process waits 50 us more
        ranks = [fsdp_traces.rank_facts(gpu_trace(tmp_path / f"t_{length}_{i}.json", [
            (NCCL_AG, "_allgather_base", 0, length + 50 * i, 8, 20), ("gemm", None, 0, 80, 0, 7)])) for i in (0, 1)]
        processes.append(Process(rows=[], traces={"block+PRE": ranks}))
    results, samples = fsdp_results.recorded(processes)
    assert results["comm_union_ms"]["block+PRE"] == pytest.approx(0.2)
    assert results["exposed_comm_ms"]["block+PRE"] == pytest.approx(0.12)
    assert results["overlap_pct"]["block+PRE"] == pytest.approx(40) == results["ag_overlap_pct"]["block+PRE"]
    assert results["rs_overlap_pct"]["block+PRE"] is None
    assert results["comm_wait_ms"]["block+PRE"] == pytest.approx(0.05)
    assert samples["comm_union_ms.block+PRE"]["values"][1] == pytest.approx([0.1, 0.15])


def memory_row(case, allocated, reserved, **changes):
    return {"kind": "memory", "rank": 0, "case": case, "before_bytes": 2**20, "allocated_peak_bytes": allocated,
            "active_peak_bytes": allocated, "reserved_peak_bytes": reserved, "max_memory_allocated": allocated,
            "max_memory_reserved": reserved, **changes}


def test_peaks_are_the_largest_and_read_twice():
    rows = [memory_row("block+PRE", 2**30, 2**31), memory_row("block+PRE", 2**29, 3 * 2**30)]
    found = fsdp_results.memory([Process(rows=rows[:1]), Process(rows=rows[1:])])
    assert found["allocated_peak_gib"] == {"block+PRE": 1.0} and found["reserved_peak_gib"] == {"block+PRE": 3.0}
    assert found["memory_def"] is True
    for wrong in ({"max_memory_allocated": 5}, {"max_memory_reserved": 5}):
        assert fsdp_results.memory([Process(rows=[memory_row("x", 8, 16, **wrong)])])["memory_def"] is False
    assert "memory_def" not in fsdp_results.memory([Process(rows=[])])


def verdict_input(waits_on=3, waits_off=0, reserved_on=1.0, reserved_off=1.2):
    on, off = "block+PRE", "block+PRE+no-limiter"
    return {"step_time_ms": {on: {"value": 90.0}, "block+NONE": {"value": 100.0}},
            "exposed_comm_ms": {on: 70.0, "block+NONE": 82.0}, "limiter_waits": {on: waits_on, off: waits_off},
            "reserved_peak_gib": {on: reserved_on, off: reserved_off}}


def test_verdicts():
    assert fsdp_results.verdicts(verdict_input()) == {
        "limiter_role": True, "pre_gain_ms": 10.0, "pre_exposed_gain_ms": 12.0}
    for odd in ({"waits_on": 0}, {"waits_off": 1}, {"reserved_off": 0.9}):
        assert fsdp_results.verdicts(verdict_input(**odd))["limiter_role"] is False
    nothing = {name: {} for name in ("step_time_ms", "exposed_comm_ms", "limiter_waits", "reserved_peak_gib")}
    assert fsdp_results.verdicts(nothing) == {}


CLEAN = {"exitcode": 0, "is_clean": True, "results_written": 2, "complaints": [], "error": "", "left": []}
BROKEN = {**CLEAN, "exitcode": 1, "is_clean": False, "complaints": ["peer gone"]}


def test_verdicts_on_leaving():
    said = fsdp_results.exit_verdicts([CLEAN, CLEAN], {"early": BROKEN, "no_barrier": BROKEN}, world_size=2)
    assert said["exit_fix"] is said["exit_cause"] is said["results_file_not_success"] is True
    assert said["exit_error"] == {"early": "peer gone", "no_barrier": "peer gone"}
    said = fsdp_results.exit_verdicts([CLEAN, BROKEN], {"early": {**BROKEN, "results_written": 1}}, world_size=2)
    assert (said["exit_fix"], said["results_file_not_success"]) == (False, False) and "exit_cause" not in said
    assert fsdp_results.exit_verdicts([CLEAN], {"no_barrier": CLEAN}, world_size=2)["exit_cause"] is False
    assert not fsdp_results.exit_verdicts([CLEAN], {"early": CLEAN}, world_size=2)["results_file_not_success"]


@pytest.mark.parametrize(("launches", "exits", "failed"), [
    ([CLEAN], {"early": BROKEN, "ordered": CLEAN}, []),
    ([CLEAN, {**CLEAN, "is_clean": False, "left": ["nccl-x"]}], {}, ["barrier, then destroy"]),
    ([CLEAN], {"early": CLEAN}, ["a peer that leaves early"]),
    ([CLEAN], {"early": {**BROKEN, "results_written": 1}}, ["a peer that leaves early"]),
    ([CLEAN], {"ordered": BROKEN}, ["the right order alone"]),
])
def test_oracles_on_leaving(launches, exits, failed):
    oracles = fsdp_oracles.exit_oracles(launches, exits, world_size=2)
    assert [o.name for o in oracles if not o.passed] == [o.name for o in oracles
                                                         if any(o.name.startswith(name) for name in failed)]
    assert len(oracles) == 1 + len(exits)


@pytest.mark.parametrize(("line", "found"), [
    ("[rank0]:[W403] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL",
     ["group not destroyed"]),
    ("Warning: destroy_process_group() was not called before program exit", ["group not destroyed"]),
    ("RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:22913", ["peer gone"]),
    ("host:1:1 [0] proxy.cc:1521 NCCL WARN [Proxy Service 0] Failed to execute operation Close from rank 0",
     ["proxy error", "NCCL warning"]),
    ("[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)", ["watchdog timeout"]),
    ("UserWarning: resource_tracker: There appear to be 1 leaked shared_memory objects to clean up", ["leaked object"]),
    ("[rank0]:progress: fsdp2 block+PRE: done", []),
])
def test_complaints_of_real_logs(line, found):
    assert complaints(f"before\n{line}\nafter") == found


def test_an_exit_is_clean_only_if_nothing_is_left(tmp_path):
    (tmp_path / "log.txt").write_text("[rank0]:progress: done\n")
    (tmp_path / "rank0.jsonl").write_text('{"kind": "step"}\n{"kind": "result", "rank": 0}\n')
    (tmp_path / "rank1.jsonl").write_text('{"kind": "result", "ra')
    found = job_exit(tmp_path, exitcode=0)
    assert found["is_clean"] and found["results_written"] == 1
    assert not job_exit(tmp_path, exitcode=1, error="x" * 999)["is_clean"]
    assert len(job_exit(tmp_path, exitcode=1, error="x" * 999)["error"]) == 200
    for left in ({"ended": ["python"]}, {"shm_removed": ["nccl-abc"]}):
        found = job_exit(tmp_path, exitcode=0, **left)
        assert not found["is_clean"] and found["left"] == next(iter(left.values()))
    (tmp_path / "log.txt").write_text("destroy_process_group() was not called\n")
    assert not job_exit(tmp_path, exitcode=0)["is_clean"]


def test_movement_bound_holds_where_gradients_have_errors():
    """AdamW's first step on normal gradients and on the same with small errors: the derivation, tried."""
    np = pytest.importorskip("numpy")
    draw = np.random.default_rng(1)
    for error in (1e-3, 1e-5):
        gradient = draw.standard_normal(1_000_000)
        other = gradient + error * draw.standard_normal(1_000_000)
        move, moved = (g / (np.abs(g) + 1e-8) for g in (gradient, other))
        seen = np.linalg.norm(moved - move) / np.linalg.norm(move)
        assert fsdp_oracles.movement_bound(error) / 4 < seen < fsdp_oracles.movement_bound(error)
