"""Was a run of the checkpoint lab right? Checks against predictions and independent computations.

Independent of each other: hashes of the state in memory before and after, the reducer's log, the closed form of bucket
layouts, sums of the ranks' own gradients in the predicted order, what is on the disk after a kill, torchrun's output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit.analyze.checkpoint_faults import DCP_EXPECTED, expected_names
from labkit.records import Oracle

Found = Mapping[int, Mapping[str, Mapping[str, Any]]]
"""World size -> control -> what `labkit.analyze.checkpoint_resume.control_result` gave."""


def _equal(name: str, expected: Any, seen: Any, detail: str = "") -> Oracle:
    return Oracle(name=name, passed=expected == seen, expected=expected, seen=seen, detail=detail)


def resume_oracles(found: Found, predicted: Mapping[str, Any], *, save_step: int, num_steps: int, batch: int,
                   is_order_known: bool) -> list[Oracle]:
    """Checks of all launches that resumed.

    Args:
        found: results by world size.
        predicted: values of the prediction: first_mismatch, reordered_elements, rebuilt_buckets_bytes, state_bytes.
        save_step: step of the save.
        num_steps: of the run that is never stopped.
        batch: samples of a rank and step.
        is_order_known: the all-reduce adds up in the order that is predicted (gloo, or two ranks).
    """
    every = [(world, control, own) for world, controls in found.items() for control, own in controls.items()]
    label = lambda world, control: f"{world} ranks, {control}"  # noqa: E731
    bad = lambda test: [label(world, control) for world, control, own in every if not test(own)]  # noqa: E731
    oracles = [
        _equal("state after the load equals the state at the save", [], bad(
            lambda own: own["is_restored"]["model"] and own["is_restored"]["optimizer"] and all(
                is_equal is not False for is_equal in own["is_restored"].values())),
            "SHA-256 of weights, optimizer, generators, cursor and step, on every rank"),
        _equal("no sample was lost or repeated", [], bad(lambda own: own["is_data_equal"]),
               "hash of each batch and position in the data, on every rank, against the run that was never stopped"),
        _equal("the first resumed loss repeats bit by bit", [], bad(lambda own: own["is_first_loss_equal"]),
               "forward pass from equal weights, data and dropout; no collective yet"),
        _equal("replicas are equal on all ranks", [], bad(lambda own: own["are_replicas_equal"]),
               "SHA-256 of the final weights, of both runs"),
        _equal("every save is committed, with every file in its manifest", [], bad(
            lambda own: own["is_committed"] and own["manifest"]["has_all_files"]
            and own["manifest"]["has_lengths_and_sha256"] and own["manifest"]["ranks_wrote_their_own"]
            and own["manifest"]["rank_parts"] and own["manifest"]["main_parts"])),
        _equal("a save that a rank skips is not committed, and every rank is told", [], bad(
            lambda own: own["partial"]["all_told"] and not own["partial"]["has_manifest"])),
        _equal("every step has both hashes", [], bad(lambda own: own["num_hash_pairs"] == [num_steps, num_steps])),
    ]
    sizes = {label(world, control): own["manifest"]["main_bytes"] for world, control, own in every}
    least = predicted["state_bytes"]
    oracles.append(Oracle(
        name="the main file is as long as predicted", expected=least, seen=sizes, tolerance=0.01 * least,
        passed=bool(sizes) and all(least <= size <= 1.01 * least + 20_000 for size in sizes.values()),
        detail="weights and two moments; names and padding add less than 1 % and 20 kB"))
    # With a static graph the log tells of the rebuild some steps later than without; an early reading has no sizes.
    logged = [(w, c, own) for w, c, own in every if own["rebuilt_bytes"] or c != "static_graph=True"]
    oracles.append(_equal(
        "rebuilt buckets as predicted", {label(w, c): predicted["rebuilt_buckets_bytes"][c] for w, c, _ in logged},
        {label(w, c): own["rebuilt_bytes"] for w, c, own in logged}, "the reducer's log of the run that went on"))
    if is_order_known:
        oracles += _order_bounds(every, label, predicted)
    return oracles


def _order_bounds(every: Sequence[tuple[int, str, Mapping[str, Any]]], label: Any, predicted: Mapping[str, Any]
                  ) -> list[Oracle]:
    mismatch = predicted["first_mismatch"]
    bound = predicted["reordered_elements"]
    return [
        _equal("the first gradient that differs is the predicted one",
               {label(w, c): mismatch[str(w)][c] for w, c, _ in every},
               {label(w, c): own["first_mismatch"] for w, c, own in every},
               "by hash of rank 0's reduced gradient"),
        Oracle(name="no more elements differ than are summed in another order",
               expected={label(w, c): bound[str(w)][c] for w, c, _ in every},
               seen={label(w, c): own["gradient_elements_differing"] for w, c, own in every},
               passed=all(own["gradient_elements_differing"] <= bound[str(w)][c] for w, c, own in every),
               detail="first resumed step; expected is an upper bound, since most sums round alike in either order"),
    ]


def order_oracle(orders: Mapping[int, Mapping[str, Mapping[str, int]]], *, is_required: bool) -> list[Oracle]:
    """Reduced gradients against sums of the ranks' own gradients in the predicted order, by world size and layout."""
    if not orders and not is_required:
        return []
    name = "{} ranks, {} layout"
    return [_equal(
        "every reduced gradient element is the sum in the predicted order",
        {name.format(w, stage): own["num_elements"] for w, order in orders.items() for stage, own in order.items()}
        or "at least one layout",
        {name.format(w, stage): own["equal_in_own_order"] for w, order in orders.items()
         for stage, own in order.items()},
        "elements whose bits agree; the ranks' own gradients come from the module without DDP")]


def refusal_oracle(told: Mapping[str, Sequence[str | None]], *, world_size: int) -> Oracle:
    """Damage and another world size must be refused on every rank, in words."""
    return _equal("a flipped byte and another world size are refused on every rank",
                  {"world_size": world_size, "flipped byte": world_size},
                  {fault: sum(bool(said) for said in of_ranks) for fault, of_ranks in told.items()},
                  "ranks that got an error instead of a state")


def dcp_oracles(seen: Mapping[str, Mapping[str, Any]], *, world_size: int) -> list[Oracle]:
    """What DCP and our verification say about each accident, and which files are named."""
    return [
        _equal("DCP alone, and verification, answer each accident as expected",
               {name: list(answer) for name, answer in DCP_EXPECTED.items()},
               {name: [own["dcp_load"], own["verify"], own["newest_good_step"]] for name, own in seen.items()},
               "[DCP's load, status, newest good step]"),
        _equal("verification names the files that are wrong", expected_names(world_size),
               {name: own["named"] for name, own in seen.items()}),
    ]


def kill_oracles(found: Mapping[str, Any]) -> list[Oracle]:
    """Real ranks, stopped while they saved."""
    return [_equal("after each kill, full disk and straggler the right step is the newest good one on every rank", [],
                   found["wrong"], f"{found['num_tries']} tries in a row, each resumed by all ranks from what the one "
                   f"before left; {found['num_kills']} SIGKILLs at {found['num_points']} steps of the writers")]


def drill_oracles(found: Mapping[str, Any], *, num_faults: int) -> list[Oracle]:
    """The drill on the protocol: all faults noticed, no alarm without one, the right step found."""
    return [
        _equal("every fault of the drill is noticed", num_faults, found["num_detected"],
               "and every file that was touched is named"),
        _equal("no alarm without a fault", 0, found["num_false_alarms"],
               f"{found['num_clean_checks']} checks of good checkpoints, also after harmless changes"),
        _equal("the newest good step is found after every fault", num_faults, found["num_recovered"]),
        Oracle(name="a file system that is full is refused", expected="refused, nothing committed", seen=found["tmpfs"],
               passed=found["tmpfs"] in ("refused, nothing committed", "not allowed here"),
               detail="a real ENOSPC where a user may mount a tmpfs; limits on the file size are tried everywhere"),
    ]


def exit_oracles(seen: Mapping[str, Any], *, rank: int, exitcode: int) -> list[Oracle]:
    """A rank that exits: the launcher must name it, and not wait for a timeout."""
    return [_equal("torchrun names the rank that left, and its exit code",
                   {"error": "ChildFailedError", "rank": rank, "exitcode": exitcode, "before_timeout": True},
                   {name: seen[name] for name in ("error", "rank", "exitcode", "before_timeout")})]


def straggler_oracles(seen: Mapping[str, Any], *, rank: int) -> list[Oracle]:
    """A rank that is alive but late: only the timeout notices, and only aligned logs name it."""
    return [_equal("the ranks' logs, aligned, name the rank that is late",
                   {"missing": [rank], "failed": True, "after_timeout": True},
                   {name: seen[name] for name in ("missing", "failed", "after_timeout")})]


def leftover_oracle(children: Sequence[str], shared_memory: Sequence[str]) -> Oracle:
    """Nothing of any launch may be left."""
    return _equal("no child and no shared-memory file is left", {"children": [], "shared_memory": []},
                  {"children": list(children), "shared_memory": list(shared_memory)},
                  "processes that had to be ended after a launch that went well; new files in /dev/shm after all")
