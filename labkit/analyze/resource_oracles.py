"""Checks of a run of triton_resources: two or three independent ways to each number, counted where they disagree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from labkit.analyze.resources import CAPABILITIES, Cell
from labkit.calc.occupancy import LIMITS, occupancy
from labkit.calc.row_registers import must_spill
from labkit.records import Oracle

HINTED_LOAD_BYTES, BARE_LOAD_BYTES = 16, 2
"""Widest load with and without the knowledge that addresses are divisible by 16, for 2-byte elements."""
SHARED_KEYS = ("registers_per_sm", "shared_memory_per_sm_bytes", "shared_memory_per_block_bytes", "max_blocks_per_sm",
               "reserved_shared_memory_bytes")  # fmt: skip
MEMORY_SLACK = 1.05
"""A loop may seem this much faster than the memory: its last writes are still in the L2 cache when the clock stops."""


def none_of(name: str, cells: list[Cell], is_wrong: Callable[[Cell], bool], detail: str) -> Oracle:
    """An oracle that counts the cells for which something is wrong; none may be, and at least one is looked at."""
    wrong = [f"sm_{cell['target']} {cell['name']}" for cell in cells if is_wrong(cell)]
    detail = f"{detail}; {len(cells)} cells" + (f"; wrong: {', '.join(wrong[:4])}" if wrong else "")
    return Oracle(name=name, passed=not wrong and bool(cells), expected=0, seen=len(wrong), detail=detail)


def compile_oracles(cells: list[Cell], *, asked: int, refused: int) -> list[Oracle]:
    """Of the cubins. `asked` cells were to be compiled, `refused` were not, with a reason."""
    limits = [cell for cell in cells if cell["target"] in CAPABILITIES]
    spilled = [cell for cell in cells if cell["sass_store_bytes"] is not None]
    found = [
        Oracle(name="every_cell_is_answered", passed=len(cells) + refused == asked and bool(cells), expected=asked,
               seen=len(cells) + refused, detail=f"{len(cells)} compiled, {refused} refused with a reason"),
        none_of("registers_three_ways", cells,
                lambda c: not c["registers"] or len({c["registers"], c["ptxas_registers"], c["elf_registers"]}) != 1,
                "registers by cuobjdump, ptxas -v and the ELF attributes"),
        none_of("stack_three_ways", cells,
                lambda c: len({c["stack_bytes"], c["ptxas_stack_bytes"], c["elf_stack_bytes"]}) != 1,
                "stack by cuobjdump, ptxas -v and the ELF attributes"),
        none_of("static_shared_two_ways", cells, lambda c: c["static_shared_bytes"] != c["ptxas_shared_bytes"],
                "static shared memory by cuobjdump, less the reserved bytes, and ptxas -v"),
        none_of("occupancy_two_ways", limits, lambda c: c["blocks_per_sm"] != c["placed_blocks_per_sm"],
                "blocks by formula and by placing warps one by one"),
        none_of("naive_bound_is_never_lower", limits, lambda c: c["naive_occupancy_pct"] < c["occupancy_pct"],
                "plain division is a bound"),
        none_of("row_is_held", cells, lambda c: 4 * c["registers"] + c["stack_bytes"] < 4 * c["row_registers"],
                "registers and stack of a thread hold its share of the row"),
        none_of("vector_loads_follow_the_hints", cells, _wrong_loads, "widest load in the PTX"),
        none_of("certain_spills_spill", limits, _missing_spill,
                "a row that fills every register by itself leaves a stack"),
    ]  # fmt: skip
    if spilled:
        found.append(none_of("spills_in_the_machine_code", spilled, _wrong_spill,
                             "bytes of STL and LDL instructions against ptxas -v"))  # fmt: skip
    return found


def _wrong_loads(cell: Cell) -> bool:
    most = HINTED_LOAD_BYTES if cell["hints"] else BARE_LOAD_BYTES
    # A thread with fewer elements than a vector holds cannot load a whole one.
    return cell["max_load_bytes"] != min(most, 2 * cell["elements_per_thread"])


def _missing_spill(cell: Cell) -> bool:
    is_certain = must_spill(hidden=cell["hidden"], num_warps=cell["num_warps"],
                            compute_capability=CAPABILITIES[cell["target"]])  # fmt: skip
    return is_certain and not (cell["stack_bytes"] and cell["spill_store_bytes"])


def _wrong_spill(cell: Cell) -> bool:
    seen = (cell["sass_store_bytes"], cell["sass_load_bytes"])
    return seen != (cell["spill_store_bytes"], cell["spill_load_bytes"])


def sweep_oracles(lines: list[dict[str, Any]], cells: list[Cell], *, target: int) -> list[Oracle]:
    """Of the GPU's timed kernels: outputs, registers and occupancy by the driver, blocks of the dial."""
    checks = [line for line in lines if line["kind"] == "check"]
    bad = [f"{line['what']} h{line['hidden']}" for line in checks if not line["passed"]]
    kernels = [line for line in lines if line["kind"] == "kernel"]
    here = {cell["name"]: cell for cell in cells if cell["target"] == target and cell["hints"]}
    same = [(line, here[f"h{line['hidden']}/w{line['num_warps']}"]) for line in kernels
            if f"h{line['hidden']}/w{line['num_warps']}" in here]  # fmt: skip
    odd = [f"h{line['hidden']}/w{line['num_warps']}: {line['registers']} and {cell['registers']}"
           for line, cell in same if line["registers"] != cell["registers"]]  # fmt: skip
    wrong = [line for line in kernels if line["blocks_per_sm"] != _blocks(line, target)]
    dials = [line for line in lines if line["kind"] == "dial"]
    missed = [line["name"] for line in dials if line["driver_blocks"] != line["blocks"] or line["error"]]
    return [
        Oracle(name="outputs_are_right", passed=not bad and bool(checks), expected=0, seen=len(bad),
               detail=f"{len(checks)} outputs against float64; wrong: {', '.join(bad[:4]) or 'none'}"),
        Oracle(name="driver_loads_what_was_compiled", passed=not odd and bool(same), expected=0, seen=len(odd),
               detail=f"registers by the driver and of the cubin compiled without it; {', '.join(odd[:3]) or 'equal'}"),
        Oracle(name="driver_occupancy_of_these_kernels", passed=not wrong and bool(kernels), expected=0,
               seen=len(wrong), detail=f"{len(kernels)} kernels, formula against the driver"),
        Oracle(name="dial_holds_the_blocks_asked_for", passed=not missed, expected=0, seen=len(missed),
               detail=f"{len(dials)} settings; wrong: {', '.join(missed[:4]) or 'none'}"),
    ]  # fmt: skip


def _blocks(line: Mapping[str, Any], target: int) -> int | None:
    if target not in CAPABILITIES:
        return None
    return occupancy(
        registers_per_thread=line["registers"], threads_per_block=32 * line["num_warps"],
        shared_bytes_per_block=line["dynamic_shared_bytes"], compute_capability=CAPABILITIES[target],
    )["blocks_per_sm"]


def rate_oracle(gb_per_s: Mapping[str, Any], datasheet_bytes_per_s: float | None) -> list[Oracle]:
    """No kernel seems faster than the memory; nothing where the memory's rate is unknown."""
    if datasheet_bytes_per_s is None or not gb_per_s:
        return []
    most, fastest = MEMORY_SLACK * datasheet_bytes_per_s / 1e9, max(rate["value"] for rate in gb_per_s.values())
    return [Oracle(name="not_faster_than_the_memory", passed=fastest <= most, expected=f"at most {most:.0f} GB/s",
                   seen=round(fastest, 1), detail="minimum bytes over time, fastest median")]  # fmt: skip


def driver_results(lines: list[dict[str, Any]]) -> tuple[dict[str, Any], list[Oracle]]:
    """Random kernels: the formula against the driver, launch by launch.

    Args:
        lines: of labkit.workers.occupancy_driver.

    Returns: results `driver_kernels`, `driver_cases`, `driver_equal`, `driver_zero` (cases that cannot be launched),
    `driver_refused` (calls that the driver answered with an error), `driver_registers` (least and most), `driver_cuda`;
    and the oracles `driver_agrees` and `driver_limits`.
    """
    (device,) = [line for line in lines if line["kind"] == "device"]
    capability = f"{device['cc_major']}.{device['cc_minor']}"
    cases = [line for line in lines if line["kind"] == "case"]
    if capability not in LIMITS:
        oracle = Oracle(name="driver_agrees", passed=False, expected="known limits", seen=capability,
                        detail="no limits for this compute capability")  # fmt: skip
        return {"driver_kernels": len(cases)}, [oracle]
    answers = [_launch(case, launch, capability) for case in cases for launch in case["launches"]]
    wrong = [told for blocks, formula, told in answers if blocks != formula]
    registers = [case["registers"] for case in cases]
    results = {
        "driver_kernels": len(cases), "driver_cases": len(answers), "driver_equal": len(answers) - len(wrong),
        "driver_zero": sum(blocks == 0 for blocks, _, _ in answers),
        "driver_refused": sum(launch[4] != 0 for case in cases for launch in case["launches"]),
        "driver_registers": {"least": min(registers, default=0), "most": max(registers, default=0),
                             "different": len(set(registers))},
        "driver_cuda": device["driver_cuda"],
    }  # fmt: skip
    limits = LIMITS[capability]
    odd = {name: [limits[name], device[name]] for name in SHARED_KEYS if limits[name] != device[name]}
    if limits["max_warps_per_sm"] * 32 != device["max_threads_per_sm"]:
        odd["max_warps_per_sm"] = [limits["max_warps_per_sm"], device["max_threads_per_sm"] // 32]
    return results, [
        Oracle(name="driver_agrees", passed=not wrong and bool(answers), expected=0, seen=len(wrong),
               detail=f"{len(answers)} launches of {len(cases)} kernels; wrong: {'; '.join(wrong[:3]) or 'none'}"),
        Oracle(name="driver_limits", passed=not odd, expected={}, seen=odd,
               detail=f"limits of compute capability {capability} against the device's attributes"),
    ]  # fmt: skip


def _launch(case: dict[str, Any], launch: list[Any], capability: str) -> tuple[int, int, str]:
    """The driver's blocks, the formula's, and the launch as text."""
    threads, dynamic, opt_in, blocks, _ = launch
    formula = occupancy(registers_per_thread=case["registers"], threads_per_block=threads, opt_in=opt_in,
                        shared_bytes_per_block=case["static_shared_bytes"] + dynamic,
                        compute_capability=capability)["blocks_per_sm"]  # fmt: skip
    told = (f"{case['name']}: {case['registers']} registers, {threads} threads, {case['static_shared_bytes']} + "
            f"{dynamic} bytes, opt-in {opt_in}: driver {blocks}, formula {formula}")  # fmt: skip
    return blocks, formula, told
