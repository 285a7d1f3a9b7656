"""RMSNorm's backward pass: kernels compiled for GPUs not here, the reference, and the checker against faults."""

import math
import re

import pytest
import torch

from labkit.workers import rmsnorm_check, rmsnorm_grad, rmsnorm_grad_kernels, rmsnorm_wide, rmsnorm_wide_kernels
from labkit.workers import rmsnorm_grad_check as checker
from labkit.workers import rmsnorm_grad_tune as search
from labkit.workers.rmsnorm_fast import grid_of

POINTERS = ("x_ptr", "w_ptr", "y_ptr", "dy_ptr", "dx_ptr", "dw_ptr")
FP32 = ("rstd_ptr", "part_ptr", "dots_ptr")


def _ptx(kernel, constants, *, num_warps, capability=90):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    names = kernel.arg_names
    kinds = {**dict.fromkeys(POINTERS, "*bf16"), **dict.fromkeys(FP32, "*fp32"), "eps": "fp32"}
    source = ASTSource(
        fn=kernel, signature={n: "constexpr" if n in constants else kinds.get(n, "i32") for n in names},
        constexprs={(names.index(n),): value for n, value in constants.items()},
        attrs={(names.index(n),): [["tt.divisibility", 16]] for n in names if n.endswith("_ptr")},
    )  # fmt: skip
    made = compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": num_warps})
    assert "cubin" in made.asm
    return made.asm["ptx"]


GRAD = {"UNIT": 8, "ROWS": 1, "GROUP": 0, "KEEP_W": True}
WIDE = {"BLOCK": 4096, "CHUNKS": 2, "VEC": 8}
WIDE_GRAD = {"LANES": 32, "BLOCK": 2048, "STAGES": 1, "VEC": 8}
ALIGNED_ROWS = {"HIDDEN": 131072, "SPLITS": 16, "MODE": 0}
ODD_ROWS = {"HIDDEN": 65537, "SPLITS": 9, "MODE": 1}
COMPILED = {
    "grad 8192": (rmsnorm_grad_kernels.rmsnorm_grad, {**GRAD, "HIDDEN": 8192, "BLOCK": 8192, "STAGES": 1,
                                                      "PART": 8192}, 16),
    "grad 5000": (rmsnorm_grad_kernels.rmsnorm_grad, {**GRAD, "HIDDEN": 5000, "BLOCK": 8192, "STAGES": 1,
                                                      "PART": 5000}, 16),
    "grad shifted 4095": (rmsnorm_grad_kernels.rmsnorm_grad_shifted, {
        "HIDDEN": 4095, "BLOCK": 4096, "STAGES": 1, "VEC": 8, "GROUP": 0, "PART": 4096}, 8),
    "wide squares": (rmsnorm_wide_kernels.rmsnorm_wide_squares, {**WIDE, **ALIGNED_ROWS}, 8),
    "wide scale": (rmsnorm_wide_kernels.rmsnorm_wide_scale, {**WIDE, **ALIGNED_ROWS, "LANES": 16}, 8),
    "wide dots": (rmsnorm_wide_kernels.rmsnorm_wide_dots, {**WIDE, **ALIGNED_ROWS}, 8),
    "wide grad": (rmsnorm_wide_kernels.rmsnorm_wide_grad, {**WIDE_GRAD, **ALIGNED_ROWS, "BLOCKS": 64,
                                                           "PART": 131072}, 4),
    "odd wide squares": (rmsnorm_wide_kernels.rmsnorm_wide_squares, {**WIDE, **ODD_ROWS}, 8),
    "odd wide grad": (rmsnorm_wide_kernels.rmsnorm_wide_grad, {**WIDE_GRAD, **ODD_ROWS, "BLOCKS": 33,
                                                               "PART": 65540}, 4),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize("case", COMPILED)
def test_compiles_with_16_byte_loads(case, tmp_path, monkeypatch):
    """Where rows are aligned nothing is narrow; odd rows have narrow weights and row ends only."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel, constants, num_warps = COMPILED[case]
    ptx = _ptx(kernel, constants, num_warps=num_warps)
    wide, narrow = len(re.findall(r"ld\.global\S*\.v4\.b32", ptx)), len(re.findall(r"ld\.global\S*\.b16", ptx))
    assert wide > 0
    assert narrow == 0 or "shifted" in case or case == "odd wide grad"
    if "squares" not in case and "dots" not in case:
        assert re.search(r"st\.global\S*\.v4\.b32", ptx)


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
def test_the_compiler_must_be_told_where_rows_start(tmp_path, monkeypatch):
    """CAREFUL, which promises nothing about addresses, has only 2-byte loads: the other modes do earn their hints."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    ptx = _ptx(rmsnorm_wide_kernels.rmsnorm_wide_squares, {**WIDE, **ALIGNED_ROWS, "MODE": 2}, num_warps=8)
    assert not re.search(r"ld\.global\S*\.v4\.b32", ptx)


# Settings


@pytest.mark.parametrize("hidden", [1, 7, 8, 9, 64, 768, 769, 1024, 4095, 4096, 5000, 8191, 8192, 16384])
@pytest.mark.parametrize("elem_bytes", [2, 4])
def test_every_row_length_has_a_setting_that_holds_it(hidden, elem_bytes):
    is_aligned = hidden * elem_bytes % 16 == 0
    config = rmsnorm_grad.choose_grad(rows=65536, hidden=hidden, elem_bytes=elem_bytes, is_aligned=is_aligned,
                                      num_sms=132)  # fmt: skip
    whole = hidden if config.kind == "grad" else hidden // (16 // elem_bytes) * (16 // elem_bytes)
    assert config.block >= whole and config.block == 1 << (config.block.bit_length() - 1)
    assert 1 <= config.num_warps <= 32 and config.label()
    assert all(c.label() for c in search.grad_candidates(hidden))


def test_a_gpu_with_less_shared_memory_falls_back(monkeypatch):
    """The rule's setting asks for more shared memory than there is: one tile at a time, and the same call succeeds."""
    from triton.runtime.errors import OutOfResources

    tried = []

    def run(config, *args, **more):
        tried.append((config.stages, config.keep_w))
        if config.stages > 1:
            raise OutOfResources(196608, 101376, "shared memory")

    monkeypatch.setattr(rmsnorm_grad, "run_grad", run)
    x, w, rstd = torch.zeros(3, 16384).bfloat16(), torch.ones(16384).bfloat16(), torch.ones(3)
    rmsnorm_grad.rmsnorm_backward(x, x, w, rstd)
    assert tried == [(3, False), (1, True)]
    with pytest.raises(OutOfResources):  # a setting that was asked for by name is not exchanged
        rmsnorm_grad.rmsnorm_backward(x, x, w, rstd, config=rmsnorm_grad.GradConfig("grad", 16384, 16, stages=2))


@pytest.mark.parametrize("rows", [1, 7, 8, 100, 8192, 131072])
@pytest.mark.parametrize(("multiple", "group"), [(1, 0), (1, 1), (8, 0), (8, 8), (1, 4)])
def test_every_row_belongs_to_one_program(rows, multiple, group):
    """The order of `rows_of_program`, walked here; with a multiple, the rows of a program have one remainder."""
    programs, each = grid_of(rows, 132, multiple=multiple, group=group)
    seen = []
    for program in range(programs):
        if group:
            begin = program // group * (group * each)
            mine = range(begin + program % group, min(rows, begin + group * each), group)
        else:
            mine = range(program, rows, programs)
        assert len({row % multiple for row in mine}) <= 1
        seen += mine
    assert sorted(seen) == list(range(rows))
    config = rmsnorm_grad.GradConfig("shifted" if multiple == 8 else "grad", 64, num_warps=1, per_sm=1, group=group)
    longest = max((len(range(p, rows, programs)) if not group else each) for p in range(programs))
    assert rmsnorm_grad.sum_depth(config, rows=rows, elem_bytes=2, num_sms=132) > longest + programs / 128


def test_ways_of_alignment():
    def tensor(rows, hidden, stride=None, offset=0, dtype=torch.float16):
        stride = stride or hidden
        return torch.empty(offset + rows * stride, dtype=dtype).as_strided((rows, hidden), (stride, 1), offset)

    names = {0: "aligned", 1: "covered", 2: "careful"}
    found = {name: names[rmsnorm_wide.mode(tensor(*args, **more))] for name, args, more in [
        ("whole vectors", (3, 64), {}), ("odd rows that end whole", (8, 67), {}), ("odd rows that do not", (5, 67), {}),
        ("odd start", (8, 64), {"offset": 1}), ("wider rows", (3, 64), {"stride": 72}),
        ("part of wider rows", (3, 60), {"stride": 64}), ("fp32", (4, 67), {"dtype": torch.float32}),
    ]}  # fmt: skip
    assert found == {
        "whole vectors": "aligned", "odd rows that end whole": "covered", "odd rows that do not": "careful",
        "odd start": "careful", "wider rows": "aligned", "part of wider rows": "careful", "fp32": "covered",
    }  # fmt: skip
    assert rmsnorm_wide.mode(tensor(8, 67), tensor(8, 67, stride=75)) == 2, "one stride, or no promise"


def test_bad_arguments_are_named():
    x, w, rstd = torch.zeros(3, 8), torch.ones(8), torch.ones(3)
    for args, message in [
        ((x[:2], x, w, rstd), r"dy=\(2, 8\), x=\(3, 8\)"), ((x, x, w[:7], rstd), r"w=\(7,\)"),
        ((x, x.half(), w, rstd), "dtypes torch.float32, torch.float16"), ((x, x, w, rstd.double()), "float64"),
        ((x, x, w, rstd[:2]), r"rstd \(2,\)"), ((x.T, x.T, torch.ones(3), torch.ones(8)), "unit columns"),
        ((x[:0], x[:0], w, rstd[:0]), "at least one row and one column"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=message):
            rmsnorm_grad.rmsnorm_backward(*args)
    with pytest.raises(ValueError, match="config='grad b4 "):
        rmsnorm_grad.rmsnorm_backward(x, x, w, rstd, config=rmsnorm_grad.GradConfig("grad", 4, num_warps=1))
    with pytest.raises(ValueError, match=r"x=\(0, 8\): expected at least one row"):
        rmsnorm_grad.rmsnorm(x[:0], w)
    with pytest.raises(ValueError, match="hidden=1048577: expected at most 1048576"):
        rmsnorm_wide.rmsnorm_wide(torch.zeros(1, 2**20 + 1), torch.ones(2**20 + 1))


# The reference


def test_reference_against_differences_of_the_forward_reference():
    """Central differences of sum(y dy) in float64, h = 1e-5: their own error is about h^2 and 1e-16 / h."""
    generator = torch.Generator().manual_seed(5)
    x, dy = (torch.randn(3, 7, generator=generator, dtype=torch.float64) for _ in range(2))
    w = torch.rand(7, generator=generator, dtype=torch.float64) + 0.5
    dx, terms, _ = checker.gradients(dy, x, w, eps=1e-3)

    def loss(x, w):
        return (rmsnorm_check.reference(x, w, eps=1e-3) * dy).sum().item()

    h = 1e-5
    for at in [(0, 0), (1, 3), (2, 6)]:
        step = torch.zeros_like(x)
        step[at] = h
        assert dx[at].item() == pytest.approx((loss(x + step, w) - loss(x - step, w)) / (2 * h), abs=1e-8)
    for at in (0, 6):
        step = torch.zeros_like(w)
        step[at] = h
        want = (loss(x, w + step) - loss(x, w - step)) / (2 * h)
        assert terms.sum(dim=0)[at].item() == pytest.approx(want, abs=1e-8)


def test_reference_by_hand():
    """Row (3, 4), w = 1, eps = 0, r = 1 / sqrt(12.5), dy = (1, 0): mean(g x^) = 1.5 r, dx = r (1 - 4.5 r^2, -6 r^2)."""
    dx, terms, r = checker.gradients(torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0, 4.0]]), torch.ones(2), eps=0.0)
    want = 1 / math.sqrt(12.5)
    assert r.item() == pytest.approx(want, rel=1e-15)
    assert dx[0].tolist() == pytest.approx([want * (1 - 4.5 / 12.5), -want * 6 / 12.5], rel=1e-14)
    assert terms[0].tolist() == pytest.approx([3 * want, 0.0], rel=1e-15)


def test_reference_is_pytorchs():
    generator = torch.Generator().manual_seed(6)
    x, dy = (torch.randn(4, 33, generator=generator, dtype=torch.float64) for _ in range(2))
    w = torch.rand(33, generator=generator, dtype=torch.float64)
    dx, terms, _ = checker.gradients(dy, x, w, eps=1e-5)
    x, w = x.requires_grad_(), w.requires_grad_()
    torch.nn.functional.rms_norm(x, (33,), w, 1e-5).backward(dy)
    assert x.grad is not None and w.grad is not None
    assert torch.allclose(dx, x.grad, rtol=1e-12, atol=1e-14)
    assert torch.allclose(terms.sum(dim=0), w.grad, rtol=1e-12, atol=1e-13)


# The checker: does it notice?


@pytest.fixture
def nearest(monkeypatch):
    """The rounding of a store is found out by a kernel; here plain torch stands for it."""
    monkeypatch.setattr(rmsnorm_check, "stores_round_to_nearest", lambda dtype, device: True)


def right(dy, x, w, rstd, *, dx, dw):
    found, terms, _ = checker.gradients(dy, x, w, eps=1e-6)
    dx.copy_(found.to(x.dtype))
    dw.copy_(terms.sum(dim=0).to(x.dtype))


def no_mean(dy, x, w, rstd, *, dx, dw):
    right(dy, x, w, rstd, dx=dx, dw=dw)
    dx.copy_((dy.double() * w.double() * rstd[:, None].double()).to(x.dtype))


def mean_of_one_less(dy, x, w, rstd, *, dx, dw):
    right(dy, x, w, rstd, dx=dx, dw=dw)
    want, _, r = checker.gradients(dy, x, w, eps=1e-6)
    normed, g = x.double() * r, dy.double() * w.double()
    dx.copy_((r * (g - normed * (g * normed).sum(dim=1, keepdim=True) / (x.shape[1] - 1))).to(x.dtype))
    del want


def last_row_not_in_dweight(dy, x, w, rstd, *, dx, dw):
    right(dy, x, w, rstd, dx=dx, dw=dw)
    _, terms, _ = checker.gradients(dy, x, w, eps=1e-6)
    dw.copy_(terms[:-1].sum(dim=0).to(x.dtype))


def weight_in_dweight(dy, x, w, rstd, *, dx, dw):
    right(dy, x, w, rstd, dx=dx, dw=dw)
    dw.mul_(w)


def dweight_not_written(dy, x, w, rstd, *, dx, dw):
    right(dy, x, w, rstd, dx=dx, dw=torch.empty_like(dw))


def changes_dy(dy, x, w, rstd, *, dx, dw):
    right(dy, x, w, rstd, dx=dx, dw=dw)
    dy.mul_(2)


def other_bits_each_time(dy, x, w, rstd, *, dx, dw, calls=[]):  # noqa: B006
    right(dy, x, w, rstd, dx=dx, dw=dw)
    calls.append(1)
    if len(calls) % 2:
        dw[0] = torch.nextafter(dw[0].float(), torch.tensor(9.0)) if dw.dtype == torch.float32 else dw[0]
        bits = rmsnorm_check.BITS[dw.dtype]
        dx.view(bits)[0, 0] += 1


FAULTS = {
    no_mean: "num_bad", mean_of_one_less: "num_bad", last_row_not_in_dweight: "num_bad", weight_in_dweight: "num_bad",
    dweight_not_written: "unwritten", changes_dy: "input_changed", other_bits_each_time: "bits_changed",
}  # fmt: skip


@pytest.mark.parametrize("kernel", [right, *FAULTS], ids=lambda kernel: kernel.__name__)
@pytest.mark.parametrize("dtype", list(checker.check.BITS), ids=str)
def test_checker_notices(nearest, kernel, dtype):
    generator = torch.Generator().manual_seed(3)
    seen = checker.check_gradients(kernel, 5, 40, dtype, device="cpu", generator=generator, eps=1e-6, depth=12)
    counts = ("num_bad", "unwritten", "guards_touched", "input_changed", "bits_changed")
    if kernel is right:
        assert [seen[name] for name in counts] == [0] * 5
        assert 0 < seen["dx_bound_used"] <= 1 and seen["dw_bound_used"] <= 1
    else:
        assert seen[FAULTS[kernel]] > 0


def test_exact_sums_notice_one_row_of_many(nearest):
    """Of 5,000 rows one is left out: far inside any bound on rounding, and still noticed."""
    generator = torch.Generator().manual_seed(4)
    place = {"device": "cpu", "generator": generator}

    def sums(dy, x, w, rstd, *, dx, dw):
        dw.copy_((dy.double() * x.double()).sum(dim=0).to(dw.dtype))

    def one_row_lost(dy, x, w, rstd, *, dx, dw):
        sums(dy[1:], x[1:], w, rstd[1:], dx=dx, dw=dw)

    assert checker.check_exact_sums(sums, 5000, 16, torch.float16, **place)["num_bad"] == 0
    assert checker.check_exact_sums(one_row_lost, 5000, 16, torch.float16, **place)["num_bad"] > 0


def nan_to_zero(dy, x, w, rstd, *, dx, dw):
    right(dy, x, w, rstd, dx=dx, dw=dw)
    dx.nan_to_num_(nan=0.0)


def nan_everywhere(dy, x, w, rstd, *, dx, dw):
    right(dy, x, w, rstd, dx=dx, dw=dw)
    if dx.isnan().any():
        dw.fill_(float("nan"))


@pytest.mark.parametrize("kernel", [right, nan_to_zero, nan_everywhere], ids=lambda kernel: kernel.__name__)
def test_special_rows(nearest, kernel):
    generator = torch.Generator().manual_seed(3)
    seen = checker.check_special(kernel, 60, torch.bfloat16, device="cpu", generator=generator, eps=1e-6, depth=12)
    assert bool(seen["rows_wrong"]) == (kernel is not right)


def test_bound_of_dx_by_hand(nearest):
    """One column, fp32, x = w = dy = 1, eps = 0: r = x^ = g = m = S = 1 and dx = 0; d = 1/32 + 32."""
    one = torch.ones(1, 1)
    d, u = 1 / 32 + 32, 2.0**-24
    dr = (d / 2 + 5.5) * u
    want = 1.01 * (u + (dr + u + (d + 6) * u) + (dr + 2 * u))
    assert checker.dx_bound(one, one, one[0], eps=1e-30).item() == pytest.approx(want, rel=1e-6)


def test_bound_of_dweight_by_hand(nearest):
    """fp16, sum 2, magnitudes 10, 32 columns, depth 100: sums first, then half an ulp of the cast."""
    u, v = 2.0**-24, 2.0**-11
    before = 1.01 * ((33 / 2 + 6.5) * u + u + 100 * u) * 10
    x = torch.ones(1, 32).half()
    sums, magnitudes = torch.tensor([2.0], dtype=torch.float64), torch.tensor([10.0], dtype=torch.float64)
    got = checker.dw_bound(sums, magnitudes, x, x[0], eps=1e-6, depth=100)
    assert got.item() == pytest.approx(before + v * (2 + before) + 2.0**-25, rel=1e-12)
