"""The claims of the two first labs on records written by hand: right results verify, each planted one is noticed."""

import copy

import pytest

from labkit import claims
from labkit.records import quantity
from tests.toy_ledger import Place

CAPS, CASES = ("1 MiB", "4 MiB", "25 MiB", "100 MiB"), ("m8a1", "m1a8-no_sync", "m1a8-sync-every")
SHAPES = ("1024x768", "1024x4096", "1024x8192", "8192x768", "8192x4096", "8192x8192")
COUNTS = dict(zip(CAPS, (50, 37, 13, 4)))
MODEL = {"num_layers": 12, "hidden": 768, "vocab_size": 32000, "num_positions": 512, "tied": True, "linear_bias": False,
         "accum_cap_mib": 25, "samples_per_rank": 8, "world_size": 2, "microbatch": 1,
         "seq_tokens": 16}
TOKENS = 2 * 8 * 16


def times(tokens, *by_case):
    """Step times (ms) and rates of the accumulation cases and the caps (an eighth of the tokens), 5 % either way."""
    steps = {case: quantity([0.95 * ms, ms, 1.05 * ms], "ms") for case, ms in zip((*CASES, *CAPS), by_case)}
    ends = {"value": "value", "p10": "p90", "p90": "p10"}
    share = dict.fromkeys(CASES, 1) | dict.fromkeys(CAPS, 8)
    rates = {c: {**q, **{e: tokens / share[c] / q[o] * 1e3 for e, o in ends.items()}} for c, q in steps.items()}
    return {"step_time_ms": steps, "tokens_per_s": rates}


DDP = {
    "num_parameters": 109942272, "large_parameter_mib": 93.75, "bucket_count": dict(COUNTS),
    "collectives_per_step": dict(COUNTS),
    "bucket_max_mib": dict(zip(CAPS, (93.75, 95.255859375, 95.255859375, 108.046875))),
    "accum_collectives": dict(zip(CASES, (13, 13, 104))), "no_sync_backward_only_collectives": 13,
    "slices_distinct": True, "gradients_equal_across_ranks": dict.fromkeys((*CAPS, *CASES), True),
    "grad_rel_diff_m1a8_vs_m8a1": 3e-7, "loss_rel_diff_m1a8_vs_m8a1": 1e-8, "straggler_rank0_vs_slowest": 0.4,
    "compute_before_first_comm_pct": dict(zip(CAPS, (40.0, 45.0, 60.0, 90.0))),
    "comm_union_ms": dict.fromkeys(CASES, 10.0), "exposed_comm_ms": dict.fromkeys(CASES, 7.5),
    "overlap_pct": dict.fromkeys(CASES, 25.0), **times(TOKENS, 100.0, 300.0, 900.0, 9.0, 9.0, 9.0, 9.0),
}
TRITON = {
    "block_size": {"768": 1024, "4096": 4096, "8192": 8192}, "within_bound": dict.fromkeys(SHAPES, True),
    "min_bytes": dict(zip(SHAPES, (3147264, 16785408, 33570816, 25167360, 134225920, 268451840))),
    "max_abs_err": dict.fromkeys(SHAPES, 0.0019),
}
STRUCTURAL_DDP = {
    "ddp-bucket-count", "ddp-bucket-max", "ddp-bucket-nccl-kernels", "ddp-large-param", "ddp-cap1-big-bucket",
    "ddp-accum-kernels", "ddp-104-identity",
}


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def rows_of(place, lab):
    found = claims.verify(lab=lab, roots=(place.local, place.committed), tag="cpu-2c")
    return {row.id: row for row in found}


def test_every_structural_result_and_definition_of_ddp_verifies_on_a_right_record(place):
    run_id = place.run(1, DDP, params=MODEL, experiment="ddp_buckets")
    rows = rows_of(place, "ddp_buckets")
    results = {i for i, r in rows.items() if (r.kind, r.role) == ("structural", "result")}
    assert results == STRUCTURAL_DDP
    analytic = {i for i, r in rows.items() if r.kind == "analytic"}
    for claim_id in results | analytic:
        assert rows[claim_id].status == "verified", rows[claim_id]
    assert all(rows[claim_id].record == run_id for claim_id in results)
    assert {i for i, r in rows.items() if r.status == "differs"} == {"ddp-bucket-tokens", "ddp-cap100-cause"}


def test_every_analytic_claim_of_triton_verifies(place):
    place.run(1, TRITON, experiment="triton_rmsnorm")
    rows = rows_of(place, "triton_rmsnorm")
    for claim_id in ("triton-block", "triton-minbytes-def", "triton-math", "audit-oracle-triton"):
        assert rows[claim_id].status == "verified" and rows[claim_id].record, rows[claim_id]


@pytest.mark.parametrize(
    ("path", "planted", "differing"),
    [
        (("bucket_count", "1 MiB"), 51, {"ddp-bucket-count", "ddp-def-bucket-source", "ddp-log-not-cli"}),
        (("bucket_count", "25 MiB"), 12, {"ddp-bucket-count", "ddp-def-bucket-source", "ddp-104-identity",
                                          "ddp-accum-variants"}),
        (("collectives_per_step", "100 MiB"), 8, {"ddp-bucket-nccl-kernels", "ddp-def-bucket-source"}),
        (("bucket_max_mib", "100 MiB"), 108.15, {"ddp-bucket-max"}),
        (("bucket_max_mib", "1 MiB"), 0.9, {"ddp-bucket-max", "ddp-cap1-big-bucket", "ddp-cap-soft",
                                            "ddp-small-bucket-cost"}),
        (("accum_collectives", "m1a8-no_sync"), 104, {"ddp-accum-kernels", "ddp-104-identity", "ddp-rev-accum",
                                                      "ddp-hyp-accum", "ddp-accum-variants"}),
        (("no_sync_backward_only_collectives",), 0, {"ddp-no-sync-forward"}),
        (("grad_rel_diff_m1a8_vs_m8a1",), 7.0, {"ddp-accum-loss-scale", "ddp-same-batch-not-same"}),
        (("slices_distinct",), False, {"ddp-accum-inputs"}),
        (("straggler_rank0_vs_slowest",), 1.0, {"ddp-slowest-rank"}),
        (("overlap_pct", "m8a1"), 33.3, {"ddp-def-overlap", "ddp-def-exposed"}),
        (("large_parameter_mib",), 94.0, {"ddp-large-param", "ddp-small-bucket-cost"}),
        (("num_parameters",), 109942273, {"ddp-model-shape"}),
    ],
)
def test_a_planted_result_is_noticed_and_nothing_else(place, path, planted, differing):
    results = copy.deepcopy(DDP)
    owner = results
    for key in path[:-1]:
        owner = owner[key]
    owner[path[-1]] = planted
    place.run(1, results, params=MODEL, experiment="ddp_buckets")
    rows = rows_of(place, "ddp_buckets")
    found = {i for i, r in rows.items() if r.status == "differs"} - {"ddp-bucket-tokens", "ddp-cap100-cause"}
    assert found == differing
    assert claims.failed(rows.values())


@pytest.mark.parametrize("change", [{"num_layers": 2}, {"tied": False}, {"linear_bias": True}, {"world_size": 1}])
def test_another_model_says_nothing_about_the_report(place, change):
    place.run(1, DDP, params=MODEL | change, experiment="ddp_buckets")
    rows = rows_of(place, "ddp_buckets")
    assert {rows[claim_id].record for claim_id in STRUCTURAL_DDP} == {None}


def test_the_gain_of_no_sync_is_judged_on_a_gpu_by_direction(place):
    place.run(1, DDP, params=MODEL, experiment="ddp_buckets")
    assert rows_of(place, "ddp_buckets")["ddp-no-sync-gain"].record is None  # a CPU run says nothing about NCCL
    run_id = place.run(2, DDP, params=MODEL, experiment="ddp_buckets", tag="h200-x2", root=place.committed)
    row = rows_of(place, "ddp_buckets")["ddp-no-sync-gain"]
    assert (row.status, row.record, row.expected, row.seen) == ("reproduced_elsewhere", run_id, 2.59, 3)
    slower = DDP | times(TOKENS, 100.0, 950.0, 900.0)  # within p10-p90 of each other
    place.run(3, slower, params=MODEL, experiment="ddp_buckets", tag="h200-x2", root=place.committed)
    rows = rows_of(place, "ddp_buckets")
    assert rows["ddp-no-sync-gain"].status == "differs"
    assert claims.failed(rows.values()) == []


def test_step_times_of_other_hardware_stand_beside_the_report_s(place):
    run_id = place.run(1, DDP, params=MODEL, experiment="ddp_buckets", tag="h200-x2", root=place.committed)
    row = rows_of(place, "ddp_buckets")["ddp-bucket-step"]
    assert (row.status, row.record, row.seen) == ("not_run", run_id, dict.fromkeys(CAPS, 9))
    assert row.expected["1 MiB"] == 127.1
