"""A form for any calculator, made from its signature: for the question pages and notebooks in JupyterLab.

    calculator("moe.ranks_for_rows")                       the interview's example, every argument can be changed
    calculator("gemm.critical_rows", k=7168, n=(256, 8192), ridge_flop_per_byte=295.4)

A form needs a running kernel; the static page says so, and what it shows must also stand in the text. See
`labkit.plots.widgets` for sliders over a single value.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
import pkgutil
from collections.abc import Callable, Mapping
from html import escape
from typing import Any

import ipywidgets as widgets

import labkit.calc

EXAMPLES: dict[str, dict[str, Any]] = {
    "roofline.ridge_flop_per_byte": {"peak_flop_per_s": 989.5e12, "bytes_per_s": 3.35e12},
    "gemm.critical_rows": {"k": 7168, "n": 4096, "ridge_flop_per_byte": 295.3731},
    "moe.rows_per_expert": {"num_tokens": 512, "top_k": 8, "num_experts": 256},
    "moe.ranks_for_rows": {"rows": 16.0, "local_tokens": 16, "top_k": 8, "num_experts": 256},
    "moe_all_to_all.group_bytes": {
        "local_tokens": 16, "top_k": 8, "hidden": 7168, "num_ranks": 32, "dispatch_bytes": 1.0,
    },
    "kv_cache.kv_bytes_per_token": {"num_layers": 80, "num_kv_heads": 8, "head_dim": 128},
    "kv_cache.sequence_bytes": {
        "num_tokens": 8192, "full_layers": 12, "window_layers": 12, "window_tokens": 128, "num_kv_heads": 8,
        "head_dim": 64,
    },
    "attention.decode_token": {"num_heads": 128, "num_kv_heads": 8, "head_dim": 192, "v_head_dim": 128},
    "attention.mla_decode_token": {"num_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64},
    "mla.workspace_tokens": {"workspace_bytes": 2**30, "num_heads": 16},
    "context_parallel.crossover_query_tokens": {
        "history_tokens": 131072, "kv_width": 576, "q_width": 24576, "o_width": 16384,
    },
    "serving.pd_plan": {
        "batch": 64, "step_s": 0.045, "output_tokens": 400.0, "prefill_tokens_per_s": 50000.0, "miss_tokens": 2000.0,
        "num_decode": 8,
    },
    "pd_routing.routes": {
        "hit_tokens": 100000, "miss_tokens": 200, "kv_bytes_per_token": 327680.0, "link_bytes_per_s": 50e9,
        "prefill_tokens_per_s": 20000.0, "decode_tokens_per_s": 10000.0, "interference_s_per_token": 5e-5,
    },
    "eviction.value_per_byte": {"num_bytes": 1e6, "p_reuse": 0.5, "recompute_s": 2.0, "reload_s": 0.2},
    "summa.panel_width": {"num_buffers": 2},
    "occupancy.occupancy": {"registers_per_thread": 128, "threads_per_block": 256, "shared_bytes_per_block": 65536},
    "online_softmax.merge_lse": {"lses": [0.0, 4.0], "outputs": [[1.0], [0.0]]},
    "floating_point.subtraction": {"x": 9.9e9, "y": 512.0},
    "smt.speedup_bound": {"utilisation": 0.9},
    "reliability.checkpoint_interval": {"checkpoint_s": 60.0, "mtbf_s": 10800.0, "restart_s": 600.0},
    "sharding.model_state_bytes": {"num_parameters": 7_500_000_000, "num_ranks": 64, "stage": 2},
    "pipeline.bubble_ratio": {"schedule": "1f1b", "num_stages": 8, "num_micro_batches": 32},
}
"""Arguments that the questions work with, by calculator: what a form starts from when none are given."""

_LOOK: dict[str, Any] = {"style": {"description_width": "14em"}, "layout": {"width": "34em"}}


def calculator(name: str, **start: Any) -> widgets.VBox:
    """One field for each argument of a calculator, and its answer, which follows every change.

    Args:
        name: `topic.function` of labkit.calc.
        start: argument -> first value; (low, high) of two whole numbers makes a slider that starts at low, a list of
            texts or numbers a menu for a plain argument. Arguments not named start from the interview's example, then
            from their default. Lists are edited as JSON; an empty optional field is None.

    Returns: a box: a field each, in the order of the signature, then the answer; an entry each for a dictionary. What
        the calculator refuses is shown as its own one-line message.
    Raises: ValueError naming an unknown calculator or argument, or an argument without a first value.
    """
    function = _find(name)
    parameters = inspect.signature(function).parameters
    for argument in start:
        if argument not in parameters:
            raise ValueError(f"{name}: unknown argument {argument!r}{_hint(argument, list(parameters))}")
    first = {**EXAMPLES.get(name, {}), **start}
    fields: dict[str, tuple[Any, Callable[[Any], Any]]] = {}
    for argument, parameter in parameters.items():
        if argument not in first and parameter.default is parameter.empty:
            raise ValueError(f"{name}: argument {argument!r} has no default: expected a first value")
        value = first.get(argument, parameter.default)
        fields[argument] = _field(argument, value, str(parameter.annotation), given=argument in start)
    answer = widgets.HTML()

    def update(_: Any = None) -> None:
        try:
            found = function(**{argument: read(field.value) for argument, (field, read) in fields.items()})
            answer.value = _table(name, found)
        except (ValueError, TypeError) as error:
            answer.value = f"<p>not defined: {escape(str(error))}</p>"

    for field, _read in fields.values():
        field.observe(update, names="value")
    update()
    return widgets.VBox([*(field for field, _read in fields.values()), answer])


def calculators() -> list[str]:
    """`topic.function` of every calculator, sorted."""
    found = []
    for info in pkgutil.iter_modules(labkit.calc.__path__):
        if not info.name.startswith("_"):
            module = importlib.import_module(f"labkit.calc.{info.name}")
            found += [
                f"{info.name}.{name}"
                for name, value in vars(module).items()
                if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
            ]
    return sorted(found)


def _find(name: str) -> Callable[..., Any]:
    known = calculators()
    if name not in known:
        raise ValueError(f"unknown calculator {name!r}{_hint(name, known)}")
    topic, function = name.split(".")
    return getattr(importlib.import_module(f"labkit.calc.{topic}"), function)


def _field(argument: str, value: Any, annotation: str, *, given: bool) -> tuple[Any, Callable[[Any], Any]]:
    """A widget for one argument, and how to read its value as the calculator wants it."""
    look = {"description": argument, **_LOOK}
    plain = annotation in ("int", "float", "str", "bool")
    if given and isinstance(value, tuple) and len(value) == 2 and all(type(end) is int for end in value):
        low, high = value
        if low >= high:
            raise ValueError(f"{argument}={value!r}: expected (low, high) with low below high")
        return widgets.IntSlider(value=low, min=low, max=high, **look), int
    if given and plain and isinstance(value, list) and value:
        return widgets.Dropdown(options=value, value=value[0], **look), lambda chosen: chosen
    if annotation == "bool":
        return widgets.Checkbox(value=bool(value), **look), bool
    if annotation == "int" and isinstance(value, int):
        return widgets.IntText(value=value, **look), int
    if annotation == "float" and isinstance(value, int | float):
        return widgets.FloatText(value=float(value), **look), float
    if annotation == "str":
        return widgets.Text(value=str(value), continuous_update=False, **look), str
    text = "" if value is None else json.dumps(value)
    return widgets.Text(value=text, continuous_update=False, **look), lambda typed: _read_json(argument, typed)


def _read_json(argument: str, typed: str) -> Any:
    if not typed.strip():
        return None
    try:
        return json.loads(typed)
    except ValueError:
        raise ValueError(f"{argument}={typed!r}: expected a number, a list or other JSON") from None


def _table(name: str, answer: Any) -> str:
    rows = answer.items() if isinstance(answer, Mapping) else [(name.split(".")[1], answer)]
    cells = "".join(
        f"<tr><td><code>{escape(str(key))}</code></td><td><b>{escape(_text(value))}</b></td></tr>"
        for key, value in rows
    )
    return f"<table>{cells}</table>"


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return json.dumps(value) if isinstance(value, list | dict) else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def _hint(got: str, known: list[str]) -> str:
    close = difflib.get_close_matches(got, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
