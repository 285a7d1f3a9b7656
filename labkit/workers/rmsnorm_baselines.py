"""What the kernels are measured against: F.rms_norm, the composite, torch.compile, Liger if installed, and copy_."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F


def native(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    """PyTorch's own RMSNorm of the last dimension."""
    return F.rms_norm(x, (x.shape[-1],), w, eps)


def composite(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm spelled out in separate operators, computed in FP32 and cast once: one kernel and one tensor a step."""
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.pow(2).mean(dim=-1, keepdim=True) + eps) * w.float()).to(x.dtype)


class FreshCompile:
    """`native` compiled for exactly one shape, with the counters that say whether it stayed compiled.

    Compiled code that meets too many variants falls back to eager without a word. So everything compiled before is
    dropped first (`torch._dynamo.reset`), shapes are static, and `state()` must still show one graph after the timing.
    """

    def __init__(
        self, x: torch.Tensor, w: torch.Tensor, eps: float, *, backend: str = "inductor", keeps_graph: bool = False
    ) -> None:
        import torch._dynamo as dynamo

        if keeps_graph:  # a backward pass that may reuse saved tensors as scratch can run only once
            config: Any = importlib.import_module("torch._functorch.config")
            config.donated_buffer = False

        self._counters: Any = importlib.import_module("torch._dynamo.utils").counters
        dynamo.reset()
        self._counters.clear()
        self._compiled = torch.compile(native, dynamic=False, fullgraph=True, backend=backend)
        self.output = self._compiled(x, w, eps)

    def __call__(self, x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
        """Call the compiled function."""
        return self._compiled(x, w, eps)

    def state(self) -> dict[str, Any]:
        """Counters since this compile began: graphs compiled (a recompilation adds one) and graph breaks."""
        stats, breaks = self._counters["stats"], self._counters["graph_break"]
        return {"unique_graphs": int(stats.get("unique_graphs", 0)), "graph_breaks": int(sum(breaks.values()))}


def warm_compiler() -> None:
    """Compile something small: the compiler's own start takes longer than a kernel. Nothing comes of a failure."""
    with suppress(Exception):
        x = torch.zeros(4, 64, dtype=torch.float16, device="cuda")
        FreshCompile(x, x[0].clone(), 1e-6)


def fell_back(state: dict[str, Any], kernel_names: list[str] | None) -> bool:
    """Whether a fresh compile is not what ran: not exactly one graph, a break, or no generated kernel in the trace.

    Args:
        state: `FreshCompile.state()` after the timed calls.
        kernel_names: GPU kernels of one call, or None when no profile was taken.
    """
    generated = kernel_names is None or any(name.startswith("triton_") for name in kernel_names)
    return not (state["unique_graphs"] == 1 and state["graph_breaks"] == 0 and generated)


def liger() -> Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor] | None:
    """Liger's RMSNorm as (x, w, eps) -> y, or None when the package is not installed."""
    try:
        function = importlib.import_module("liger_kernel.ops.rms_norm").LigerRMSNormFunction
    except ImportError:
        return None
    return lambda x, w, eps: function.apply(x, w, eps, 0.0, "llama", False)
