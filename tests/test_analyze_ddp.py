"""From rank files to results and oracles, by hand: two ranks, two steps, numbers that can be added in the head."""

import copy
import json

import pandas as pd
import pytest

from labkit.analyze.ddp_oracles import ddp_oracles, rounding_bound
from labkit.analyze.ddp_rank_files import (
    before_first_comm,
    loopback_per_rank_bytes,
    rank_times_ms,
    read_ranks,
    slowest_rank_ms,
    timeline,
)
from labkit.analyze.ddp_results import Process, loopback_seen, recorded, slices_are_distinct, structure, timing
from labkit.analyze.kinds import UnreadableInput
from labkit.calc.ddp_prediction import VARIANTS, ddp_prediction, gradient_ready_order, train_flop_per_token
from labkit.calc.tinygpt import tinygpt_parameters
from labkit.plots.ddp import timeline as timeline_figure
from labkit.plots.ddp import tokens_per_s, transfer

BOUND = 1e-3
# Two buckets at 1 MiB and at 2 MiB; two ranks of two samples each.
MODEL = dict(num_layers=1, hidden=256, vocab_size=512, num_positions=16)
PREDICTED = ddp_prediction(caps_mib=(1, 2), accum_cap_mib=2, world_size=2, samples_per_rank=2, **MODEL)
PARAMETERS = [[name, shape, "float32"] for name, shape in tinygpt_parameters(**MODEL)]
CLOSE = {"rel_diff": 1e-7, "worst_rel_diff": 2e-7, "worst_name": "pos.weight", "is_bitwise_equal": False}


def trace(count, *, size=PREDICTED["gradient_bytes"], synced=1, exposed=(3.0, 5.0)):
    """Facts of a recorded step with `count` all-reduces on each of two ranks."""
    return {"calls": [count] * 2, "collectives": [count] * 2, "bytes": [size * synced] * 2, "comm_ms": [10.0, 8.0],
            "exposed_ms": list(exposed), "compute_ms": [20.0, 20.0], "overlap_pct": [70.0, 37.5],
            "first_comm_ms": [6.0, 7.0], "compute_before_comm_pct": [25.0, 30.0], "timeline": [{}, {}],
            "wait_ms": [4.0, 0.0], "transfer_ms": 6.0}


def good_process():
    """What a faultless first process of two ranks leaves behind."""
    rows, counts = [], {**PREDICTED["collectives_per_step"], **PREDICTED["accum_collectives"]}
    for rank in (0, 1):
        first = rank == 0
        rows.append({"kind": "setup", "rank": rank, "parameters": PARAMETERS})
        for case, sizes in PREDICTED["bucket_sizes_bytes"].items():
            rows.append({"kind": "reducer", "rank": rank, "case": case, "rebuilt_bucket_sizes_bytes": sizes,
                         "initial_bucket_sizes_bytes": PREDICTED["initial_bucket_sizes_bytes"][case],
                         "ready_order": PREDICTED["ready_order"]})
        for case in counts:
            samples = 1 if case.endswith("MiB") else 2
            ids = list(range(rank * samples, (rank + 1) * samples))
            whole = case.endswith("MiB") or case == "m8a1"
            rows.append({
                "kind": "gradients", "rank": rank, "case": case, "loss": 6.0 + rank, "sample_ids": ids,
                "micro_digests": [f"all of {ids}"] if whole else [f"row {i}" for i in ids],
                "num_compared": len(PARAMETERS), "names_differing": [], "vs_reference": CLOSE if first else None,
                "vs_other": CLOSE if first and case.startswith("m1a8") else None})
        rows.append({"kind": "end", "rank": rank, "weights_moved": [], "weights_differing": []})
        rows += [{"kind": "straggler", "rank": rank, "index": i, "time_s": 0.1 + 0.3 * rank} for i in range(2)]
    rows += [{"kind": "reference", "rank": 0, "samples_per_rank": n, "num_samples": 2 * n, "loss": 6.5} for n in (1, 2)]
    traces = {case: trace(count, synced=PREDICTED["accum_synchronised"].get(case, 1)) for case, count in counts.items()}
    traces |= {f"trap {scope}": trace(count) for scope, count in PREDICTED["no_sync_partial_collectives"].items()}
    return Process(rows=rows, traces=traces)


def failed_oracles(process, *, loopback=None):
    oracles = ddp_oracles(process, predicted=PREDICTED, world_size=2, bound=BOUND, loopback_bytes=loopback or {})
    return [oracle.name for oracle in oracles if not oracle.passed]


def test_a_faultless_run_passes():
    assert failed_oracles(good_process()) == []


def rows_of(process, kind, **wanted):
    return [r for r in process.rows if r["kind"] == kind and all(r.get(k) == v for k, v in wanted.items())]


def set_row(kind, key, value, **wanted):
    def break_it(process):
        rows_of(process, kind, **wanted)[0][key] = value
    return break_it


def set_trace(case, key, rank, value):
    def break_it(process):
        process.traces[case][key][rank] = value
    return break_it


FAR = {**CLOSE, "worst_rel_diff": 0.5}
MORE = PREDICTED["accum_collectives"]["m8a1"] + 1
BREAKS = {
    "a bucket is missing": (
        set_row("reducer", "rebuilt_bucket_sizes_bytes", [1], case="1 MiB"), "rebuilt buckets as predicted"),
    "rebuilt and initial buckets confused": (
        set_row("reducer", "initial_bucket_sizes_bytes", PREDICTED["bucket_sizes_bytes"]["1 MiB"], case="1 MiB"),
        "initial buckets as predicted"),
    "two gradients swap places": (
        set_row("reducer", "ready_order", PREDICTED["ready_order"][::-1]), "gradients become ready"),
    "no_sync did nothing": (
        set_trace("m1a8-no_sync", "collectives", 0, 2 * PREDICTED["accum_collectives"]["m8a1"]),
        "all-reduces in the trace equal buckets"),
    "the other rank sent one more": (
        set_trace("2 MiB", "collectives", 1, MORE), "all-reduces in the trace equal buckets"),
    "a call without communication": (set_trace("2 MiB", "calls", 0, MORE), "all-reduce calls in the trace file"),
    "half of the bytes": (
        set_trace("m8a1", "bytes", 1, PREDICTED["gradient_bytes"] // 2), "bytes of those all-reduces"),
    "the trap is silent": (
        set_trace("trap backward", "collectives", 0, 0), "no_sync around one half"),
    "one gradient differs on one rank": (
        set_row("gradients", "names_differing", ["pos.weight"], rank=1, case="m8a1"), "gradients bitwise equal"),
    "a parameter was left out": (
        set_row("gradients", "num_compared", 3, rank=1), "every parameter's gradient"),
    "not the mean over the batch": (
        set_row("gradients", "vs_reference", FAR, rank=0, case="1 MiB"), "gradients equal one process"),
    "accumulation is not the big batch": (
        set_row("gradients", "vs_other", FAR, rank=0, case="m1a8-no_sync"), "accumulated gradients equal"),
    "another loss": (set_row("gradients", "loss", 6.2, rank=1, case="m8a1"), "loss equals one process"),
    "weights moved": (set_row("end", "weights_moved", ["tok.weight"], rank=1), "weights equal on all ranks"),
    "weights differ": (set_row("end", "weights_differing", ["tok.weight"], rank=0), "weights equal on all ranks"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_each_fault_fails_its_oracle(name):
    break_it, noticed = BREAKS[name]
    process = copy.deepcopy(good_process())
    break_it(process)
    assert [oracle for oracle in failed_oracles(process) if oracle.startswith(noticed)], failed_oracles(process)


def test_a_check_with_nothing_to_compare_fails():
    process = good_process()
    for row in rows_of(process, "gradients"):
        row["vs_other"] = None
    assert failed_oracles(process) == ["accumulated gradients equal one big micro-step"]


def test_loopback_must_have_carried_the_predicted_bytes():
    wire = PREDICTED["wire_bytes_per_rank"]
    assert failed_oracles(good_process(), loopback={case: size * 1.01 for case, size in wire.items()}) == []
    short = {case: size * 0.5 for case, size in wire.items()}  # the factor 2 of the ring forgotten
    assert failed_oracles(good_process(), loopback=short) == ["loopback carried at least the predicted bytes"]


def test_structure_by_hand():
    found = structure(good_process(), world_size=2)
    assert found["num_parameters"] == PREDICTED["num_parameters"]
    assert found["gradient_bytes"] == 4 * found["num_parameters"]
    assert found["large_parameter_mib"] == 256 * 1024 * 4 / 2**20 and found["bucket_count"] == PREDICTED["bucket_count"]
    assert found["cap1_largest_bucket_mib"] == found["bucket_max_mib"]["1 MiB"]
    assert found["accum_collectives"]["m1a8-sync-every"] == 2 * found["accum_collectives"]["m1a8-no_sync"]
    assert found["no_sync_forward_only_collectives"] == 0 < found["no_sync_backward_only_collectives"]
    # 2 ranks: each sends 2 (2 - 1) / 2 = 1 times the gradients.
    assert found["wire_bytes_per_rank"]["1 MiB"] == found["gradient_bytes"]
    assert found["wire_bytes_per_rank"]["m1a8-sync-every"] == 2 * found["gradient_bytes"]
    assert found["slices_distinct"] and found["grad_rel_diff_m1a8_vs_m8a1"] == 1e-7
    assert found["loss_rel_diff_m1a8_vs_m8a1"] == 0
    assert found["straggler_rank0_ms"]["value"] == pytest.approx(100)
    assert found["straggler_rank0_vs_slowest"] == pytest.approx(0.25)


def test_slices_must_cover_the_batch_once():
    process = good_process()
    row = rows_of(process, "gradients", rank=1, case="m1a8-no_sync")[0]
    row["sample_ids"] = [0, 1]  # the other rank's
    assert not slices_are_distinct(process)
    row["sample_ids"] = [2, 3]
    row["micro_digests"] = ["row 2", "row 2"]
    assert not slices_are_distinct(process)
    assert not slices_are_distinct(Process(rows=[]))


def step_rows(case, times_s, *, loopback=None):
    return [{"kind": "step", "rank": rank, "case": case, "index": i, "time_s": time, "loopback_bytes": loopback}
            for rank, steps in enumerate(times_s) for i, time in enumerate(steps)]


def test_a_step_takes_as_long_as_its_slowest_rank():
    rows = step_rows("1 MiB", [[0.1, 0.5, 0.2], [0.2, 0.3, 0.2]])
    assert rank_times_ms(rows, "1 MiB") == [[100.0, 500.0, 200.0], [200.0, 300.0, 200.0]]
    results, samples = timing([Process(rows=rows)], tokens_per_step={"1 MiB": 1000, "m8a1": 8000})
    assert samples["step_time_ms.1 MiB"]["values"] == [[200.0, 500.0, 200.0]]
    time, rate = results["step_time_ms"]["1 MiB"], results["tokens_per_s"]["1 MiB"]
    assert (time["value"], time["p10"], time["p90"], time["n"]) == (200.0, 200.0, 500.0, 3)
    assert (rate["value"], rate["p10"], rate["p90"], rate["unit"]) == (5000.0, 2000.0, 5000.0, "tokens/s")
    assert "m8a1" not in results["step_time_ms"], "not timed, so not shown"


def test_rate_and_time_invert_to_each_other_for_an_even_sample():
    """The median of rates is not the rate of the median time; the ledger's erratum E02 is about just that."""
    results, _ = timing([Process(rows=step_rows("1 MiB", [[0.1, 0.3]]))], tokens_per_step={"1 MiB": 60})
    assert results["step_time_ms"]["1 MiB"]["value"] == pytest.approx(200)
    assert results["tokens_per_s"]["1 MiB"]["value"] == pytest.approx(300)


def test_steps_of_unequal_number_are_refused():
    with pytest.raises(ValueError):
        slowest_rank_ms([[1.0, 2.0], [1.0]])


def test_recorded_numbers_come_from_the_rank_that_waits_least():
    """Unions of three processes: (10, 8), (9, 30), (50, 6). The least of each: 8, 9, 6. The median of those is 8."""
    processes = [good_process() for _ in range(3)]
    for process, union, exposed, wait in zip(
            processes, [[10.0, 8.0], [9.0, 30.0], [50.0, 6.0]], [[3.0, 5.0], [1.0, 29.0], [49.0, 6.0]],
            [[4.0, 0.0], [0.0, 21.0], [44.0, 0.0]], strict=True):
        process.traces["1 MiB"] |= {"comm_ms": union, "exposed_ms": exposed, "wait_ms": wait}
    processes[0].traces["1 MiB"] |= {"first_comm_ms": [1.0, 2.0], "compute_before_comm_pct": [10.0, 20.0]}
    results, samples = recorded(processes, ["1 MiB"])
    assert results["comm_union_ms"]["1 MiB"] == 8.0 and results["exposed_comm_ms"]["1 MiB"] == 5.0
    assert results["overlap_pct"]["1 MiB"] == pytest.approx(37.5)
    assert results["first_comm_start_ms"]["1 MiB"] == 2.0
    assert results["compute_before_first_comm_pct"]["1 MiB"] == 20.0
    assert results["comm_wait_ms"]["1 MiB"] == 21.0 and results["comm_transfer_ms"]["1 MiB"] == 6.0
    assert samples["exposed_comm_ms.1 MiB"] == {"unit": "ms", "values": [[3.0, 5.0], [1.0, 29.0], [49.0, 6.0]]}


def test_no_communication_gives_no_numbers():
    process = good_process()
    process.traces["1 MiB"]["comm_ms"] = [0.0, 0.0]
    assert recorded([process], ["1 MiB"])[0]["exposed_comm_ms"] == {}


def test_the_quietest_step_bounds_what_the_ranks_sent():
    rows = step_rows("1 MiB", [[0.1]], loopback=900) + step_rows("1 MiB", [[0.1]], loopback=800)
    assert loopback_per_rank_bytes(rows, "1 MiB", world_size=2) == 400
    assert loopback_seen([Process(rows=rows)], ["1 MiB", "m8a1"], world_size=2) == {"1 MiB": 400}
    assert loopback_seen([Process(rows=step_rows("1 MiB", [[0.1]]))], ["1 MiB"], world_size=2) == {}


def events(rows):
    return pd.DataFrame([{"cls": cls, "start_ns": int(start * 1e6), "dur_ns": int((end - start) * 1e6),
                          "bytes": size} for cls, start, end, size in rows]).astype({"bytes": "Int64"})


def test_first_communication_by_hand():
    # Compute 10..14 and 12..16 (union 6), 20..24 (4). Communication from 15: 5 ms from the start, 5 of 10 ms before it.
    frame = events([("compute", 10, 14, None), ("compute", 12, 16, None), ("comm", 15, 21, 2**21),
                    ("compute", 20, 24, None), ("comm", 22, 30, None)])
    assert before_first_comm(frame) == {"first_comm_ms": 5.0, "compute_before_comm_pct": 50.0}
    quiet = before_first_comm(events([("compute", 0, 1, None)]))
    assert quiet == {"first_comm_ms": None, "compute_before_comm_pct": None}


def test_a_timeline_shows_how_busy_each_interval_is():
    # 200 ms in 200 intervals. Compute: the first half of each of the first 100. Communication: 50..150.
    frame = events([*[("compute", i, i + 0.5, None) for i in range(100)], ("comm", 50, 150, 2**21),
                    ("memory", 199, 200, None)])
    drawn = timeline(frame)
    assert drawn["bin_ms"] == 1.0 and drawn["collectives"] == [[50.0, 150.0, 2.0]]
    assert drawn["compute_pct"] == [50] * 100 + [0] * 100
    assert drawn["comm_pct"] == [0] * 50 + [100] * 100 + [0] * 50
    assert drawn["exposed_pct"] == [0] * 50 + [50] * 50 + [100] * 50 + [0] * 50
    assert timeline(frame[:0])["compute_pct"] == []


def test_a_half_busy_interval_is_drawn_paler_than_a_busy_one():
    work = {"bin_ms": 2.0, "compute_pct": [50, 50, 100], "comm_pct": [0, 100, 100], "exposed_pct": [0, 20, 100]}
    compute, beside, alone = timeline_figure({"1 MiB": {"0": work}, "m8a1": {"0": work}}).data
    assert (list(compute.base), list(compute.x), list(compute.marker.opacity)) == ([0.0, 4.0], [4.0, 2.0], [0.5, 1.0])
    assert (list(beside.base), list(beside.x)) == ([2.0], [2.0]) and (list(alone.base), list(alone.x)) == ([4.0], [2.0])


def test_rank_files_are_read_or_refused_by_name(tmp_path):
    with pytest.raises(UnreadableInput, match=r"no rank<k>\.jsonl"):
        read_ranks(tmp_path)
    (tmp_path / "rank10.jsonl").write_text(json.dumps({"kind": "end", "rank": 10}) + "\n")
    (tmp_path / "rank2.jsonl").write_text(json.dumps({"kind": "end", "rank": 2}) + "\n")
    assert [row["rank"] for row in read_ranks(tmp_path)] == [2, 10]
    (tmp_path / "rank2.jsonl").write_text('{"kind": "end", "rank": 2}\n{"kind": "st')
    with pytest.raises(UnreadableInput, match=r"rank2\.jsonl line 2: expected a JSON object"):
        read_ranks(tmp_path)


def test_prediction_of_the_report():
    found = ddp_prediction(world_size=8)
    assert found["bucket_count"] == {"1 MiB": 50, "4 MiB": 37, "25 MiB": 13, "100 MiB": 4}
    assert {case: round(mib, 2) for case, mib in found["bucket_max_mib"].items()} == {
        "1 MiB": 93.75, "4 MiB": 95.26, "25 MiB": 95.26, "100 MiB": 108.05}
    assert list(found["accum_collectives"].values()) == [13, 13, 104] and tuple(found["accum_collectives"]) == VARIANTS
    assert found["no_sync_partial_collectives"] == {"forward": 0, "backward": 13}
    assert found["initial_bucket_sizes_bytes"]["1 MiB"] == [439769088]
    assert found["wire_bytes_per_rank"]["4 MiB"] == 439769088 * 7 / 4
    assert all(sum(sizes) == found["gradient_bytes"] for sizes in found["bucket_sizes_bytes"].values())


def test_prediction_refuses_what_it_cannot_mean():
    with pytest.raises(ValueError, match="accum_cap_mib=3: expected one of caps_mib"):
        ddp_prediction(accum_cap_mib=3)
    with pytest.raises(ValueError, match="samples_per_rank"):
        ddp_prediction(samples_per_rank=0)


def test_ready_order_keeps_every_name_once():
    names = [name for name, _ in tinygpt_parameters(num_layers=3, tied=False, linear_bias=True)]
    order = gradient_ready_order(names=names)
    assert sorted(order) == sorted(names) and order[0] == "head.weight" and order[-1] == "tok.weight"
    assert order.index("lnf.weight") + 1 == order.index("lnf.bias")


def test_flop_per_token_by_hand():
    # One block of width 2, vocabulary 3, two tokens: 48 weights + 6 for the head, 6 FLOP each; attention 6 * 2 * 2.
    assert train_flop_per_token(num_layers=1, hidden=2, vocab_size=3, seq_tokens=2) == 6 * 54 + 24


def test_the_bound_is_between_rounding_and_any_real_fault():
    bound = rounding_bound(num_layers=12, hidden=768, vocab_size=32000, num_tokens=16 * 512)
    assert 1e-5 < bound < 1 / 128, "one sample of a batch of 128 lost would change the gradient by more than that"


def test_the_transfer_figure_separates_bytes_from_calls():
    """Times made from 1.5 ms for the bytes and 20 us a call must give those two numbers back."""
    counts = {"1 MiB": 50, "4 MiB": 37, "25 MiB": 13, "100 MiB": 4}
    fig = transfer(counts, {cap: 1.5 + 0.02 * count for cap, count in counts.items()}, floor_ms=1.4)
    assert fig.layout.title.text == "Each collective adds 20 µs to 1.50 ms for the bytes"
    assert list(fig.data[0].text) == ["1 MiB", "4 MiB", "25 MiB", "100 MiB"]
    with pytest.raises(ValueError, match="grow"):
        transfer(counts, dict.fromkeys(counts, 1.5))


def test_a_cap_is_called_fastest_only_if_no_range_reaches_it():
    rate = lambda value, n=60: {"value": value, "p10": value - 5, "p90": value + 5, "n": n}  # noqa: E731
    title = lambda rates: tokens_per_s(rates, name="x").layout.title.text  # noqa: E731
    assert title({"1 MiB": rate(100), "4 MiB": rate(89), "m8a1": rate(900)}) == "A cap of 1 MiB is fastest"
    assert title({"1 MiB": rate(100), "4 MiB": rate(91)}).startswith("No cap is fastest")
    assert title({"1 MiB": rate(100, n=1), "4 MiB": rate(50, n=1)}) == "Too few samples to rank the caps"
