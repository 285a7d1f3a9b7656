"""The hardware profiles as tables: one a theme, never GB beside GiB."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from docutils import nodes

from labkit.book.lookup import hardware_anchor
from labkit.book.tables import Row, code, make_table, paragraph
from labkit.book.values import LookupProblem, convert
from labkit.hardware import DENSE_DTYPES, HardwareProfile, list_profiles, load_profile


def _column(title: str, field: str, unit: str) -> tuple[str, str, str]:
    return title, field, unit


TABLES: dict[str, list[tuple[str, str, str]]] = {
    "peaks": [_column(dtype.replace("_", " "), f"peak_{dtype}_dense_flop_per_s", "TFLOP/s") for dtype in DENSE_DTYPES],
    "bandwidth": [
        _column("memory (GB/s)", "memory_bandwidth_bytes_per_s", "GB/s"),
        _column("links, one way (GB/s)", "link_one_way_bytes_per_s", "GB/s"),
        _column("PCIe, one way (GB/s)", "pcie_one_way_bytes_per_s", "GB/s"),
        _column("power (W)", "tdp_w", "W"),
    ],
    "capacity": [
        _column("advertised (GiB)", "memory_bytes", "GiB"),
        _column("shown by the driver (GiB)", "memory_reported_bytes", "GiB"),
        _column("L2 (MiB)", "l2_bytes", "MiB"),
        _column("shared memory per SM (KiB)", "shared_memory_per_sm_bytes", "KiB"),
        _column("per block (KiB)", "shared_memory_per_block_bytes", "KiB"),
    ],
    "limits": [
        _column("SMs or CUs", "num_sms", "count"),
        _column("registers per SM", "registers_per_sm", "32-bit registers"),
        _column("warps per SM", "max_warps_per_sm", "count"),
        _column("threads per SM", "max_threads_per_sm", "count"),
        _column("blocks per SM", "max_blocks_per_sm", "count"),
    ],
}
"""Theme -> columns: title, field, unit of the column."""


def hardware_table(theme: str) -> list[nodes.Node]:
    """One table; a field that is not known is an empty cell, and a column with nothing in it is left out.

    Args:
        theme: a key of TABLES, or `measured`, or `sources`.

    Raises: LookupProblem for another theme or a profile that cannot be read.
    """
    makers: dict[str, Callable[[list[HardwareProfile]], list[nodes.Node]]] = {
        **{name: lambda found, columns=columns: _themed(found, columns) for name, columns in TABLES.items()},
        "measured": _measured,
        "sources": _sources,
    }
    if theme not in makers:
        raise LookupProblem(f"{theme!r}: expected {', '.join(makers)}")
    try:
        profiles = [load_profile(name) for name in list_profiles()]
    except ValueError as error:
        raise LookupProblem(str(error)) from None
    return makers[theme](profiles)


def _themed(profiles: list[HardwareProfile], columns: Sequence[tuple[str, str, str]]) -> list[nodes.Node]:
    used = [column for column in columns if any(profile.value(column[1]) is not None for profile in profiles)]
    rows = []
    for profile in profiles:
        cells = [_show(profile, field, unit) for _, field, unit in used]
        if any(cells):
            rows.append(Row([profile.title, *cells]))
    table = make_table(["device", *[title for title, _, _ in used]], rows, sortable=True)
    table["classes"].append("lk-sticky")
    return [table]


def _show(profile: HardwareProfile, name: str, unit: str) -> str:
    field = profile.fields[name]
    if field.value is None:
        return ""
    value = convert(field.value, field.unit, unit)
    return f"{value:,.0f}" if value >= 1000 or float(value).is_integer() else f"{value:.4g}"


def _measured(profiles: list[HardwareProfile]) -> list[nodes.Node]:
    units = {"bytes/s": "GB/s", "FLOP/s": "TFLOP/s"}
    rows = []
    for profile in profiles:
        for name, field in profile.measured.items():
            unit = units.get(field.unit, field.unit)
            ends = [convert(end, field.unit, unit) for end in (field.low, field.value) if end is not None]
            text = " to ".join(f"{end:,.4g}" if end < 1000 else f"{end:,.0f}" for end in ends) + f" {unit}"
            rows.append(Row([profile.title, code(name), text, field.note, f"{field.source}; {field.accessed}"]))
    if not rows:
        return [paragraph("Nothing has been measured yet.")]
    return [make_table(["device", "what", "measured", "how", "source, date"], rows, cards=True)]


def _sources(profiles: list[HardwareProfile]) -> list[nodes.Node]:
    blocks: list[nodes.Node] = []
    for profile in profiles:
        fold = nodes.admonition(classes=["dropdown", "lk-fold"], ids=[hardware_anchor(profile.name)])
        fold += nodes.title("", profile.title)
        known = {name: field for name, field in profile.fields.items() if field.value is not None}
        rows = [Row([code(name), field.source, field.note, field.accessed]) for name, field in known.items()]
        fold += make_table(["field", "source", "note", "read on"], rows)
        blocks.append(fold)
    return blocks
