"""RMSNorm workers: kernels compiled for GPUs that are not here, the checker against planted faults, the baselines."""

import math
import re

import pytest
import torch

from labkit.workers import rmsnorm_baselines as baselines
from labkit.workers import rmsnorm_check as checker
from labkit.workers import rmsnorm_fast, rmsnorm_kernels, rmsnorm_timing, rmsnorm_tune

# Kernels, compiled


def _ptx(kernel, constants, *, capability, num_warps):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    names = kernel.arg_names
    kinds = {"x_ptr": "*fp16", "w_ptr": "*fp16", "y_ptr": "*fp16", "rstd_ptr": "*fp32", "eps": "fp32"}
    signature = {name: "constexpr" if name in constants else kinds.get(name, "i32") for name in names}
    source = ASTSource(
        fn=kernel, signature=signature, constexprs={(names.index(k),): v for k, v in constants.items()},
        attrs={(names.index(p),): [["tt.divisibility", 16]] for p in ("x_ptr", "w_ptr", "y_ptr")},
    )
    made = compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": num_warps})
    return made.asm["ptx"], "cubin" in made.asm


HINTS = {"EVICT_Y": "", "CACHE_Y": "", "SAVE": False}
COMPILED = {
    "loop 5000": ("rmsnorm_loop", {"HIDDEN": 5000, "UNIT": 8, "BLOCK": 4096, **HINTS}, 16),
    "tile 768": ("rmsnorm_tile", {"HIDDEN": 768, "UNIT": 8, "BLOCK": 1024, "ROWS": 2, "LATE_W": True, "EVICT_X": "",
                                  **HINTS}, 2),
    "shifted 4095": ("rmsnorm_shifted", {"HIDDEN": 4095, "BLOCK": 4096, "STAGES": 1, "VEC": 8, "GROUP": 0,
                                         "EVICT_X": "", **HINTS}, 8),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize("capability", [70, 80, 90])
@pytest.mark.parametrize("case", COMPILED)
def test_compiles_with_16_byte_loads_and_stores(case, capability, tmp_path, monkeypatch):
    """128 bits a thread at a hidden size of 5,000, which no power of two above 8 divides, and for odd rows."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    name, constants, num_warps = COMPILED[case]
    ptx, has_machine_code = _ptx(getattr(rmsnorm_kernels, name), constants, capability=capability, num_warps=num_warps)
    assert has_machine_code
    assert re.search(r"ld\.global\S*\.v4\.b32", ptx) and re.search(r"st\.global\S*\.v4\.b32", ptx)
    narrow_loads = len(re.findall(r"ld\.global\S*\.b16", ptx))
    # Odd rows: two scalar lanes for the ends of x and of w, and the weight, which sits at another alignment.
    assert narrow_loads == 0 or case.startswith("shifted")


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
def test_without_the_unit_5000_would_fall_to_narrow_loads(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    name, constants, num_warps = COMPILED["loop 5000"]
    ptx, _ = _ptx(getattr(rmsnorm_kernels, name), {**constants, "UNIT": 1}, capability=90, num_warps=num_warps)
    assert re.search(r"ld\.global\S*\.b16", ptx)


@pytest.mark.parametrize("hidden", [1, 7, 8, 9, 64, 768, 769, 1024, 1025, 2048, 4095, 5000, 8192, 16384, 16385, 40000])
@pytest.mark.parametrize("is_aligned", [True, False])
def test_choice_fits_every_row_length(hidden, is_aligned):
    config = rmsnorm_fast.choose(rows=131072, hidden=hidden, elem_bytes=2, is_aligned=is_aligned, num_sms=132)
    assert config.block == 1 << (config.block.bit_length() - 1) and 1 <= config.num_warps <= 32
    whole = hidden // 8 * 8 if config.kind == "shifted" else hidden
    assert config.kind == "loop" or config.block * (config.rows if config.kind == "persistent" else 1) >= whole
    if config.kind == "loop":
        vectors = config.block / (8 * 32 * config.num_warps)
        assert vectors in (1, 2), "16 bytes a thread, once or twice"
    assert all(c.label() for c in rmsnorm_tune.candidates(hidden))


# The checker: does it notice?


@pytest.fixture
def nearest(monkeypatch):
    """The rounding of a store is found out by a kernel; here plain torch stands for it."""
    monkeypatch.setattr(checker, "stores_round_to_nearest", lambda dtype, device: True)


def right(x, w, *, eps, out):
    out.copy_(checker.reference(x, w, eps=eps).to(x.dtype))


def no_eps(x, w, *, eps, out):
    right(x, w, eps=0.0, out=out)


def last_element_left(x, w, *, eps, out):
    right(x[:, :-1], w[:-1], eps=eps, out=out[:, :-1])


def one_too_far(x, w, *, eps, out):
    right(x, w, eps=eps, out=out)
    out.as_strided((1,), (1,), out.storage_offset() + out.numel()).zero_()


def halves_the_input(x, w, *, eps, out):
    right(x, w, eps=eps, out=out)
    x.mul_(0.5)


def two_ulps_off(x, w, *, eps, out):
    right(x, w, eps=eps, out=out)
    out.view(torch.int16)[0, 0] += 2


def nan_somewhere(x, w, *, eps, out):
    right(x, w, eps=eps, out=out)
    out[2, 2] = math.nan


def mean_of_the_wrong_count(x, w, *, eps, out):
    right(x, w, eps=eps, out=out)
    out.mul_((1 - 1 / x.shape[1]) ** 0.5)


FAULTS = {
    last_element_left: "unwritten", one_too_far: "guards_touched", halves_the_input: "input_changed",
    two_ulps_off: "num_bad", nan_somewhere: "num_bad", mean_of_the_wrong_count: "num_bad",
}  # fmt: skip


@pytest.mark.parametrize("kernel", [right, *FAULTS], ids=lambda k: k.__name__)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_checker_notices(nearest, kernel, dtype):
    generator = torch.Generator().manual_seed(3)
    seen = checker.check_case(kernel, 5, 40, dtype, device="cpu", generator=generator, eps=1e-6)
    if kernel is right:
        assert (seen["num_bad"], seen["unwritten"], seen["guards_touched"], seen["input_changed"]) == (0, 0, 0, 0)
        assert 0 < seen["bound_used"] <= 1
    else:
        assert seen[FAULTS[kernel]] > 0


@pytest.mark.parametrize("kernel", [right, no_eps, nan_somewhere], ids=lambda k: k.__name__)
def test_canary_rows(nearest, kernel):
    generator = torch.Generator().manual_seed(3)
    seen = checker.check_canaries(kernel, 60, torch.bfloat16, device="cpu", generator=generator, eps=1e-6)
    assert bool(seen["rows_wrong"]) == (kernel is not right)


def test_reference_is_the_formula_spelled_out():
    x, w = [3.0, 4.0], [1.0, 0.5]  # mean of squares 12.5
    got = checker.reference(torch.tensor([x]).half(), torch.tensor(w).half(), eps=0.0)
    assert got[0].tolist() == pytest.approx([3 / 12.5**0.5, 4 / 12.5**0.5 * 0.5], rel=1e-15)


def test_bound_is_one_rounding_plus_a_little(nearest):
    """At 1.0 in fp16: half an ulp (2^-11), the FP32 sums of 1,024 terms ((32 + 32) / 2 + 7 units of 2^-24) and eta."""
    bound = checker.error_bound(torch.ones(1, 1024, dtype=torch.float64), torch.ones(1024).half(), eps=1e-6)
    delta = 39 * 2.0**-24
    assert bound[0, 0].item() == pytest.approx(delta + 2.0**-11 * (1 + delta) + 2.0**-25, rel=1e-12)


def test_compiled_baseline_counts_recompilations():
    pytest.importorskip("torch._dynamo")
    x, w = torch.randn(4, 8), torch.ones(8)
    compiled = baselines.FreshCompile(x, w, 1e-6, backend="eager")
    assert torch.allclose(compiled(x, w, 1e-6), baselines.composite(x, w, 1e-6), atol=1e-6)
    assert not baselines.fell_back(compiled.state(), ["triton_red_fused"])
    compiled(x[:2], w, 1e-6)  # another shape: a second graph, no longer what was asked for
    assert baselines.fell_back(compiled.state(), ["triton_red_fused"])


@pytest.mark.parametrize(("graphs", "breaks", "names", "fell"), [
    (1, 0, ["triton_red_fused_0"], False), (1, 0, None, False), (2, 0, None, True), (0, 0, None, True),
    (1, 1, None, True), (1, 0, ["vectorized_layer_norm_kernel"], True),
])  # fmt: skip
def test_silent_fall_back(graphs, breaks, names, fell):
    assert baselines.fell_back({"unique_graphs": graphs, "graph_breaks": breaks}, names) is fell


def test_buffers_and_calls_walk_four_times_the_cache():
    for moved in (3_147_264, 60_000_000, 4_294_983_680):
        assert rmsnorm_timing.num_buffers(moved, l2_bytes=62_914_560) * moved > 4 * 62_914_560
        assert rmsnorm_timing.calls_per_sample(moved, l2_bytes=62_914_560) * moved >= 4 * 62_914_560
    assert rmsnorm_timing.rotated(["a", "b", "c"], 4) == ["b", "c", "a"]
