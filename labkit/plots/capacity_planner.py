"""A form for notebooks: model, GPU and workload to the requests that fit without a preemption.

The form needs a running kernel; the static page shows `plan_table` for a few cases instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import ipywidgets as widgets

from labkit.calc.capacity_plan import cache_bytes_left, serving_plan
from labkit.calc.decoder import DecoderShape, parameter_groups
from labkit.calc.kv_cache import kv_bytes_per_token
from labkit.hardware import list_profiles, load_profile
from labkit.models import ModelSpec, list_models, load_model
from labkit.units import format_bytes

ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float8_e4m3fn": 1}
OTHER_BYTES = 2 << 30
"""Where nothing is known: activations of a step, CUDA context and graphs."""
SIMULATED_SEQS = 96
"""Above so many requests at a time the exact number takes seconds: the form then gives the safe one alone."""
TEXT = {
    "weight_bytes": "weights", "cache_bytes": "left for the KV cache", "kv_bytes_per_token": "a token takes",
    "blocks": "blocks", "tokens": "tokens of the cache", "printed_concurrency": "the log's maximum concurrency",
    "blocks_per_request": "blocks of a request at its end",
    "safe_concurrency": "requests at a time, safe in any order of arrival",
    "quiet_concurrency": "requests at a time, released together", "limited_by": "limited by",
}


def plan_for(
    model: str, gpu: str, *, utilisation: float = 0.9, cache_gib: float | None = None, weight_gib: float | None = None,
    other_bytes: int = OTHER_BYTES, prompt_tokens: int = 1024, output_tokens: int = 512, block_tokens: int = 16,
    max_model_len: int = 2048, max_num_seqs: int = 256, max_num_batched_tokens: int = 2048, exact: bool = True,
) -> dict[str, Any]:
    """The plan of one model on one GPU, without a split over several.

    Args:
        model: of data/models; all its layers with full attention.
        gpu: of data/hardware.
        utilisation: share of the GPU that the engine may take.
        cache_gib: given to the cache, GiB; None: what is left.
        weight_gib: of the weights, GiB; None: counted from the model's shape, where its modules are recorded.
        other_bytes: activations and the like.
        prompt_tokens: of a request.
        output_tokens: of a request.
        block_tokens: of a block.
        max_model_len: longest request.
        max_num_seqs: at a time at most.
        max_num_batched_tokens: of a step.
        exact: also the number found by simulation; else quiet_concurrency is None where the cache is the limit.

    Returns: weight_bytes, cache_bytes, kv_bytes_per_token and what `serving_plan` gives.
    Raises: ValueError naming what cannot be planned.
    """
    spec, memory = load_model(model), load_profile(gpu).fields["memory_reported_bytes"].value
    memory = memory or load_profile(gpu).fields["memory_bytes"].value
    if memory is None:
        raise ValueError(f"gpu={gpu!r}: its memory is not known")
    per_token, weights = _bytes_of(spec, weight_gib)
    cache = round(cache_gib * 2**30) if cache_gib is not None else cache_bytes_left(
        gpu_bytes=int(memory), weight_bytes=weights, other_bytes=other_bytes, utilisation=utilisation)
    shape = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens, "block_tokens": block_tokens,
             "max_model_len": max_model_len, "max_num_batched_tokens": max_num_batched_tokens}
    plan = serving_plan(kv_bytes_per_token=per_token, cache_bytes=cache, max_num_seqs=1, waves=1, **shape)
    each = plan["blocks_per_request"]
    safe = min(max_num_seqs, max(0, plan["blocks"] - 1) // each)
    if exact or safe == max_num_seqs:
        plan = serving_plan(kv_bytes_per_token=per_token, cache_bytes=cache, max_num_seqs=max_num_seqs, waves=2,
                            **shape)
    else:
        plan |= {"safe_concurrency": safe, "quiet_concurrency": None, "limited_by": "cache" if safe else "request"}
    return {"weight_bytes": weights, "cache_bytes": cache, "kv_bytes_per_token": per_token, **plan}


def _bytes_of(spec: ModelSpec, weight_gib: float | None) -> tuple[float, int]:
    if set(spec.layer_kinds()) != {"f"}:
        raise ValueError(f"{spec.name}: expected a model whose layers all have full attention")
    size = ELEMENT_BYTES.get(spec.dtype)
    if size is None:
        raise ValueError(f"{spec.name}: dtype {spec.dtype!r} is not known here")
    per_token = kv_bytes_per_token(**spec.kv_cache_shape(), bytes_per_element=size)
    if weight_gib is not None:
        return per_token, round(weight_gib * 2**30)
    try:
        return per_token, size * sum(parameter_groups(DecoderShape(**spec.decoder_shape())).values())
    except ValueError:
        raise ValueError(f"{spec.name}: its parameters cannot be counted from what is recorded of its shape: "
                         "expected weight_gib") from None


def plan_table(cases: Sequence[tuple[str, str]], **settings: Any) -> list[dict[str, Any]]:
    """One row a (model, GPU): what `plan_for` says, sizes in GiB.

    Args:
        cases: names of data/models and data/hardware.
        settings: as `plan_for`.

    Returns: model, gpu, weights_gib, cache_gib, kib_a_token, tokens, printed_concurrency, safe_concurrency,
        quiet_concurrency, limited_by.
    """
    rows = []
    for model, gpu in cases:
        plan = plan_for(model, gpu, **settings)
        rows.append({
            "model": model, "gpu": gpu, "weights_gib": plan["weight_bytes"] / 2**30,
            "cache_gib": plan["cache_bytes"] / 2**30, "kib_a_token": plan["kv_bytes_per_token"] / 2**10,
            **{name: plan[name] for name in ("tokens", "printed_concurrency", "safe_concurrency", "quiet_concurrency",
                                             "limited_by")}})
    return rows


def planner(model: str = "qwen2.5-7b", gpu: str = "h200") -> widgets.VBox:
    """Fields above the plan, which follows every change; what cannot be planned is shown as its one-line message.

    Args:
        model: chosen at first.
        gpu: chosen at first.
    """
    look: dict[str, Any] = {"style": {"description_width": "15em"}, "layout": {"width": "34em"}}
    models = [name for name in list_models() if set(load_model(name).layer_kinds()) == {"f"}]
    fields: dict[str, Any] = {
        "model": widgets.Dropdown(options=models, value=model, description="model", **look),
        "gpu": widgets.Dropdown(options=list_profiles(), value=gpu, description="GPU", **look),
        "utilisation": widgets.FloatSlider(value=0.9, min=0.1, max=1.0, step=0.01, description="share of the GPU",
                                           continuous_update=False, **look),
        "weight_gib": widgets.FloatText(value=0.0, description="weights, GiB (0: by shape)", **look),
        "prompt_tokens": widgets.IntText(value=1024, description="prompt tokens", **look),
        "output_tokens": widgets.IntText(value=512, description="output tokens", **look),
        "max_model_len": widgets.IntText(value=2048, description="longest request", **look),
        "block_tokens": widgets.IntText(value=16, description="block size", **look),
        "max_num_seqs": widgets.IntText(value=256, description="max_num_seqs", **look),
        "max_num_batched_tokens": widgets.IntText(value=2048, description="max_num_batched_tokens", **look),
    }
    answer = widgets.HTML()

    def update(_: Any = None) -> None:
        chosen = {name: field.value for name, field in fields.items()}
        try:
            chosen["weight_gib"] = chosen["weight_gib"] or None
            plan = plan_for(chosen.pop("model"), chosen.pop("gpu"), exact=chosen["max_num_seqs"] <= SIMULATED_SEQS,
                            **chosen)
            answer.value = _table(plan)
        except (ValueError, TypeError) as error:
            answer.value = f"<p>not defined: {escape(str(error))}</p>"

    for field in fields.values():
        field.observe(update, names="value")
    update()
    return widgets.VBox([*fields.values(), answer])


def _table(plan: Mapping[str, Any]) -> str:
    def shown(name: str) -> str:
        value = plan[name]
        if value is None:
            return f"at least the number above; found by simulation up to max_num_seqs = {SIMULATED_SEQS}"
        if name.endswith("bytes") or name == "kv_bytes_per_token":
            return format_bytes(value)
        return f"{value:,.2f}x" if name == "printed_concurrency" else f"{value:,}" if isinstance(value, int) else value

    cells = "".join(f"<tr><td>{escape(text)}</td><td><b>{escape(str(shown(name)))}</b></td></tr>"
                    for name, text in TEXT.items())
    return f"<table>{cells}</table>"
