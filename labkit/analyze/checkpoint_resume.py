"""What resumed runs repeated and what they did not, from the ranks' files of `labkit.workers.checkpoint_resume`.

In: rows of all ranks of one launch. Out: plain values by control.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit.analyze.ddp_rank_files import of_kind

Rows = Sequence[dict[str, Any]]
PARTS = ("model", "optimizer", "cpu_rng", "cuda_rng", "data_generator", "cursor", "step")
RANK_PARTS = ["cpu_rng", "cuda_rng", "cursor", "data_generator", "step"]
"""What every rank's own file holds."""


def controls_of(rows: Rows) -> list[str]:
    """Controls in the order in which they ran."""
    return [row["control"] for row in of_kind(rows, "resumed", rank=0)]


def steps_of(rows: Rows, control: str, run: str, rank: int = 0) -> list[dict[str, Any]]:
    """A rank's steps of one run, in order."""
    return sorted(of_kind(rows, "step", control=control, run=run, rank=rank), key=lambda row: row["step"])


def control_result(rows: Rows, control: str, *, world_size: int) -> dict[str, Any]:
    """How the resumed run of one control compares with the one that was never stopped.

    Returns: {"first_mismatch": step of the first reduced gradient that differs, or None; "first_model_mismatch",
        "gradient_elements_differing" (first resumed step), "elements_differing", "max_abs_diff" (final weights),
        "is_bitwise", "is_restored": {part: all ranks equal; None where no rank has it}, "is_data_equal",
        "is_first_loss_equal", "are_losses_equal", "are_replicas_equal", "save_s", "load_s", "has_rebuilt":
        {"continuous", "fresh"}, "rebuilt_bytes", "num_hash_pairs", "is_committed", "manifest", "partial":
        {"skipping_rank", "has_manifest", "all_told"}}.
    Raises: LookupError if a rank has not reported.
    """
    ranks = range(world_size)
    runs = {run: [steps_of(rows, control, run, rank) for rank in ranks] for run in ("before", "continuous", "resumed")}
    pairs = [list(zip(runs["continuous"][rank], runs["resumed"][rank], strict=True)) for rank in ranks]
    saved, resumed, partial = (of_kind(rows, kind, control=control) for kind in ("saved", "resumed", "partial"))
    for kind, found in (("saved", saved), ("resumed", resumed), ("partial", partial)):
        if [row["rank"] for row in found] != list(ranks):
            raise LookupError(f"{control}: {kind} of ranks {[row['rank'] for row in found]}, expected {world_size}")
    return {
        "first_mismatch": _first(pairs[0], "gradient_sha"),
        "first_model_mismatch": _first(pairs[0], "model_sha"),
        "gradient_elements_differing": max(row["gradient_elements_differing"] for row in resumed),
        "elements_differing": max(row["elements_differing"] for row in resumed),
        "max_abs_diff": max(row["max_abs_diff"] for row in resumed),
        "num_elements": resumed[0]["num_elements"],
        "is_bitwise": all(r["final_model_sha"]["continuous"] == r["final_model_sha"]["resumed"] for r in resumed),
        "is_restored": {part: _restored(saved, resumed, part) for part in PARTS},
        "is_data_equal": all(a[name] == b[name] for own in pairs for a, b in own for name in ("batch_sha", "cursor")),
        "is_first_loss_equal": all(own[0][0]["loss"] == own[0][1]["loss"] for own in pairs),
        "are_losses_equal": all(a["loss"] == b["loss"] for own in pairs for a, b in own),
        "are_replicas_equal": all(len({row["final_model_sha"][run] for row in resumed}) == 1
                                  for run in ("continuous", "resumed")),
        "save_s": max(row["time_s"] for row in saved), "load_s": resumed[0]["time_s"],
        "has_rebuilt": {"continuous": saved[0]["has_rebuilt_buckets"], "fresh": resumed[0]["has_rebuilt_buckets"]},
        "rebuilt_bytes": resumed[0]["rebuilt_bucket_sizes_bytes"],
        "num_hash_pairs": [sum("gradient_sha" in s and "model_sha" in s for s in [*runs["before"][0], *runs[run][0]])
                           for run in ("continuous", "resumed")],
        "is_committed": saved[0]["is_committed"], "manifest": _manifest(saved[0], world_size),
        "partial": {"skipping_rank": partial[0]["skipping_rank"],
                    "has_manifest": any(row["has_manifest"] for row in partial),
                    "all_told": all(row["error"] and f"rank {row['skipping_rank']} of" in row["error"]
                                    for row in partial)},
    }


def _first(pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]], name: str) -> int | None:
    return next((a["step"] for a, b in pairs if a[name] != b[name]), None)


def _restored(saved: Rows, resumed: Rows, part: str) -> bool | None:
    """True if every rank has the part as it saved it; None if no rank has it."""
    pairs = [(a["digests"][part], b["digests"][part]) for a, b in zip(saved, resumed, strict=True)]
    return None if all(pair == (None, None) for pair in pairs) else all(a == b for a, b in pairs)


def _manifest(saved: Mapping[str, Any], world_size: int) -> dict[str, Any]:
    """Whether the manifest names one main file and one file a rank, each with length, SHA-256 and its parts."""
    files, parts = saved["files"], saved["parts"]
    own = [f"rank{rank:05d}.pt" for rank in range(world_size)]
    return {
        "has_all_files": sorted(f["path"] for f in files) == sorted(["main.pt", *own]),
        "has_lengths_and_sha256": saved["hash"] == "sha256" and all(
            f["bytes"] > 0 and len(f["digest"]) == 64 for f in files),
        "ranks_wrote_their_own": all(f["rank"] == (0 if f["path"] == "main.pt" else own.index(f["path"]))
                                     for f in files if f["path"] in ("main.pt", *own)),
        "rank_parts": sorted({tuple(parts.get(name, ())) for name in own}) == [tuple(RANK_PARTS)],
        "main_parts": parts.get("main.pt") == ["model", "optimizer", "step"],
        "main_bytes": next((f["bytes"] for f in files if f["path"] == "main.pt"), None),
    }


def resume_results(rows: Rows, *, world_size: int) -> dict[str, dict[str, Any]]:
    """`control_result` of every control of one launch."""
    return {control: control_result(rows, control, world_size=world_size) for control in controls_of(rows)}


def order_results(rows: Rows) -> dict[str, dict[str, int]]:
    """Layout -> {"num_elements", "equal_in_own_order", "equal_in_other_order"}; empty if it was not looked at."""
    names = ("num_elements", "equal_in_own_order", "equal_in_other_order")
    return {row["stage"]: {name: row[name] for name in names} for row in of_kind(rows, "order", rank=0)}


def refused(rows: Rows) -> dict[str, list[str | None]]:
    """Fault -> what each rank was told when it asked to load anyway; None where it was let in."""
    found: dict[str, list[str | None]] = {}
    for row in of_kind(rows, "refused"):
        found.setdefault(row["fault"], []).append(row["error"])
    return found


def claim_results(found: Mapping[str, Mapping[str, Any]], *, reported: Sequence[str], save_step: int, num_steps: int,
                  order: Mapping[str, Mapping[str, int]], told: Mapping[str, Sequence[str | None]]) -> dict[str, Any]:
    """Results by the names that the ledger uses, from the launch whose ranks are enough to tell (three or more).

    Args:
        found: `resume_results` of that launch.
        reported: the report's five controls.
        save_step: step of the save.
        num_steps: of a run.
        order: `order_results`.
        told: `refused`.
    """
    five = {control: found[control] for control in reported}
    base = found["single-tensor AdamW"]
    never, warmed = found.get("buckets never rebuilt"), found["reducer warmed 3x"]
    mismatch = {control: own["first_mismatch"] for control, own in five.items()}
    restored = {part: all(own["is_restored"][part] is not False for own in five.values()) for part in PARTS}
    has_cuda = base["is_restored"]["cuda_rng"] is not None
    identical = [name for name, is_equal in (
        (f"step-{save_step + 1} gradient", warmed["first_mismatch"] != save_step + 1),
        ("model hashes", warmed["first_model_mismatch"] is None), ("losses", warmed["are_losses_equal"]),
        ("final parameters", warmed["is_bitwise"])) if is_equal]
    is_first = lambda control: mismatch[control] == save_step + 1  # noqa: E731
    manifests = [own["manifest"] for own in five.values()]
    has_hashes = all(own["num_hash_pairs"] == [num_steps, num_steps] for own in five.values())
    is_ordered = bool(order) and all(own["equal_in_own_order"] == own["num_elements"] for own in order.values())
    return {
        "params": base["num_elements"],
        "committed": sum(own["is_committed"] for own in five.values()),
        "partial_not_committed": {
            "skipping_rank": base["partial"]["skipping_rank"], "groups": len(five),
            "manifests": sum(own["partial"]["has_manifest"] for own in five.values())},
        "save_time": [min(o["save_s"] for o in five.values()), max(o["save_s"] for o in five.values())],
        "load_time": [min(o["load_s"] for o in five.values()), max(o["load_s"] for o in five.values())],
        "load_hash_equal": restored["model"] and restored["optimizer"],
        "restored": {part: is_equal for part, is_equal in restored.items() if part != "cuda_rng" or has_cuda},
        "step1_state": all(restored.values()),
        "first_mismatch": mismatch,
        "diff_elements": {control: own["elements_differing"] for control, own in five.items()},
        "max_diff": {control: own["max_abs_diff"] for control, own in five.items()},
        "bitwise": {control: own["is_bitwise"] for control, own in five.items()},
        "step2_fused": is_first("fused AdamW") and is_first("single-tensor AdamW"),
        "step3_deterministic": is_first("deterministic algorithms"),
        "step4_static": is_first("static_graph=True"),
        "rebuilt_buckets_bytes": base["rebuilt_bytes"],
        "rebuilt_flag": base["has_rebuilt"],
        "step6_warm": {"dummy_backwards": 3, "bit_identical": identical},
        "cause": is_first("single-tensor AdamW") and is_ordered and never is not None and never["is_bitwise"],
        "semantic_vs_bitwise": all(restored.values()) and is_first("single-tensor AdamW"),
        "step_hashes": has_hashes,
        "proto_rank_files": all(m["rank_parts"] and m["ranks_wrote_their_own"] for m in manifests),
        "proto_verify": all(m["has_all_files"] and m["has_lengths_and_sha256"] for m in manifests),
        "proto_commit": all(own["partial"]["all_told"] and not own["partial"]["has_manifest"]
                            for own in five.values()),
        "proto_load": {"world_size", "flipped byte"} <= told.keys() and all(
            said for of_ranks in told.values() for said in of_ranks),
        "oracle_ckpt": has_hashes and all(own["are_replicas_equal"] for own in five.values()) and all(
            m["has_all_files"] and m["has_lengths_and_sha256"] for m in manifests),
    }


def by_world_size(results: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, dict[str, Any]]]:
    """World size -> measure -> control -> value, for every launch."""
    names = ("first_mismatch", "gradient_elements_differing", "elements_differing", "max_abs_diff", "is_bitwise")
    return {str(world): {name: {control: own[name] for control, own in found.items()} for name in names}
            for world, found in sorted(results.items())}
