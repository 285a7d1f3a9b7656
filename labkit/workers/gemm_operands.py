"""Operands of dense and grouped products, and the library call that multiplies them.

A case is a shape (K x N) and a kind:

    fp32, bf16     torch.mm. On a CPU the weight is the left operand, W (N, K) times the rows transposed: MKL then does
                   not repack the weight for a few rows
    fp32_linear    torch.mm(rows, W.t()) on a CPU, as torch.nn.functional.linear calls it
    fp8            torch._scaled_mm of float8_e4m3fn into bf16, one scale for each operand, fast accumulation

Weights are stored (N, K) as in a linear layer. Several copies rotate, so that a call does not find its weight in cache.
"""

# pyright: reportPrivateImportUsage=false
# (the products of narrow dtypes have no public name yet)
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

DTYPES = {
    "fp32": (torch.float32, torch.float32),
    "fp32_linear": (torch.float32, torch.float32),
    "bf16": (torch.bfloat16, torch.bfloat16),
    "fp8": (torch.float8_e4m3fn, torch.bfloat16),
}
"""Kind -> dtype of both operands, dtype of the result."""
ROW_BUFFERS = 3


def parse_shape(text: str) -> tuple[str, int, int]:
    """`gate_up 7168x4096` -> name, K, N."""
    name, size = text.split()
    k, n = (int(part) for part in size.split("x"))
    return name, k, n


def num_copies(weight_bytes: int, *, cache_bytes: int) -> int:
    """Weights to rotate over: more than four times the cache in all, at least 2."""
    return max(2, -(-4 * cache_bytes // weight_bytes) + 1)


def fill(tensor: torch.Tensor, generator: torch.Generator, *, integers: bool) -> torch.Tensor:
    """Standard normal numbers, or -1, 0 and 1, rounded to the tensor's dtype; filled in parts to save memory."""
    flat = tensor.view(-1)
    for first in range(0, flat.numel(), 2**25):
        part = flat[first : first + 2**25]
        size, device = (part.numel(),), tensor.device
        part.copy_(torch.randint(-1, 2, size, generator=generator, device=device) if integers
                   else torch.randn(size, generator=generator, device=device))  # fmt: skip
    return tensor


def scaled_product(a: torch.Tensor, w: torch.Tensor, one: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """FP8 product with one scale for each operand, fast accumulation, into `out`."""
    return torch._scaled_mm(a, w, one, one, out_dtype=out.dtype, use_fast_accum=True, out=out)


class Dense:
    """One weight shape in one kind; `call(rows, index)` multiplies `rows` rows by the copy that `index` selects."""

    def __init__(
        self, shape: str, kind: str, *, max_rows: int, device: str, cache_bytes: int, seed: int, copies: int = 0,
    ) -> None:  # fmt: skip
        self.name, self.k, self.n = parse_shape(shape)
        self.kind, self.device, self.case = kind, device, f"{self.name} {kind}"
        self.in_dtype, self.out_dtype = DTYPES[kind]
        self.generator = torch.Generator(device=device)
        self.generator.manual_seed(seed)
        weight = torch.empty(self.n, self.k, dtype=self.in_dtype, device=device)
        count = copies or num_copies(weight.nbytes, cache_bytes=cache_bytes)
        self.weights = [weight, *(torch.empty_like(weight) for _ in range(count - 1))]
        self.rows = [torch.empty(max_rows, self.k, dtype=self.in_dtype, device=device) for _ in range(ROW_BUFFERS)]
        self.one = torch.ones((), dtype=torch.float32, device=device)
        self.weight_is_left = device == "cpu" and kind in ("fp32", "bf16")
        self.outs: dict[int, torch.Tensor] = {}

    def load(self, *, integers: bool = False) -> None:
        """New values in every buffer; the copies of a weight hold the same ones, which no cache can know.

        Integers are for checks of index 0 only, and go only there.
        """
        fill(self.weights[0], self.generator, integers=integers)
        for copy in self.weights[1:] if not integers else []:
            copy.copy_(self.weights[0])
        for rows in self.rows[:1] if integers else self.rows:
            fill(rows, self.generator, integers=integers)

    def call(self, rows: int, index: int) -> torch.Tensor:
        """C of (rows, N), or its transpose where the weight is the left operand."""
        a, w = self.rows[index % ROW_BUFFERS][:rows], self.weights[index % len(self.weights)]
        out = self.out(rows)
        if self.kind == "fp8":
            return scaled_product(a, w.t(), self.one, out)
        return torch.mm(w, a.t(), out=out) if self.weight_is_left else torch.mm(a, w.t(), out=out)

    def graph(self, rows: int, count: int) -> Callable[[int], None]:
        """A replay of `count` calls captured one behind the other, each with the next copies (CUDA)."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.call(rows, 0)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            for index in range(count):
                self.call(rows, index)
        return lambda _: captured.replay()

    def out(self, rows: int) -> torch.Tensor:
        """The buffer of the result: a fresh one for each call would cost page faults on a CPU."""
        if rows not in self.outs:
            size = (self.n, rows) if self.weight_is_left else (rows, self.n)
            self.outs[rows] = torch.empty(size, dtype=self.out_dtype, device=self.device)
        return self.outs[rows]

    def result(self, rows: int, index: int) -> torch.Tensor:
        """C of (rows, N), whichever way it was computed."""
        out = self.call(rows, index)
        return out.t() if self.weight_is_left else out

    def operands(self, rows: int, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A (rows, K) and W (N, K) of the same call."""
        return self.rows[index % ROW_BUFFERS][:rows], self.weights[index % len(self.weights)]

    def bytes_of_call(self, rows: int) -> int:
        """Bytes of the three arrays of a call, from the tensors themselves."""
        a, w = self.operands(rows, 0)
        return a.nbytes + w.nbytes + self.result(rows, 0).nbytes


class Grouped:
    """One weight for each of several experts: one grouped call, or a loop of products, over rows sorted by expert."""

    def __init__(
        self, shape: str, kind: str, *, num_experts: int, max_rows: int, device: str, cache_bytes: int, seed: int
    ) -> None:
        self.name, self.k, self.n = parse_shape(shape)
        self.kind, self.device, self.num_experts = kind, device, num_experts
        self.case = f"{self.name} {kind}"
        self.in_dtype, self.out_dtype = DTYPES[kind]
        self.generator = torch.Generator(device=device)
        self.generator.manual_seed(seed)
        weight = torch.empty(num_experts, self.n, self.k, dtype=self.in_dtype, device=device)
        count = 1 if weight.nbytes > 4 * cache_bytes else num_copies(weight.nbytes, cache_bytes=cache_bytes)
        self.weights = [weight, *(torch.empty_like(weight) for _ in range(count - 1))]
        total = max_rows * num_experts
        self.rows = torch.empty(total, self.k, dtype=self.in_dtype, device=device)
        self.one = torch.ones((), dtype=torch.float32, device=device)
        self.row_scales = torch.ones(total, dtype=torch.float32, device=device)
        self.weight_scales = torch.ones(num_experts, self.n, dtype=torch.float32, device=device)

    def load(self, *, integers: bool = False) -> None:
        """New values in every buffer; integers only where index 0 reads."""
        fill(self.weights[0], self.generator, integers=integers)
        for copy in self.weights[1:] if not integers else []:
            copy.copy_(self.weights[0])
        fill(self.rows, self.generator, integers=integers)

    def offsets(self, counts: Sequence[int]) -> torch.Tensor:
        """End of each expert's rows, int32 on the device."""
        return torch.tensor(counts, device=self.device).cumsum(0).to(torch.int32)

    def parts(self, counts: Sequence[int], weights: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """A (rows of the expert, K) and W (N, K) of each expert."""
        ends = [sum(counts[: i + 1]) for i in range(len(counts))]
        return [(self.rows[end - c : end], weights[e]) for e, (c, end) in enumerate(zip(counts, ends))]

    def grouped(self, counts: Sequence[int]) -> Callable[[int], torch.Tensor]:
        """A call that multiplies all experts' rows at once; the argument selects the copy of the weights."""
        offsets, a = self.offsets(counts), self.rows[: sum(counts)]
        copies: list[Any] = [w.transpose(-2, -1) for w in self.weights]
        if self.kind == "fp8":
            scales = self.row_scales[: sum(counts)], self.weight_scales
            return lambda i: torch._scaled_grouped_mm(
                a, copies[i % len(copies)], *scales, offs=offsets, out_dtype=self.out_dtype, use_fast_accum=True)
        return lambda i: torch._grouped_mm(a, copies[i % len(copies)], offs=offsets)

    def loop(self, counts: Sequence[int]) -> Callable[[int], torch.Tensor]:
        """A call that multiplies expert by expert."""
        out = torch.empty(sum(counts), self.n, dtype=self.out_dtype, device=self.device)
        ends = [sum(counts[: i + 1]) for i in range(len(counts))]
        spans = [(e, end - c, end) for e, (c, end) in enumerate(zip(counts, ends)) if c]

        def run(index: int) -> torch.Tensor:
            weights = self.weights[index % len(self.weights)]
            for expert, begin, end in spans:
                a, w = self.rows[begin:end], weights[expert].t()
                if self.kind == "fp8":
                    scaled_product(a, w, self.one, out[begin:end])
                else:
                    torch.mm(a, w, out=out[begin:end])
            return out

        return run
