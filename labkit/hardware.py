"""Hardware profiles: what a device can do, as data with a source and a date for every number.

In: `data/hardware/<name>.yaml`. Out: `HardwareProfile`. A number that nobody has published or measured is None, and a
device that is in no table has no profile: an unknown device never gets a neighbour's peak.

    python -c "from labkit.hardware import load_profile as p; print(p('h200').value('memory_bandwidth_bytes_per_s'))"
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml

from labkit.paths import HARDWARE

DENSE_DTYPES = ("fp64", "fp64_tensor", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8")
SPARSE_DTYPES = ("tf32", "fp16", "bf16", "fp8", "fp4", "int8")
"""Dtypes with a 2:4 structured-sparsity rate. `fp16` and `bf16` accumulate in FP32 where the two rates differ."""

UNITS: dict[str, str] = {
    "memory_bytes": "bytes",
    "memory_reported_bytes": "bytes",
    "memory_bandwidth_bytes_per_s": "bytes/s",
    **{f"peak_{dtype}_dense_flop_per_s": "FLOP/s" for dtype in DENSE_DTYPES},
    **{f"peak_{dtype}_sparse_flop_per_s": "FLOP/s" for dtype in SPARSE_DTYPES},
    "num_sms": "count",
    "registers_per_sm": "32-bit registers",
    "max_warps_per_sm": "count",
    "max_threads_per_sm": "count",
    "max_blocks_per_sm": "count",
    "shared_memory_per_sm_bytes": "bytes",
    "shared_memory_per_block_bytes": "bytes",
    "l2_bytes": "bytes",
    "link_one_way_bytes_per_s": "bytes/s",
    "pcie_one_way_bytes_per_s": "bytes/s",
    "tdp_w": "W",
}
"""Every field a profile has, and its unit. `memory_bytes` is the advertised capacity, `memory_reported_bytes` what the
driver shows; `link` is NVLink or Infinity Fabric, all links of one GPU together, one direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One number of a profile, with where it comes from."""

    value: int | float | None
    """None: not published, not applicable or not known."""
    unit: str
    dtype: str | None
    sparsity: str | None
    """For peaks "none" (dense) or "2:4"; else None."""
    source: str
    accessed: str
    """Date on which the source was read, or the measurement made (ISO)."""
    note: str = ""
    low: int | float | None = None
    """Lowest of several measurements; `value` is then the highest. Only in `measured`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareProfile:
    """One device."""

    name: str
    """File name without ending, e.g. "h200"."""
    title: str
    vendor: str
    architecture: str
    compute_capability: str | None
    product_names: tuple[str, ...]
    """Exact names under which nvidia-smi or rocm-smi reports this device."""
    fields: dict[str, Field]
    """Published limits, one for every name of `UNITS`."""
    measured: dict[str, Field]
    """Ceilings measured on such a device; empty where there are none."""

    def value(self, field: str) -> int | float | None:
        """A published or measured number, None if it is not known; raises ValueError with the close name."""
        known = {**self.fields, **self.measured}
        if field not in known:
            raise ValueError(_unknown(f"field of {self.name}", field, list(known)))
        return known[field].value

    def peak_flop_per_s(self, dtype: str, *, sparse: bool = False) -> float | None:
        """Peak rate of one dtype in FLOP/s (OP/s for int8), dense unless said; None if the device has none."""
        return self.value(f"peak_{dtype}_{'sparse' if sparse else 'dense'}_flop_per_s")


def list_profiles() -> list[str]:
    """Names of all profiles, sorted."""
    return sorted(path.stem for path in HARDWARE.glob("*.yaml"))


@lru_cache(maxsize=64)
def load_profile(name: str) -> HardwareProfile:
    """Read one profile.

    Args:
        name: e.g. "h200", "v100_pcie_32gb"; see `list_profiles`.

    Returns: the profile, with every field of `UNITS`.
    Raises: ValueError naming the profile or the field that is unknown, missing or malformed.
    """
    if name not in list_profiles():
        raise ValueError(_unknown("hardware profile", name, list_profiles()))
    raw = yaml.safe_load((HARDWARE / f"{name}.yaml").read_text(encoding="utf-8"))
    missing = {"title", "vendor", "architecture", "accessed", "sources", "fields"} - set(raw)
    if missing:
        raise ValueError(f"{name}.yaml: missing {', '.join(sorted(missing))}")
    odd = set(raw["fields"]) ^ set(UNITS)
    if odd:
        raise ValueError(f"{name}.yaml: fields missing or unknown: {', '.join(sorted(odd))}")
    measured = raw.get("measured") or {}
    return HardwareProfile(
        name=name, title=raw["title"], vendor=raw["vendor"], architecture=raw["architecture"],
        compute_capability=raw.get("compute_capability"), product_names=tuple(raw.get("product_names") or ()),
        fields={key: _field(name, key, raw["fields"][key], raw, unit) for key, unit in UNITS.items()},
        measured={key: _field(name, key, entry, raw, None) for key, entry in measured.items()},
    )


def match_profile(gpu_name: str) -> str | None:
    """Name of the profile of a device, by its exact product name; None for any other name.

    Args:
        gpu_name: as nvidia-smi or rocm-smi prints it, e.g. "NVIDIA H200".

    Returns: profile name or None. No part of a name is ever guessed from: "NVIDIA H200 NVL" is not an H200 SXM.

    >>> match_profile("NVIDIA H200"), match_profile("NVIDIA H200 NVL")
    ('h200', None)
    """
    return next((name for name in list_profiles() if gpu_name in load_profile(name).product_names), None)


def _field(profile: str, key: str, entry: Any, raw: Mapping[str, Any], unit: str | None) -> Field:
    """One checked entry: `null`, or {value, source, note?, accessed?} with `source` naming one of `sources`."""
    where = f"{profile}.yaml: {key}"
    if entry is None:
        entry = {"value": None, "source": None}
    if not isinstance(entry, dict) or "value" not in entry:
        raise ValueError(f"{where}={entry!r}: expected null or a mapping with value and source")
    value = entry["value"]
    # YAML 1.1 reads 9.89e14 (no sign in the exponent) as text.
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if value is not None and not is_number:
        raise ValueError(f"{where}: value {value!r}: expected a number or null (write 9.89e+14, with the sign)")
    source = entry.get("source")
    if value is not None and source not in raw["sources"]:
        raise ValueError(f"{where}: source {source!r}: expected one of {', '.join(raw['sources'])}")
    parts = key.split("_")
    is_peak = key.startswith("peak_") and parts[-4] in ("dense", "sparse")
    found_unit = unit or entry.get("unit")
    if not found_unit:
        raise ValueError(f"{where}: unit missing")
    return Field(
        value=value, unit=found_unit, dtype="_".join(parts[1:-4]) if is_peak else entry.get("dtype"),
        sparsity=({"dense": "none", "sparse": "2:4"}[parts[-4]] if is_peak else None),
        source=raw["sources"][source] if source else "not known", accessed=str(entry.get("accessed", raw["accessed"])),
        note=entry.get("note", ""), low=entry.get("low"),
    )


def _unknown(kind: str, got: str, known: list[str]) -> str:
    close = difflib.get_close_matches(got, known, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"unknown {kind} {got!r}{hint} (known: {', '.join(known)})"
