"""The interview text's ledger: all 240 claims, no check takes another figure, programs notice what is wrong."""

import json
import math
from collections import Counter
from dataclasses import asdict, replace

import pytest

from labkit import claims
from labkit.book import lookup, sources
from labkit.ledger import compiled, question_checks
from labkit.ledger.checks import expected_of, run_arithmetic
from labkit.ledger.compare import is_number, leaves, parse_rule, printed_decimals
from labkit.ledger.load import load_ledger
from labkit.ledger.schema import CannotRun
from labkit.paths import CLAIMS
from tests.toy_ledger import Place, a_claim, write_ledger

HAS_COMPILER = any(compiled.shutil.which(name) for name in compiled.COMPILERS)
needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="no C++ compiler")
QUESTIONS = [claim for claim in claims.load_claims() if claim.ledger == "questions"]
COMPUTED = [claim for claim in QUESTIONS if claim.check.by != "read"]


@pytest.fixture(scope="module")
def ledger():
    return load_ledger(CLAIMS)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Rows without any record: what the ledger alone can tell."""
    empty = tmp_path_factory.mktemp("runs")
    return {row.id: row for row in claims.verify(roots=(empty, empty), tag="cpu-2c")}


# --- all of it is here


def test_all_claims_of_the_29_answers_are_here():
    assert len(QUESTIONS) == 240
    assert Counter(claim.kind for claim in QUESTIONS) == {
        "numeric": 125, "mechanism": 45, "boundary": 39, "analytic": 18, "version-bound": 13,
    }
    assert Counter(claim.role for claim in QUESTIONS) == {"printed": 119, "added": 104, "rederived": 17}
    assert sorted({int(claim.section) for claim in QUESTIONS}) == list(range(1, 30))
    assert all(claim.id.startswith(f"q{int(claim.section):02d}-") for claim in QUESTIONS)
    areas = {claim.section: claim.area for claim in QUESTIONS}
    assert Counter(areas.values()) == {
        "cpp": 6, "serving": 3, "cuda-memory": 3, "attention": 2, "kv-cache": 2, "parallelism": 2, "moe": 2,
        "numerics": 2, "math": 2, "roofline": 1, "mla": 1, "kernels": 1, "hardware": 1, "cpu": 1,
    }


def test_a_claim_names_its_errata_and_they_name_it(ledger):
    named = {(c.id, e) for c in QUESTIONS for e in c.errata}
    naming = {(c, e.id) for e in ledger.errata.values() if e.seed == "questions" for c in e.claims}
    assert named == naming and len(naming) == 36


def test_every_numeric_and_analytic_claim_is_computed_and_must_hold():
    for claim in QUESTIONS:
        if claim.kind == "numeric" or (claim.kind == "analytic" and claim.id != "q04-ring-stages"):
            assert claim.check.by in ("calc", "formula", "program") and claim.must_hold, claim.id
        else:
            assert not claim.must_hold, claim.id


def test_what_is_not_computed_says_whether_it_was_looked_up():
    for claim in QUESTIONS:
        if claim.check.by == "read" and claim.kind == "version-bound":
            assert claim.check.reason.startswith(("looked up, not run: ", "as reported, not checked: ")), claim.id
    unchecked = {c.id for c in QUESTIONS if c.check.reason.startswith("as reported")}
    assert unchecked == {"q18-tile-variable"}


# --- where each stands


@needs_compiler
def test_statuses_are_those_of_the_text_s_own_recount(rows):
    """196 computed claims agree and 17 more are programs; one does not follow; 26 are statements."""
    found = Counter(rows[claim.id].status for claim in QUESTIONS)
    assert found == {"verified": 213, "differs": 1, "not_run": 26}
    assert Counter(rows[c.id].status for c in QUESTIONS if c.role == "printed") == {
        "verified": 93, "differs": 1, "not_run": 25,
    }


def test_the_ring_needs_seven_transfers_not_eight(rows):
    row = rows["q04-ring-stages"]
    assert (row.status, row.expected, row.seen) == ("differs", 8, 7)
    assert "erratum Q01 (inconsistent)" in row.reason


def test_every_must_hold_claim_holds(rows):
    assert all(rows[claim.id].status == "verified" for claim in QUESTIONS if claim.must_hold)
    assert claims.failed(rows.values()) == []
    assert sum(claim.must_hold for claim in QUESTIONS) == 142


def test_rows_keep_their_fields_and_tell_the_origin(rows):
    assert len(rows) == 388 + 240
    fields = ["id", "kind", "role", "status", "expected", "seen", "tolerance", "record", "reason"]
    for claim in QUESTIONS:
        row = asdict(rows[claim.id])
        assert list(row) == fields and row["role"] in claims.ORIGINS and row["reason"]
        json.dumps(row, allow_nan=False)
    assert claims.summary(rows.values())["by_role"]["rederived"] == {"verified": 17}


# --- no check accepts another figure


def moves(leaf, rule):
    """Values one printed step away: the check must refuse each."""
    if isinstance(leaf, bool):
        return [not leaf]
    if isinstance(leaf, str):
        return [leaf + "?"]
    size = abs(leaf) or 1.0
    step = {
        "dp": 1.001 * 10.0**-rule.amount, "rel": 2.2 * rule.amount * size,
        "sig": 1.001 * 10.0 ** (math.floor(math.log10(size)) + 1 - rule.amount),
        "exact": 10.0 ** -printed_decimals(leaf),
    }[rule.mode]
    return [leaf + step, leaf - step]


def rule_at(claim, path):
    text = claim.check.compare
    return parse_rule(text[path[0]] if isinstance(text, list) else text)


def with_leaf(tree, path, leaf):
    if not path:
        return leaf
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    copy[path[0]] = with_leaf(tree[path[0]], path[1:], leaf)
    return copy


@pytest.mark.parametrize("claim", COMPUTED, ids=lambda claim: claim.id)
def test_no_check_accepts_another_figure(claim, ledger, monkeypatch):
    """Every judged value, moved by one printed step either way, makes its claim differ."""
    if claim.check.needs and "compiler" in claim.check.needs and not HAS_COMPILER:
        pytest.skip("no C++ compiler")
    outcome = run_arithmetic(claim, claim.check, ledger)
    assert outcome.holds is (claim.id != "q04-ring-stages")
    # What came out does not change with what is expected: compute it once, judge it often.
    from labkit.ledger import checks
    from labkit.ledger.scope import as_seen

    seen = as_seen(outcome.seen)
    expected = expected_of(claim, claim.check)
    for path, leaf in leaves(expected):
        for other in moves(leaf, rule_at(claim, path)):
            if claim.id == "q04-ring-stages" and other == 7:
                continue
            planted = replace(claim.check, expect=with_leaf(expected, path, other))
            assert not checks.judge(claim, planted, planted.expect, seen).holds, (path, other)


def test_a_list_that_is_longer_or_shorter_differs(ledger):
    claim = ledger.claims["q08-mtp-acceptance"]
    items = claim.check.items
    for wrong in (items[:-1], (*items, items[-1])):
        assert not run_arithmetic(claim, replace(claim.check, items=wrong), ledger).holds


def test_each_entry_is_judged_by_its_own_rule(ledger):
    """0.655 and 21.85 are 0.66 and 22 to two and to no decimals, but 21.85 is not 22.00."""
    claim = ledger.claims["q08-migration-cost"]
    assert claim.check.compare == ["dp 2", "dp 0"] and claim.value == [0.66, 22]
    swapped = replace(claim.check, compare=["dp 0", "dp 2"])
    assert run_arithmetic(claim, claim.check, ledger).holds
    assert run_arithmetic(claim, swapped, ledger).wrong == ("1",)


def test_one_thing_and_its_parts(ledger):
    """Figures of different claims that must fit together, by hand."""
    value = {claim.id: claim.value for claim in QUESTIONS}
    assert value["q03-mla-bytes-per-token"] == 61 * value["q04-latent-bytes"]
    assert value["q13-mla-bytes"][0] == value["q04-latent-bytes"] == 2 * (512 + 64)
    assert value["q11-both-phases"] == 2 * value["q11-dispatch-group"] == value["q11-send-plus-recv"][0] / 2
    assert value["q09-check-by-counting"][0] * 8 / 256 == value["q09-check-by-counting"][2]
    assert value["q01-tgroup"] == 32 * value["q01-local-tokens-ep32"]
    assert value["q17-product-bits"][0] + value["q17-ulp32"] == value["q17-literal-bits"][0]


# --- programs


def test_functions_notice_what_does_not_hold():
    h100 = {"peak_flop_per_s": 989.5e12, "bytes_per_s": 3.35e12}
    assert question_checks.critical_rows_reach_the_ridge(shapes=[[7168, 4096]], **h100)
    assert not question_checks.critical_rows_reach_the_ridge(shapes=[[512, 512]], **h100), "it has no such M"
    assert not question_checks.tiled_softmax_is_exact(num_keys=97, tiles=[5], tolerance=0.0)
    assert question_checks.block_key_carries_the_prefix([1, 2, 3, 4], [9, 2, 3, 4], 2)
    assert not question_checks.block_key_carries_the_prefix([1, 2, 3, 4], [9, 2, 3, 5], 2), "unequal second blocks"
    assert not question_checks.mixed_score_ties(1e6, 0.5, 2.0, [5.0, 0.4]), "fivefold, not tenfold"
    assert question_checks.integers_do_not_care([1, 1], 32) == [True, False]
    assert question_checks.order_changes_bits(1, 5) == [False, 1], "one number has one order"
    assert question_checks.moves_at_half_ulp(1.0, [1.0, 1.0], [2.0**-30, 0.5]) == [[False, True], [False, True]]
    assert question_checks.float32_range(1e39, 1.0)[2] is False
    assert not question_checks.slots_follow_two_minus_u(1000, [0.5], 1e-6), "a short run is not that close"
    assert question_checks.largest_derivative(1.0, 2.0, 0.5)[1] == 1.0


@needs_compiler
@pytest.mark.parametrize("path", sorted(compiled.PROGRAMS.glob("*.cpp")), ids=lambda path: path.stem)
def test_every_program_is_a_claim_s_and_proves_it(path):
    claim = next(c for c in QUESTIONS if c.id.replace("-", "_") == path.stem)
    marks = path.read_text(encoding="utf-8").count("// refused here")
    standard = "c++14" if "elision" in path.stem else ""
    assert compiled.compile_program(path.stem, refused_standard=standard) == {"compiles": True, "refused": marks}
    assert "static_assert" in path.read_text(encoding="utf-8") or marks, "a program that cannot fail"
    assert claim.check.program in ("cpp", "by_value_constructor")


@needs_compiler
@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("static_assert(1 + 1 == 2);\n", {"compiles": True, "refused": 0}),
        ("static_assert(1 + 1 == 3);\n", {"compiles": False, "refused": 0}),
        ("int ok = 1;\n#ifdef FORBIDDEN\nint bad = &1;  // refused here\n#endif\n", {"compiles": True, "refused": 1}),
        ("int ok = 1;\n#ifdef FORBIDDEN\nint fine = 1;  // refused here\n#endif\n", {"compiles": True, "refused": 0}),
        ("#ifdef FORBIDDEN\nint bad = &1;\nint fine = 1;  // refused here\n#endif\n", {"compiles": True, "refused": 0}),
        ("#if FORBIDDEN == 1\nint a = &1;  // refused here 1\n#elif FORBIDDEN == 2\nint b = 1;  // refused here 2\n"
         "#endif\n", {"compiles": True, "refused": 1}),
    ],
)
def test_only_the_marked_line_may_be_refused(tmp_path, source, found):
    (tmp_path / "toy.cpp").write_text(source)
    assert compiled.compile_program("toy", folder=tmp_path) == found


def test_an_unknown_program_names_those_there_are(tmp_path):
    (tmp_path / "toy.cpp").write_text("")
    with pytest.raises(ValueError, match="name='none': expected one of toy"):
        compiled.compile_program("none", folder=tmp_path)


PROGRAM = {"by": "program", "program": "by_value_constructor", "needs": "a C++ compiler"}


def test_without_a_compiler_a_program_is_not_run_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled.shutil, "which", lambda name: None)
    row = Place(tmp_path).row(a_claim(value="rejected at compile time", check=PROGRAM))
    assert (row.status, row.seen) == ("not_run", None)
    assert row.reason == "a C++ compiler: no C++ compiler here (g++ or clang++)"


def test_without_fork_the_two_processes_are_not_run(monkeypatch):
    monkeypatch.delattr(question_checks.os, "fork")
    with pytest.raises(CannotRun, match="needs Linux"):
        question_checks.one_memory_two_addresses()


@pytest.mark.parametrize("name", ["compile_program", "json", "subprocess", "Sequence", "nothing", "TIMEOUT_S"])
def test_only_functions_of_the_module_are_programs(tmp_path, name):
    with pytest.raises(claims.LedgerError, match=f"program='{name}': not a function of labkit.ledger.question_checks"):
        Place(tmp_path).row(a_claim(check={"by": "program", "program": name}))


def test_a_program_that_refuses_its_arguments_is_a_mistake_in_the_ledger(tmp_path):
    with pytest.raises(claims.LedgerError, match="toy-sum: order_changes_bits: num_values=0"):
        Place(tmp_path).row(a_claim(check={
            "by": "program", "program": "order_changes_bits", "args": {"num_values": 0, "num_orders": 2}}))


# --- what does not load


def calc(**item):
    return {"call": "labkit.calc.roofline:ridge_flop_per_byte", **item}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"check": {"by": "program", "program": "_fresh_interpreter"}}, "program='_fresh_interpreter', expected"),
        ({"check": {"by": "program", "program": "os.system"}}, "program='os.system', expected"),
        ({"check": {"by": "program", "program": "cpp", "expr": "1"}}, "unknown field 'expr'"),
        ({"value": [1], "check": {"by": "calc", "items": [{"call": "os:system"}]}}, "call='os:system'"),
        ({"value": [1], "check": {"by": "calc", "items": [{"expr": "open('x')"}]}}, "unknown function 'open'"),
        ({"value": [1], "check": {"by": "calc", "items": [{"expr": "x + 1"}]}}, "unknown name 'x'"),
        ({"value": [1], "check": {"by": "calc", "items": [calc(args={"a": "=x.real"})]}}, "Attribute is not allowed"),
        ({"value": [1], "check": {"by": "calc", "items": [calc(compare="dp 1")]}}, "items: unknown field 'compare'"),
        ({"value": [1], "check": {"by": "calc", "items": ["1"]}}, "items: expected mappings"),
        ({"value": [1], "check": {"by": "calc", "items": [{"args": {}}]}}, "an item without call and expr"),
        ({"value": [1], "check": {"by": "calc", "part": "x", "items": [{"expr": "1"}]}}, "items stand alone"),
        ({"value": [1, 2], "check": {"by": "formula", "expr": ["1", "2"], "compare": ["dp 1"]}}, "compare has 1 rules"),
        ({"value": 1, "check": {"by": "formula", "expr": "1", "compare": ["dp 1"]}}, "compare has 1 rules"),
        ({"value": [1], "check": {"by": "formula", "expr": ["1"], "compare": ["about"]}}, "compare='about'"),
        ({"value": [1], "check": {"by": "formula", "expr": ["1"], "compare": ["reachable"]}}, "cannot stand in a list"),
        ({"value": [1, 2], "unit": ["B"], "check": {"by": "formula", "expr": ["1", "2"]}}, "unit has 1 entries"),
        ({"value": 1, "entries": ["one"], "check": {"by": "formula", "expr": "1"}}, "entries has 1 entries"),
        ({"role": "guessed"}, "role='guessed'"),
    ],
)
def test_a_bad_claim_is_one_line_that_names_it(tmp_path, changes, message):
    place = Place(tmp_path)
    write_ledger(place.ledger, a_claim(**changes))
    with pytest.raises(claims.LedgerError) as caught:
        claims.load_claims(place.ledger)
    text = str(caught.value)
    assert text.startswith("toy.yaml: toy-sum") and message in text and "\n" not in text


def test_a_part_is_followed_through_keys_and_positions(tmp_path):
    check = {"by": "calc", "call": "labkit.calc.projection:project_point", "part": ["point", 1],
             "args": {"a": [0, 0], "b": [1, 0], "c": [3, 4]}}
    place = Place(tmp_path)
    assert place.row(a_claim(value=0, check=check)).status == "verified"
    for part in (["point", 2], ["line"], ["point", "x"]):
        with pytest.raises(claims.LedgerError, match="its answer has no"):
            place.row(a_claim(check=check | {"part": part}))


# --- in the book


@pytest.fixture
def book(rows, monkeypatch):
    monkeypatch.setattr(sources, "verdicts", lambda: rows)
    return lookup.claim_number


@pytest.mark.parametrize(
    ("text", "shown", "badge", "words"),
    [
        ("q01-mstar-gate-up", "333 rows", "derived", "as printed in the interview text"),
        ("q01-mstar-down", "362.6 rows", "derived", "rebuilt"),
        ("q01-shortcut-error:1", "-18.5 %", "derived", "added by us"),
        ("q01-no-crossing-below-2R", "590.7, 256.0 FLOP/B", "derived", "added by us"),
        ("q01-no-crossing-below-2R:1", "256.0 FLOP/B", "derived", "added by us"),
        ("q16-order-changes-bits:0", "yes", "derived", "as printed"),
        ("q04-ring-stages", "8 transfers", "quoted", "our check gives another value"),
        ("q08-mtp-reported:2", "1.8 ×", "quoted", "depends on hardware or version"),
        ("ddp-model-shape:layers", "12", "quoted", "our check is about another figure"),
        ("ddp-def-compute", "all non-NCCL kernels", "quoted", "our check is about another figure"),
        ("triton-shapes:rows", "1024, 8192", "quoted", "our check is about another figure"),
        ("ddp-effective-batch:global_batch", "64", "derived", "the same when calculated"),
        ("ddp-effective-batch:samples_per_rank", "8", "quoted", "our check is about another figure"),
    ],
)
def test_badges_stand_for_the_figure_shown(book, text, shown, badge, words):
    number = book(text)
    assert number.text.replace("\N{NO-BREAK SPACE}", " ").startswith(shown), number.text
    assert number.evidence.key == badge and words in number.detail


def test_every_claim_with_figures_can_be_shown(book):
    for claim in QUESTIONS:
        for path, leaf in leaves(claim.value):
            if leaf is not None:
                key = ":" + ".".join(map(str, path)) if path else ""
                assert book(claim.id + key).text, claim.id
                assert not is_number(leaf) or any(digit in book(claim.id + key).text for digit in "0123456789")
