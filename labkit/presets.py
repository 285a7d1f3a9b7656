"""Presets: a YAML of parameters per slice and machine size, merged over the slice's defaults and checked by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import yaml

PRESET_DIR = Path(__file__).resolve().parent / "experiments" / "presets"
PRESETS = ("smoke", "cpu", "gpu1", "gpu2", "gpu8")
P = TypeVar("P")


class UsageError(ValueError):
    """Something a user can get wrong: one clear line, exit code 2."""


def require(is_good: bool, name: str, got: Any, expected: str) -> None:
    """Raise ValueError naming an argument, the value it got and what was expected, unless it is good.

    >>> require(False, "rounds", 0, "at least 1")
    Traceback (most recent call last):
    ValueError: rounds=0: expected at least 1
    """
    if not is_good:
        raise ValueError(f"{name}={got!r}: expected {expected}")


def unknown_name(kind: str, got: str, known: list[str]) -> UsageError:
    """An error naming the unknown thing, the closest known one and all choices."""
    close = difflib.get_close_matches(got, known, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return UsageError(f"unknown {kind} {got!r}{hint} (known: {', '.join(known)})")


def available_presets(slug: str) -> list[str]:
    """Presets that a slice has a file for, smallest machine first."""
    return [name for name in PRESETS if (PRESET_DIR / slug / f"{name}.yaml").is_file()]


def choose_preset(slug: str, *, num_gpus: int) -> str:
    """The largest preset of a slice that a machine with `num_gpus` GPUs can run."""
    known = available_presets(slug)
    for name, needed in (("gpu8", 8), ("gpu2", 2), ("gpu1", 1)):
        if num_gpus >= needed and name in known:
            return name
    return "cpu"


def load_preset(slug: str, preset: str) -> dict[str, Any]:
    """Parameters of one preset file; raises UsageError with the close name if there is none."""
    if preset not in available_presets(slug):
        raise unknown_name(f"preset of {slug}", preset, available_presets(slug))
    return yaml.safe_load((PRESET_DIR / slug / f"{preset}.yaml").read_text(encoding="utf-8")) or {}


def build_params(params_type: type[P], slug: str, preset: str, overrides: Mapping[str, Any] | None = None) -> P:
    """Defaults of `params_type`, then the preset, then `overrides` that are not None; unknown names are refused."""
    known = [f.name for f in fields(params_type)]  # type: ignore[arg-type]
    merged = load_preset(slug, preset)
    merged.update({name: value for name, value in (overrides or {}).items() if value is not None})
    for name in merged:
        if name not in known:
            raise unknown_name(f"parameter of {slug}", name, known)
    try:
        return params_type(**{name: tuple(v) if isinstance(v, list) else v for name, v in merged.items()})
    except (TypeError, ValueError) as error:
        raise UsageError(f"{slug}: {error}") from None
