"""Operands, checks and clock of the product lab, on the CPU."""

import json

import pytest
import torch

from labkit.workers import gemm_bench as bench
from labkit.workers import gemm_check as check
from labkit.workers import gemm_operands as operands
from labkit.workers.gemm_timing import Clock
from labkit.workers.json_lines import JsonLines

COMMON = {"device": "cpu", "cache_bytes": 2**12, "seed": 3}


def dense(kind="bf16", **options):
    product = operands.Dense("tiny 96x40", kind, max_rows=9, **{**COMMON, **options})
    product.load()
    return product


@pytest.mark.parametrize("kind", ["fp32", "fp32_linear", "bf16"])
@pytest.mark.parametrize("rows", [1, 5, 9])
def test_result_is_the_product_spelled_out(kind, rows):
    """Every element as a sum over K in Python's own float, for integers: equal."""
    product = dense(kind)
    product.load(integers=True)
    a, w = product.operands(rows, 0)
    out = product.result(rows, 0)
    spelled = [[sum(x * y for x, y in zip(r, c)) for c in w.float().tolist()] for r in a.float().tolist()]
    assert torch.equal(out.float(), torch.tensor(spelled)) and out.shape == (rows, 40)
    assert check.wrong_integers(out, check.reference(a, w)) == 0


def test_weights_rotate_through_more_than_four_times_the_cache():
    assert operands.num_copies(100, cache_bytes=1000) == 41
    assert operands.num_copies(10**9, cache_bytes=1000) == 2
    product = dense()
    assert len(product.weights) * product.weights[0].nbytes > 4 * 2**12
    used = {product.operands(1, i)[1].data_ptr() for i in range(len(product.weights))}
    assert len(used) == len(product.weights)
    assert all(torch.equal(w, product.weights[0]) for w in product.weights)


@pytest.mark.parametrize("kind", ["fp32", "bf16"])
def test_checker_notices_one_wrong_element_a_lost_block_and_nan(kind):
    product = dense(kind)
    product.load(integers=True)
    a, w = product.operands(9, 0)
    good = product.result(9, 0).clone()
    off = good.clone()
    off[4, 7] += 1
    assert check.wrong_integers(off, check.reference(a, w)) == 1
    product.load()
    a, w = product.operands(9, 0)
    good, expected, sizes = product.result(9, 0).clone(), check.reference(a, w), check.term_sizes(a, w)
    judge = lambda out: check.judge_normal(out, expected, sizes, k=96, is_fp8=False, on_gpu=False)  # noqa: E731
    seen = judge(good)
    assert seen["num_bad"] == 0 and seen["bound_used"] < 1
    lost = (a[:, :80].float() @ w[:, :80].float().t()).to(good.dtype)
    assert judge(lost)["num_bad"] > 300
    broken = good.clone()
    broken[0, 0] = float("nan")
    assert judge(broken)["num_bad"] == 1


def test_bound_is_gamma_k_and_one_rounding():
    """K = 7168 in FP32: 7169 2^-24 of the sum of sizes, four times that on matrix units; nothing looser."""
    assert check.accumulation_bound(7168, on_gpu=False) == pytest.approx(7169 * 2**-24, rel=1e-3)
    assert check.accumulation_bound(7168, on_gpu=True) == pytest.approx(4 * 7169 * 2**-24, rel=3e-3)
    expected = torch.tensor([[1.0]], dtype=torch.float64)
    sizes = expected * 0
    within = {"k": 2, "is_fp8": False, "on_gpu": False}
    ulp = 2.0**-7  # of bf16 at 1; half of it is the largest rounding error
    assert check.judge_normal(torch.tensor([[1 + ulp]]).bfloat16(), expected, sizes, **within)["num_bad"] == 1
    assert check.judge_normal(torch.tensor([[1.0]]).bfloat16(), expected, sizes, **within)["num_bad"] == 0


def test_fp8_result_is_judged_as_a_whole():
    """Losing 64 of 7168 products changes the result by a tenth of its norm: more than the bound allows."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(8, 7168, generator=generator).to(torch.float8_e4m3fn)
    w = torch.randn(64, 7168, generator=generator).to(torch.float8_e4m3fn)
    expected, sizes = check.reference(a, w), check.term_sizes(a, w)
    judge = lambda out: check.judge_normal(out, expected, sizes, k=7168, is_fp8=True, on_gpu=True)  # noqa: E731
    assert judge(expected.bfloat16())["num_bad"] == 0 and judge(expected.bfloat16())["bound_used"] < 0.1
    lost = check.reference(a[:, 64:], w[:, 64:]).bfloat16()
    assert judge(lost)["num_bad"] == 1
    assert judge(expected.bfloat16() * float("nan"))["num_bad"] == 1


@pytest.mark.parametrize("counts", [[3, 3, 3], [7, 2, 0], [0, 0, 9]])
@pytest.mark.parametrize("kind", ["fp32", "bf16"])
def test_grouped_call_and_loop_give_each_expert_its_own_weight(kind, counts):
    group = operands.Grouped("tiny 96x40", kind, num_experts=3, max_rows=5, **COMMON)
    group.load(integers=True)
    parts = group.parts(counts, group.weights[0])
    assert [len(a) for a, _ in parts] == counts
    expected = torch.cat([check.reference(a, w) for a, w in parts])
    for call in (group.grouped(counts), group.loop(counts)):
        assert check.wrong_integers(call(0), expected) == 0
    assert not torch.equal(group.weights[0][0], group.weights[0][1])


def test_clock_rotates_when_cold_and_stays_when_warm():
    clock, seen = Clock("cpu"), []
    assert len(clock.samples(seen.append, 3)) == 3
    clock.samples(seen.append, 2)
    assert seen == [1, 2, 3, 4, 5, 6, 7], "one call more than samples, dropped"
    clock.samples(seen.append, 2, is_warm=True)
    assert seen[7:] == [0, 0, 0]


def test_a_slow_point_and_the_larger_ones_are_left_out(tmp_path):
    params = {
        "device": "cpu", "shapes": ["tiny 96x40"], "kinds": ["fp32"], "rows": [1, 2, 4], "warm_rows": [1],
        "graph_rows": [], "fine_rows": [], "grouped_kinds": [], "num_experts": 0, "grouped_rows": [1, 2], "seed": 0,
        "process": 1, "calls": 1, "few_calls": 1, "max_call_ms": 10.0, "check_rows": [1],
    }  # fmt: skip
    with open(tmp_path / "lines.jsonl", "w") as stream:
        clock = Clock("cpu")
        sweep = bench.Sweep(params, clock, JsonLines(stream))
        took = iter([1.0, 11.0, 1.0])
        clock.one = lambda call: next(took)
        kept = sweep.affordable()
    assert [(where["mode"], where["rows"]) for where, *_ in kept] == [("cold", 1), ("warm", 1)]
    lines = [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()]
    assert [(line["rows"], line["ms"]) for line in lines if line["kind"] == "left_out"] == [(2, 11.0), (4, None)]
