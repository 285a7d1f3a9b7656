"""Checks of a collective sweep that do not come from the clock: data, bytes on the wire, the library's own words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.analyze.collective_files import Cell
from labkit.calc.collective_fit import size_label, total_wire_bytes
from labkit.records import Oracle

LARGE_BYTES = 2**20
"""From here on a bus bandwidth above the link's would be an error of ours, not of a cache or a clock."""


def sweep_oracles(cells: Mapping[str, Cell], *, planned: list[dict[str, Any]], results: Mapping[str, Any],
                  world_size: int, link_gb_per_s: float | None) -> list[Oracle]:
    """Everything that must hold whatever the times are.

    Args:
        cells: as read.
        planned: the cells that were asked for.
        results: what was computed from them.
        world_size: ranks of the sweep.
        link_gb_per_s: one direction of the link between two GPUs by the datasheet, GB/s; None if unknown.
    """
    return [
        _all_ended(cells, planned), _sizes(cells, planned), _data(cells, results),
        *_loopback(cells, world_size=world_size), *_log(results), *_pairs(results), *_link(results, link_gb_per_s)]


def _all_ended(cells: Mapping[str, Cell], planned: list[dict[str, Any]]) -> Oracle:
    """A forced cell may be refused, and then says why; any other has to be measured."""
    bad = [cell["name"] for cell in planned
           if cell["name"] not in cells or not _is_good(cells[cell["name"]], forced=cell["forced"])]
    return Oracle(name="every cell was measured, or is a forced one that the library refused", passed=not bad,
                  expected=len(planned), seen=len(planned) - len(bad), detail=", ".join(bad[:5]))


def _is_good(cell: Cell, *, forced: bool) -> bool:
    return cell.status == "measured" or (forced and cell.status in ("refused", "timed_out") and bool(cell.reason))


def _sizes(cells: Mapping[str, Cell], planned: list[dict[str, Any]]) -> Oracle:
    """Each cell has each of its collectives at each size, once; a refused collective is named."""
    bad = []
    for plan in planned:
        cell = cells.get(plan["name"])
        if cell is None or cell.status != "measured" or plan["kind"] == "pairs":
            continue
        num_ranks = len(plan["devices"])
        wanted = [(collective, size // (4 * num_ranks) * 4 * num_ranks) for collective, sizes in plan["sizes"].items()
                  if collective not in cell.refused for size in sizes]
        if sorted((row["collective"], row["size_bytes"]) for row in cell.times) != sorted(wanted):
            bad.append(cell.name)
    return Oracle(name="sizes are those asked for, counted as nccl-tests counts them", passed=not bad, expected=[],
                  seen=bad[:5])


def _data(cells: Mapping[str, Cell], results: Mapping[str, Any]) -> Oracle:
    wrong = [f"{cell.name} {row['collective']} {size_label(row['size_bytes'])}" for cell in cells.values()
             for row in cell.times if row["num_wrong"]]
    passed = results["wrong_elements"] == 0 and results["num_checked"] > 0
    return Oracle(name="data equal the closed form, element by element, after timing", passed=passed, expected=0,
                  seen=results["wrong_elements"],
                  detail=", ".join(wrong[:5]) or f"{results['num_checked']} collectives and sizes compared")


def _loopback(cells: Mapping[str, Cell], *, world_size: int) -> list[Oracle]:
    """On a CPU the ranks talk over the loopback interface, and it counts: no collective can do with fewer bytes."""
    rows = [row for cell in cells.values() for row in cell.times if row["times_us"] and row["loopback_bytes"]]
    if not rows:
        return []
    shares = {}
    for row in rows:
        least = total_wire_bytes(row["collective"], size_bytes=row["size_bytes"], world_size=world_size)
        carried = row["loopback_bytes"] / (len(row["times_us"]) * row["num_calls"])
        name = f"{row['collective']} {size_label(row['size_bytes'])}"
        shares[name] = min(carried / least, shares.get(name, carried / least))
    worst = min(shares, key=lambda name: shares[name])
    return [Oracle(name="loopback carried at least the bytes that the collective must move",
                   passed=shares[worst] >= 1, expected=1.0, seen=round(shares[worst], 4),
                   detail=f"smallest share, at {worst}; other programs may add to it")]


def _log(results: Mapping[str, Any]) -> list[Oracle]:
    """The library's log names the pair that was forced, for every size, and the number of channels."""
    oracles = []
    if forced := results.get("forced_pairs_in_log"):
        odd = {case: seen for case, seen in forced.items() if seen != [case]}
        oracles.append(Oracle(name="the library's log names the forced pair at every size", passed=not odd,
                              expected={case: [case] for case in odd}, seen=odd, detail=f"{len(forced)} pairs"))
    if channels := results.get("channels_in_log"):
        odd = {case: seen for case, seen in channels.items() if seen != [int(case)]}
        oracles.append(Oracle(name="the library's log shows the number of channels that was set", passed=not odd,
                              expected={case: [int(case)] for case in odd}, seen=odd, detail=f"{len(channels)} cases"))
    return oracles


def _pairs(results: Mapping[str, Any]) -> list[Oracle]:
    if results.get("pair_procedure") is None:
        return []
    return [Oracle(name="pairs ran apart when alone, and at once when together", passed=results["pair_procedure"],
                   expected=True, seen=results["pair_procedure"],
                   detail=f"common share of the shortest window: {results['pair_overlap']}")]


def _link(results: Mapping[str, Any], link_gb_per_s: float | None) -> list[Oracle]:
    if link_gb_per_s is None:
        return []
    speeds = {f"{case} {label}": found["p90"] for case, sizes in results["busbw_gb_per_s"].items()
              for label, found in sizes.items()}
    fastest = max(speeds, key=lambda name: speeds[name])
    return [Oracle(name="no bus bandwidth is above one direction of the link", passed=speeds[fastest] <= link_gb_per_s,
                   expected=link_gb_per_s, seen=round(speeds[fastest], 2), detail=f"fastest: {fastest}")]
