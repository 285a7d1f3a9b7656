"""Lines of the launch lab: costs that went in must come out; what is planted must be noticed."""

import pytest

from labkit.analyze import launch_chain as analyze
from tests.launch_lines import LENGTHS, OPS, SIZES, VARIANTS, lines_of, wall_us, write_run

PARAMS = {"sizes": list(SIZES), "lengths": list(LENGTHS), "variants": list(VARIANTS), "compile_lengths": [8, 32],
          "compile_sizes": [16], "num_processes": 2}  # fmt: skip
COSTS = {"sizes": SIZES, "lengths": LENGTHS, "variants": VARIANTS,
         "costs_us": {"op": 4.0, "node": 1.5, "graph": 8.0, "kernel": 6.0, "compiled": 7.0}}  # fmt: skip
PREDICTED = analyze.prediction(**COSTS, bytes_per_s=4e12, is_asynchronous=True)


def results_of(tmp_path, lines=lines_of):
    write_run(tmp_path, lines=lines)
    found = analyze.read_lines(tmp_path)
    return found, analyze.results(found, PREDICTED, SIZES, LENGTHS, is_asynchronous=True)


def judged(tmp_path, lines=lines_of):
    found, results = results_of(tmp_path, lines)
    return {oracle.name: oracle for oracle in analyze.oracles(PARAMS, found, results, PREDICTED)}


def test_prediction_by_hand():
    """2^22 FP32 elements move 33.6 MB: 8.39 us at 4 TB/s, more than the 4 us of a launch; 16 elements move nothing."""
    big = 8 * 4194304 / 4e12 * 1e6
    assert PREDICTED["time_us"]["eager"]["16"]["32"] == pytest.approx(128)
    assert PREDICTED["time_us"]["eager"]["4194304"]["32"] == pytest.approx(32 * big)
    assert PREDICTED["time_us"]["paired"]["16"]["1"] == pytest.approx(4)
    assert PREDICTED["time_us"]["graph"]["16"]["32"] == pytest.approx(48)
    assert PREDICTED["time_us"]["graph"]["16"]["1"] == pytest.approx(8), "a graph of one node still costs its launch"
    assert PREDICTED["time_us"]["kernel"]["4194304"]["32"] == pytest.approx(big)
    assert PREDICTED["time_us"]["kernel"]["16"]["32"] == 6 and PREDICTED["time_us"]["compiled"]["16"]["8"] == 7
    assert PREDICTED["hiding_elements"] == pytest.approx(2e6)
    assert PREDICTED["ops"]["paired"] == {"1": 1, "2": 1, "8": 4, "32": 16}


def test_on_a_cpu_launch_and_work_add_up():
    found = analyze.prediction(**{**COSTS, "variants": ("eager", "paired", "compiled")}, bytes_per_s=2e10,
                               is_asynchronous=False)  # fmt: skip
    work = 8 * 4194304 / 2e10 * 1e6
    assert found["time_us"]["eager"]["4194304"]["8"] == pytest.approx(8 * (4 + work))
    assert found["time_us"]["compiled"]["4194304"]["8"] == pytest.approx(7 + work)
    assert found["hiding_elements"] is None


def test_costs_that_went_in_come_out(tmp_path):
    _, results = results_of(tmp_path)
    assert results["op_us"] == pytest.approx(4) and results["node_us"] == pytest.approx(1.5)
    assert results["fit"]["eager"]["16"] == {"fixed_us": pytest.approx(2), "step_us": pytest.approx(4)}
    assert results["fit"]["eager"]["4194304"]["step_us"] == pytest.approx(40)
    assert results["fit"]["kernel"]["16"] == {"fixed_us": pytest.approx(11), "step_us": pytest.approx(0)}
    assert results["hidden_from_elements"] == 4194304
    assert results["break_even_steps"] == pytest.approx((51 - 2) / 4)
    assert results["speedup"]["graph"]["16"]["32"] == pytest.approx(130 / 53, abs=1e-4)
    assert results["time_us"]["eager"]["16"]["32"]["n"] == 40
    assert results["residual_pct"]["eager"]["16"]["32"] == pytest.approx(100 * (130 / 128 - 1), abs=0.01)
    assert results["issue_us"]["paired"]["16"]["32"] == 64
    assert results["compile_s"] == {"16 8": 3.0}


def test_the_run_s_own_costs_give_the_other_chains(tmp_path):
    """Read off: 6 us an operator (2 of them fixed), 6.5 us a graph, 1.5 a node, 11 a kernel, 51 compiled, 40 us of
    work for 2^22 elements. 32 small steps one by one would then take 192 us and took 130.
    """
    _, results = results_of(tmp_path)
    costs = results["own_costs"]["costs_us"]
    assert costs == {"op": 6.0, "node": pytest.approx(1.5), "graph": 6.5, "kernel": 11.0, "compiled": 51.0}
    assert results["own_costs"]["bytes_per_s"] == pytest.approx(8 * 4194304 / (1282 / 32 * 1e-6))
    assert results["own_residual_pct"]["eager"]["16"]["32"] == pytest.approx(100 * (130 / 192 - 1), abs=0.01)
    assert results["own_residual_pct"]["eager"]["16"]["1"] == 0.0
    assert results["own_residual_pct"]["graph"]["16"]["32"] == pytest.approx(100 * (53 / 48 - 1), abs=0.01)
    assert analyze.own_costs({}, SIZES, LENGTHS) is None


def test_launches_that_stay_visible_have_no_size(tmp_path):
    _, results = results_of(tmp_path, lambda p: lines_of(p, time=lambda v, s, n: wall_us(v, 16, n)))
    assert results["hidden_from_elements"] is None


def test_compiling_that_never_pays_has_no_break_even():
    lines = {"eager": {"16": {"fixed_us": 1.0, "step_us": 1.0}}, "compiled": {"16": {"fixed_us": 50.0, "step_us": 2.0}}}
    assert analyze.break_even(lines, "16") is None and analyze.break_even({}, "16") is None


def test_oracles_pass_on_good_lines(tmp_path):
    seen = judged(tmp_path)
    assert all(oracle.passed for oracle in seen.values()), [o for o in seen.values() if not o.passed]
    assert {"same_bits", "closed_form", "every_chain_checked", "ops_dispatched", "processes_ended",
            "every_chain_accounted", "longer_takes_longer", "kernels_graph", "kernels_kernel"} <= set(seen)  # fmt: skip


def changed(kind, variant=None, **values):
    def lines(process):
        return [{**line, **values} if line["kind"] == kind and variant in (None, line.get("variant")) else line
                for line in lines_of(process)]  # fmt: skip

    return lines


@pytest.mark.parametrize(("name", "lines"), [
    ("same_bits", changed("exact", num_bad=1)),
    ("closed_form", changed("closed_form", num_bad=1)),
    ("every_chain_checked", lambda p: [x for x in lines_of(p) if x["kind"] != "closed_form" or x["length"] != 2]),
    ("ops_dispatched", changed("ops", "paired", count=32)),
    ("ops_dispatched", lambda p: [x for x in lines_of(p) if x["kind"] != "ops"]),
    ("processes_ended", lambda p: lines_of(p)[:-1] if p else lines_of(p)),
    ("every_chain_accounted", lambda p: [x for x in lines_of(p) if x["kind"] != "timing" or x["variant"] != "graph"]),
    ("longer_takes_longer", lambda p: lines_of(p, time=lambda v, s, n: 5.0)),
    ("kernels_kernel", changed("kernels", "kernel", kernels=2)),
])  # fmt: skip
def test_oracles_notice(tmp_path, name, lines):
    assert not judged(tmp_path, lines)[name].passed


def test_a_refused_variant_is_accounted_for(tmp_path):
    def lines(process):
        out = [x for x in lines_of(process) if x.get("variant") != "compiled"]
        return [*out, *({"kind": "refusal", "what": "compiled", "size": 16, "length": n, "error": "no compiler"}
                        for n in (8, 32))]  # fmt: skip

    assert judged(tmp_path, lines)["every_chain_accounted"].passed


def test_samples_keep_processes_apart(tmp_path):
    found, _ = results_of(tmp_path)
    kept = analyze.samples(found)["eager 16 32"]
    assert kept == {"unit": "us", "values": [[130.0] * 20, [130.0] * 20]}
    assert OPS["paired"](3) == 2
