"""The real ledger: every formula of the report holds or is a listed erratum, and none accepts another figure."""

import json
from dataclasses import asdict, replace

import pytest

from labkit import claims
from labkit.ledger.checks import expected_of, run_arithmetic
from labkit.ledger.compare import is_number, leaves, parse_rule
from labkit.ledger.load import load_ledger
from labkit.paths import CLAIMS
from labkit.presets import UsageError

KNOWN_ERRATA = {  # claims whose printed figure does not follow from the report's own inputs
    "ddp-bucket-tokens", "ddp-cap100-cause", "fsdp-tokens", "moe-step-ms", "moe-tokens", "nccl-pair-slowdown-mean",
    "pg-serial", "prefix-revisit-near-cold", "triton-minbytes-bw",
}


@pytest.fixture(scope="module")
def ledger():
    return load_ledger(CLAIMS)


REPORT = [claim for claim in claims.load_claims() if claim.ledger == "v100_report"]
ARITHMETIC = [claim for claim in REPORT if claim.check.by in ("formula", "calc")]


def test_all_claims_are_here():
    by_kind: dict[str, int] = {}
    for claim in REPORT:
        by_kind[claim.kind] = by_kind.get(claim.kind, 0) + 1
    assert by_kind == {"structural": 171, "analytic": 18, "timing": 105, "mechanism": 54, "boundary": 40}
    assert sum(by_kind.values()) == 388
    seeds = [erratum.seed for erratum in claims.load_errata()]
    assert (seeds.count("v100_report"), seeds.count("questions")) == (21, 40)


def test_a_claim_names_its_errata_and_they_name_it(ledger):
    named = {(c.id, e) for c in REPORT for e in c.errata}
    naming = {(c, e.id) for e in ledger.errata.values() if e.seed == "v100_report" for c in e.claims}
    assert named == naming


@pytest.mark.parametrize("claim", ARITHMETIC, ids=lambda claim: claim.id)
def test_every_formula_holds_or_is_a_listed_erratum(claim, ledger):
    outcome = run_arithmetic(claim, claim.check, ledger)
    assert outcome.holds is (claim.id not in KNOWN_ERRATA), outcome
    if not outcome.holds:
        assert outcome.corrected_holds and claim.errata and not claim.must_hold, outcome


def moved(leaf, claim):
    """A value that the check must refuse: the smallest step of the printed figure that its rule can see."""
    if isinstance(leaf, bool):
        return not leaf
    if isinstance(leaf, str):
        return leaf + "?"
    rule = parse_rule(claim.check.compare)
    if rule.mode == "reachable":
        return leaf + 0.05 * abs(leaf) + 1.0
    if rule.mode == "sig":
        return leaf * 1.01
    return leaf + {"dp": 1.001 * 10.0**-rule.amount}.get(rule.mode, 1)


@pytest.mark.parametrize("claim", [c for c in ARITHMETIC if c.id not in KNOWN_ERRATA], ids=lambda claim: claim.id)
def test_no_formula_accepts_another_figure(claim, ledger):
    """Every judged number of every formula, moved by one printed step, makes its claim differ."""
    expected = expected_of(claim, claim.check)
    for path, leaf in leaves(expected):
        if leaf is None:
            continue
        planted = replace(claim, check=replace(claim.check, expect=with_leaf(expected, path, moved(leaf, claim))))
        assert not run_arithmetic(planted, planted.check, ledger).holds, path


def with_leaf(tree, path, leaf):
    if not path:
        return leaf
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    copy[path[0]] = with_leaf(tree[path[0]], path[1:], leaf)
    return copy


@pytest.mark.parametrize(
    ("changed", "key", "value", "dependent"),
    [
        ("ddp-bucket-tokens", "100 MiB", 30500, "ddp-cap100-slower"),
        ("ddp-accum-tokens", "m8a1", 228065, "ddp-accum-relative"),
        ("ddp-bucket-exposed", "4 MiB", 85.41, "ddp-bucket-overlap"),
        ("triton-native-ms", "8192x8192", 1.5007, "triton-speedup-native"),
        ("occ-registers", "h8192/w1", 250, "occ-reg-ratio"),
        ("preempt-tpot", "4 GiB / 16", 37.83, "preempt-tpot-11"),
        ("fsdp-union", "block+PRE", 85.63, "fsdp-pre-hides-1119"),
    ],
)
def test_a_changed_input_makes_what_depends_on_it_differ(ledger, changed, key, value, dependent):
    claim = ledger.claims[changed]
    assert is_number(claim.value[key])
    planted = replace(ledger, claims={**ledger.claims, changed: replace(claim, value={**claim.value, key: value})})
    target = ledger.claims[dependent]
    assert run_arithmetic(target, target.check, ledger).holds
    assert not run_arithmetic(target, target.check, planted).holds


def test_rows_are_plain_json_with_exactly_the_fields(tmp_path):
    of_the_report = {claim.id for claim in REPORT}
    rows = [row for row in claims.verify(roots=(tmp_path, tmp_path), tag="cpu-2c") if row.id in of_the_report]
    assert len(rows) == 388
    fields = ["id", "kind", "role", "status", "expected", "seen", "tolerance", "record", "reason"]
    for row in rows:
        assert list(asdict(row)) == fields
        assert row.status in claims.STATUSES and row.reason
        json.dumps(asdict(row), allow_nan=False)
    assert {row.id for row in rows if row.status == "differs"} == KNOWN_ERRATA
    assert claims.failed(rows) == []


def test_without_a_record_no_structural_result_of_a_lab_counts_as_seen(tmp_path):
    rows = claims.verify(lab="ddp_buckets", roots=(tmp_path, tmp_path), tag="cpu-2c")
    status = {row.id: row.status for row in rows}
    assert {status[name] for name in ("ddp-bucket-count", "ddp-bucket-max", "ddp-accum-kernels")} == {"not_run"}


def test_unknown_names_are_refused_with_the_close_one():
    with pytest.raises(UsageError, match="did you mean 'ddp-bucket-count'"):
        claims.get_claim("ddp-bucket-counts")
    with pytest.raises(UsageError, match="did you mean 'ddp_buckets'"):
        claims.verify(lab="ddp_bucket")
    with pytest.raises(UsageError, match="did you mean '25 MiB'"):
        claims.claim_value(claims.get_claim("ddp-bucket-count"), "25 MB")


def test_claim_value_follows_keys_and_positions():
    assert claims.claim_value(claims.get_claim("ddp-bucket-count"), "25 MiB") == 13
    assert claims.claim_value(claims.get_claim("fsdp-collectives"), "block+PRE.ag") == 25
    assert claims.claim_value(claims.get_claim("moe-received-hot"), "0") == 24576
    assert claims.claim_value(claims.get_claim("ddp-large-param")) == 93.75
    for wrong in ("block+PRE.ag.x", "block+PRE.xx"):
        with pytest.raises(UsageError, match="fsdp-collectives"):
            claims.claim_value(claims.get_claim("fsdp-collectives"), wrong)
