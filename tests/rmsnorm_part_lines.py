"""Lines as rmsnorm_grad_bench and rmsnorm_grad_shape write them, with times that can be worked out in the head."""

from tests.rmsnorm_lines import GOOD

ROWS, HIDDEN = 131072, 1024
SHAPE = f"{ROWS}x{HIDDEN}"  # fp16: 805.8 MB
WIDE = "1024x131072 bf16"
LEAST = 3 * ROWS * HIDDEN * 2 + 2 * HIDDEN * 2 + 4 * ROWS  # 805,834,752
COPIED = 3 * ROWS * HIDDEN * 2
FORWARD = (2 * 1024 * 131072 + 131072) * 2
BACKWARD = 3 * 1024 * 131072 * 2 + 2 * 131072 * 2 + 4 * 1024
PARAMS = {"backward_shapes": (SHAPE,), "wide_shapes": (WIDE,), "cache_shapes": (SHAPE,), "widths": (1, 769),
          "wide_widths": (65537,)}  # fmt: skip
MS = {  # process 0, process 1
    ("backward", SHAPE, "ours"): ([0.20, 0.25], [0.20, 0.20]),
    ("backward", SHAPE, "copy"): ([0.19, 0.19], [0.18, 0.20]),
    ("backward", SHAPE, "copy_again"): ([0.1919, 0.1919], [0.1818, 0.2020]),
    ("backward", SHAPE, "compile"): ([0.30, 0.25], [0.30, 0.30]),
    ("backward", SHAPE, "liger"): ([0.40, 0.40], [0.40, 0.40]),
    ("backward", SHAPE, "native"): ([1.0, 1.0], [1.0, 1.0]),
    ("wide_forward", WIDE, "ours"): ([0.18, 0.18], [0.18, 0.18]),
    ("wide_forward", WIDE, "copy"): ([0.12, 0.12], [0.12, 0.12]),
    ("wide_backward", WIDE, "ours"): ([0.30, 0.30], [0.30, 0.30]),
    ("wide_backward", WIDE, "copy"): ([0.18, 0.18], [0.18, 0.18]),
}  # fmt: skip
GRAD = {**GOOD, "dx_bound_used": 0.9, "dw_bound_used": 0.8, "bits_changed": 0}
COPY_BYTES = {"backward": COPIED, "wide_forward": 2 * 1024 * 131072 * 2, "wide_backward": 3 * 1024 * 131072 * 2}


def check_lines():
    """What the first process of a run with PARAMS checks."""
    lines = [{"kind": "grad_check", "what": "autograd", "shape": f"517x{h} {d}", **GRAD, "dx_bound_used": used}
             for h, used in ((1, 0.1), (769, 0.9)) for d in ("fp16", "bf16", "fp32")]  # fmt: skip
    lines += [{"kind": kind, "what": "backward", "shape": SHAPE, "rows_checked": ROWS, **GRAD}
              for kind in ("grad_check", "grad_exact")]  # fmt: skip
    lines += [{"kind": "grad_check", "what": "shifted", "shape": "11x263 fp16", "case": "a setting", **GRAD}]
    lines += [{"kind": "grad_check", "what": f"wide {way}", "shape": f"9x65537 {d}", **GRAD}
              for way in ("forward", "backward") for d in ("float16", "bfloat16")]  # fmt: skip
    lines += [{"kind": "grad_canary", "what": "backward", "rows_wrong": [], "passed": True}] * 6
    return lines + [{"kind": "grad_refusal", "what": "rmsnorm", "num_bad": 0, "passed": True}] * 8


def part_lines(process=0, *, slower=1.0):
    """What one rank writes about the parts on a GPU."""
    lines = check_lines() if process == 0 else []
    lines.append({"kind": "cache", "shape": SHAPE, "direction": "backward", "num_timings": 0 if process else 14,
                  "was_tuned": not process, "chosen": "b", "default": "a", "ms": {"a": 0.21, "b": 0.20}})  # fmt: skip
    for (part, shape) in dict.fromkeys((part, shape) for part, shape, _ in MS):
        lines.append({"kind": "part_shape", "part": part, "shape": shape, "copy_bytes": COPY_BYTES[part],
                      "config_label": "grad b1024", "programs": 528 if part == "backward" else 0})  # fmt: skip
        kernels = {"backward": 2, "wide_forward": 2, "wide_backward": 3}[part]
        if process == 0:
            lines.append({"kind": "part_profile", "part": part, "shape": shape, "provider": "ours", "kernels": kernels})
        lines.append({"kind": "grad_recheck", "what": part, "shape": shape, **GRAD, "dx_bound_used": 0.95})
    lines += [{"kind": "part_timing", "part": part, "shape": shape, "provider": name,
               "ms": [value * slower for value in both[process]]} for (part, shape, name), both in MS.items()]
    lines.append({"kind": "part_compile", "part": "backward", "shape": SHAPE, "fell_back": False})
    return lines
