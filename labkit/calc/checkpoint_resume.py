"""What a resumed DDP run repeats bit by bit, and what it does not: predicted from bucket layouts.

The report's five controls, and two of ours that move the layout itself. Each changes one setting of the same run.

    python -m labkit calc checkpoint_resume first_mismatch world_size=4
"""

from __future__ import annotations

from typing import Any

from labkit.calc._require import require_choice, require_int
from labkit.calc.ddp import initial_buckets, rebuilt_buckets
from labkit.calc.ring_order import num_reordered, ring_ranks, sum_spans

CONTROLS: dict[str, dict[str, Any]] = {
    "fused AdamW": {"is_fused": True},
    "single-tensor AdamW": {},
    "deterministic algorithms": {"is_deterministic": True},
    "static_graph=True": {"is_static": True},
    "reducer warmed 3x": {"num_warm_passes": 3},
    "buckets never rebuilt": {"is_rebuilt": False},
    "one bucket throughout": {"bucket_cap_mib": 100.0},
}
"""Name -> what differs from plain single-tensor AdamW. The first five are the report's."""
REPORTED = tuple(CONTROLS)[:5]


def mlp_parameters(*, hidden: int = 1024, inner: int = 2048) -> list[list[Any]]:
    """Parameters of the report's model in registration order: Linear, GELU, Dropout, Linear.

    Args:
        hidden: width of input and output.
        inner: width between the two layers.

    Returns: [[name, shape], ...].
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: both layers have a bias; the inner width is inferred from the report's element count.
    Source: report sections 6.1 and 6.3.

    >>> sum(a * b for _, (a, b) in mlp_parameters()[::2]) + 2048 + 1024
    4197376
    """
    require_int("hidden", hidden, least=1)
    require_int("inner", inner, least=1)
    return [["0.weight", [inner, hidden]], ["0.bias", [inner]], ["3.weight", [hidden, inner]], ["3.bias", [hidden]]]


def bucket_names(
    *, control: str, stage: str, hidden: int = 1024, inner: int = 2048
) -> list[list[str]]:
    """Names in each bucket of the model's reducer, in the order in which they lie there.

    Args:
        control: one of CONTROLS.
        stage: "initial" (first backward pass of a reducer) or "later".
        hidden: as `mlp_parameters`, like `inner`.
        inner: width between the layers.

    Returns: names, bucket by bucket.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `labkit.calc.ddp`.
    Source: `labkit.calc.ddp.initial_buckets` and `rebuilt_buckets`.

    >>> bucket_names(control="single-tensor AdamW", stage="later")
    [['3.bias', '3.weight'], ['0.bias', '0.weight']]
    """
    settings = CONTROLS[require_choice("control", control, tuple(CONTROLS))]
    require_choice("stage", stage, ("initial", "later"))
    parameters = mlp_parameters(hidden=hidden, inner=inner)
    cap, is_rebuilt = settings.get("bucket_cap_mib"), settings.get("is_rebuilt", True)
    if stage == "later" and is_rebuilt:
        return [bucket["names"] for bucket in rebuilt_buckets(parameters=parameters, bucket_cap_mib=cap)]
    return [bucket["names"] for bucket in initial_buckets(
        parameters=parameters, bucket_cap_mib=cap, find_unused_parameters=not is_rebuilt,
        static_graph=settings.get("is_static", False))]


def reordered_elements(*, world_size: int, hidden: int = 1024, inner: int = 2048) -> dict[str, int]:
    """Gradient elements that the first resumed step sums in another order than the continuous run did.

    Args:
        world_size: ranks, >= 2.
        hidden: as `mlp_parameters`, like `inner`.
        inner: width between the layers.

    Returns: elements for each of CONTROLS; 0 where the reducer is warmed or never changes, and for two ranks.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: gloo's ring; the continuous run has rebuilt its buckets, the resumed one only if it was warmed.
    Source: `labkit.calc.ring_order.num_reordered`.

    >>> {name: n > 0 for name, n in reordered_elements(world_size=4).items()}["reducer warmed 3x"]
    False
    """
    parameters = mlp_parameters(hidden=hidden, inner=inner)
    found = {}
    for control, settings in CONTROLS.items():
        later = bucket_names(control=control, stage="later", hidden=hidden, inner=inner)
        fresh = later if settings.get("num_warm_passes") else bucket_names(
            control=control, stage="initial", hidden=hidden, inner=inner)
        found[control] = num_reordered(parameters=parameters, first=fresh, second=later, world_size=world_size)
    return found


def sum_order(*, control: str, world_size: int, hidden: int = 1024, inner: int = 2048
              ) -> dict[str, list[dict[str, Any]]]:
    """In which order a ring adds up the ranks, for each piece of each gradient, before and after the rebuild.

    Args:
        control: one of CONTROLS.
        world_size: ranks, >= 2.
        hidden: as `mlp_parameters`, like `inner`.
        inner: width between the layers.

    Returns: {"initial", "later": [{"name", "start", "stop", "chunk", "ranks"}]}: elements start to stop of a parameter.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: gloo's ring.
    Source: `labkit.calc.ring_order.sum_spans` and `ring_ranks`.

    >>> [span["ranks"] for span in sum_order(control="single-tensor AdamW", world_size=4)["initial"]][0]
    [3, 2, 1, 0]
    """
    parameters = mlp_parameters(hidden=hidden, inner=inner)
    found = {}
    for stage in ("initial", "later"):
        buckets = bucket_names(control=control, stage=stage, hidden=hidden, inner=inner)
        spans = sum_spans(parameters=parameters, buckets=buckets, world_size=world_size)
        found[stage] = [{**span, "ranks": ring_ranks(chunk=span["chunk"], world_size=world_size)} for span in spans]
    return found


def first_mismatch(*, world_size: int, save_step: int = 3, hidden: int = 1024, inner: int = 2048
                   ) -> dict[str, int | None]:
    """First step whose reduced gradient is not the one of the run that was never stopped.

    Args:
        world_size: ranks, >= 2.
        save_step: the step that was saved, >= 2: the buckets are rebuilt by then.
        hidden: as `mlp_parameters`, like `inner`.
        inner: width between the layers.

    Returns: step for each of CONTROLS; None where every step repeats bit by bit.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: all state is restored; among the reordered sums at least one rounds differently.
    Source: `reordered_elements`; report section 6.3.

    >>> first_mismatch(world_size=4)["fused AdamW"], first_mismatch(world_size=2)["fused AdamW"]
    (4, None)
    """
    require_int("save_step", save_step, least=2)
    changed = reordered_elements(world_size=world_size, hidden=hidden, inner=inner)
    return {control: save_step + 1 if changed[control] else None for control in CONTROLS}
