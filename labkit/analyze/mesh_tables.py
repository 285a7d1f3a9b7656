"""Tables of the process-group lab: phases of a run, several runs beside the report, placements, faults.

In: records or plain values. Out: DataFrames with units in the column names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from labkit.records import RunRecord

if TYPE_CHECKING:
    import pandas as pd

PHASES = ("tp_phase", "pp_phase", "dp_phase", "serial", "concurrent")


def phases_frame(record: RunRecord) -> pd.DataFrame:
    """One row a link, mapping and phase.

    Columns: links ("as they are", or "slow wire" between the halves of the ranks), mapping, phase, time_ms, p10_ms,
    p90_ms, num_samples (slowest rank), floor_ms (bytes over the wire's rate, where they cross it).
    """
    import pandas as pd

    floors = record.prediction.get("values", {}).get("slow_floor_ms", {})
    rows = []
    for prefix, links in (("", "as they are"), ("slow_", "slow wire")):
        for phase in PHASES:
            for mapping, time in record.results.get(prefix + phase, {}).items():
                floor = floors.get(mapping, {}).get(phase.split("_")[0].upper()) if prefix else None
                rows.append({"links": links, "mapping": mapping, "phase": phase, "time_ms": time["value"],
                             "p10_ms": time["p10"], "p90_ms": time["p90"], "num_samples": time["n"],
                             "floor_ms": floor})
    return pd.DataFrame(rows).convert_dtypes() if rows else pd.DataFrame(columns=["links", "mapping", "phase"])


def comparison(records: Sequence[RunRecord], *, reported: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """The report's phases as predicted from its other experiment, as printed, and what runs of ours took.

    Args:
        records: runs, the one of interest first.
        reported: result -> mapping -> ms of the 8x V100 report.

    Returns: one row a phase and mapping. Columns: phase, mapping, unit, "8x V100 predicted (section 4.4)", "8x V100
    (quoted)", residual_pct (predicted against printed), then two columns a run: as it is, and over the slow wire where
    there was one. Only the first two are of one machine. Unknown is <NA>.
    """
    import pandas as pd

    predicted = records[0].prediction.get("values", {}).get("v100_ms", {}) if records else {}
    rows = []
    for phase in PHASES:
        for mapping in reported.get(phase, {}):
            quoted, wanted = reported[phase][mapping], predicted.get(mapping, {}).get(phase)
            row: dict[str, Any] = {
                "phase": phase, "mapping": mapping, "unit": "ms", "8x V100 predicted (section 4.4)": wanted,
                "8x V100 (quoted)": quoted, "residual_pct": 100 * (wanted / quoted - 1) if wanted else None}
            for record in records:
                label = f"{record.hardware_tag} {record.preset}"
                for prefix, name in (("", label), ("slow_", f"{label}, slow wire")):
                    time = record.results.get(prefix + phase, {}).get(mapping)
                    if time is not None or prefix == "":
                        row[name] = time and time["value"]
            rows.append(row)
    return pd.DataFrame(rows).convert_dtypes()


def placements_frame(search: Mapping[str, Any]) -> pd.DataFrame:
    """Placements of a search: the fastest and the slowest.

    Columns: serial_ms, tp_ms, pp_ms, dp_ms, tp_links, pp_links, dp_links (class and number of groups), placement
    (device of each rank), num_distinct (placements with other groups that no link can tell from this one).
    """
    import pandas as pd

    rows = []
    for entry in search.get("shown", []):
        row = {"serial_ms": 1e3 * entry["serial_s"]}
        row |= {f"{axis.lower()}_ms": 1e3 * time for axis, time in entry["phases_s"].items()}
        row |= {f"{axis.lower()}_links": " + ".join(f"{count} {name}" for name, count in found.items())
                for axis, found in entry["links"].items()}
        rows.append({**row, "placement": " ".join(map(str, entry["placement"])),
                     "num_distinct": entry["num_distinct"]})
    return pd.DataFrame(rows)


def detectors_frame(faults: Mapping[str, Any]) -> pd.DataFrame:
    """Percent of injected faults that each detector notices, by kind; the log detectors must name rank and call."""
    import pandas as pd

    return pd.DataFrame(faults.get("noticed_pct", {})).T.rename_axis("fault")


def real_faults_frame(real: Mapping[str, Any] | None) -> pd.DataFrame:
    """Faults that real ranks played. Columns: kind, outcome, rank, index (true), found_rank, found_index."""
    import pandas as pd

    columns = ["kind", "outcome", "rank", "index", "found_rank", "found_index"]
    return pd.DataFrame((real or {}).get("cases", []), columns=columns).convert_dtypes()
