"""What the ledger lets in: files that do not load, arithmetic that is refused, and when two values agree."""

import itertools

import pytest

from labkit import claims
from labkit.ledger.checks import resolve_call
from labkit.ledger.compare import Seen, disagreements, parse_rule, printed_decimals
from labkit.ledger.expression import ExpressionError, evaluate, parse
from tests.toy_ledger import Place, a_claim, an_erratum, from_record, slip, write_ledger


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


# --- what does not load


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        (a_claim(colour="red"), "unknown field 'colour'"),
        (a_claim(kind="folklore"), "kind='folklore'"),
        (a_claim(role="rumour"), "role='rumour'"),
        (a_claim(check={"by": "guess"}), "check by 'guess'"),
        (a_claim(check={"by": "formula", "expr": "4", "experiment": "toy"}), "unknown field 'experiment'"),
        (a_claim(check={"by": "formula"}), "formula without expr"),
        (a_claim(check={"by": "formula", "expr": "ref('toy-other')"}), "unknown claim"),
        (a_claim(check={"by": "formula", "expr": "ref('toy-sum', 'a')"}), "has no 'a'"),
        (a_claim(check={"by": "formula", "expr": "setting('nowhere', 'a')"}), "unknown profile 'nowhere'"),
        (a_claim(check={"by": "formula", "expr": "2 + x"}), "unknown name 'x'"),
        (a_claim(check={"by": "formula", "expr": "result('count')"}), "needs a record"),
        (a_claim(check={"by": "formula", "expr": "4", "compare": "roughly"}), "compare='roughly'"),
        (a_claim(check={"by": "formula", "expr": "4", "compare": "beside"}), "beside is for records"),
        (a_claim(check={"by": "calc", "call": "os:system", "args": {"command": "true"}}), "call='os:system'"),
        (a_claim(check={"by": "record", "experiment": "toy"}), "without result and expr"),
        (a_claim(check=from_record(hardware="tpu")), "hardware='tpu'"),
        (a_claim(check={"by": "read", "reason": ""}), "read without a reason"),
        (a_claim(value=None), "nothing to compare with"),
        (a_claim(value={}), "nothing to compare with"),
        (a_claim(value=1, check=from_record(compare="direction 1")), "nothing to compare with"),
        (a_claim(value=float("inf")), "not finite"),
        (a_claim(errata=["E9"]), "unknown erratum 'E9'"),
        (a_claim(settings={"profile": "p"}), "unknown profile 'p'"),
        (a_claim(must_hold=True, check={"by": "read", "reason": "advice"}), "must_hold, but its check proves nothing"),
        (a_claim(must_hold=True, check=from_record(compare="beside")), "must_hold, but its check proves nothing"),
        (a_claim(must_hold=True, kind="timing"), "must_hold, but a timing"),
        (slip() | {"errata": []}, "corrected without an erratum"),
        (a_claim(check=from_record(), measure=from_record()), "measure is the record check"),
        ({k: v for k, v in a_claim().items() if k != "unit"}, "field 'unit' is missing"),
        (a_claim(section=3.4), "section=3.4"),
    ],
)
def test_a_bad_claim_is_one_line_that_names_file_and_claim(place, plain, message):
    write_ledger(place.ledger, plain)
    with pytest.raises(claims.LedgerError) as caught:
        claims.load_claims(place.ledger)
    text = str(caught.value)
    assert text.startswith("toy.yaml: toy-sum") and message in text and "\n" not in text


@pytest.mark.parametrize("call", ["os:getcwd", "labkit.calc.ddp:_limits", "labkit.calc.ddp:none", "labkit.calc.none:x",
                                  "labkit.calc.ddp:MIB", "labkit.calc.ddp"])
def test_a_call_outside_our_packages_is_refused_when_it_is_made(call):
    with pytest.raises(ExpressionError, match="call="):
        resolve_call(call)


def test_must_hold_with_an_erratum_does_not_load(place):
    write_ledger(place.ledger, slip(must_hold=True), errata=[an_erratum()])
    with pytest.raises(claims.LedgerError, match="toy-sum: must_hold, but its printed value is an erratum"):
        claims.load_claims(place.ledger)


def test_an_id_twice_does_not_load(place):
    write_ledger(place.ledger, a_claim(), a_claim())
    with pytest.raises(claims.LedgerError, match=r"toy\.yaml: toy-sum: this id appears twice"):
        claims.load_claims(place.ledger)


@pytest.mark.parametrize(
    ("erratum", "message"),
    [(an_erratum(claims=["toy-none"]), "unknown claim 'toy-none'"), (an_erratum(colour=1), "unknown field 'colour'"),
     ({k: v for k, v in an_erratum().items() if k != "comment"}, "field 'comment' is missing")],
)
def test_a_bad_erratum_names_itself(place, erratum, message):
    write_ledger(place.ledger, a_claim(), errata=[erratum])
    with pytest.raises(claims.LedgerError, match=rf"errata\.yaml: E1: {message}"):
        claims.load_errata(place.ledger)


def test_an_erratum_of_a_ledger_that_is_not_here_may_name_its_claims(place):
    write_ledger(place.ledger, a_claim(), errata=[an_erratum(seed="questions", claims=["q01-x"])])
    assert claims.load_errata(place.ledger)[0].claims == ("q01-x",)


def test_counts_that_the_file_promises_must_come_out(place):
    write_ledger(place.ledger, a_claim(), report={"counts": {"claims": 2}})
    with pytest.raises(claims.LedgerError, match=r"report\.counts\.claims says 2, the file holds 1"):
        claims.load_claims(place.ledger)


def test_unknown_rules_for_records_do_not_load(place):
    write_ledger(place.ledger, a_claim(), experiments={"toy": {"parms": {}}})
    with pytest.raises(claims.LedgerError, match=r"toy\.yaml: experiments: toy: unknown field 'parms'"):
        claims.load_claims(place.ledger)


@pytest.mark.parametrize("text", ["claims: [", "- 1", "claims:\n  - 7"])
def test_a_broken_file_is_one_line(place, text):
    place.ledger.mkdir()
    (place.ledger / "toy.yaml").write_text(text)
    with pytest.raises(claims.LedgerError, match=r"toy\.yaml") as caught:
        claims.load_claims(place.ledger)
    assert "\n" not in str(caught.value)


def test_a_changed_file_is_read_again(place):
    assert place.row(a_claim()).status == "verified"
    assert place.row(a_claim(value=55)).status == "differs"


# --- the evaluator


def value_of(text, **names):
    return evaluate(parse(text), names=names, lookups={})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3 - 4 / 8", 6.5), ("7 // 2 + 7 % 4", 6), ("2**-28", 1 / 268435456), ("-(3) + +1", -2),
        ("min(3, 1, 2) + max([4, 5])", 6), ("sum([1, 2, 3])", 6), ("round(2.567, 1)", 2.6), ("len([1, 2])", 2),
        ("sqrt(9) + abs(-2)", 5.0), ("floor(2.7) + ceil(2.1)", 5), ("next_power_of_2(768)", 1024),
        ("1 < 2 < 3", True), ("1 < 2 > 3", False), ("1 == 1 and not 2 == 3", True), ("1 > 2 or 'a' == 'a'", True),
        ("x * 2", 10), ("[x, x + 1]", [5, 6]),
    ],
)
def test_arithmetic(text, value):
    assert value_of(text, x=5) == value


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')", "open('x')", "().__class__", "x.real", "x[0]", "lambda: 1", "[i for i in [1]]", "f'{x}'",
        "(y := 3)", "x if x else 1", "{'a': 1}", "{1}", "print(1)", "eval('1')", "max(1, key=len)", "max(*[1, 2])",
        "b'a'", "1j", "...", "1; 2", "import os", "", "x @ x", "x << 2", "x in [1]", "x is 1", "min", "getattr(x, 'y')",
    ],
)
def test_the_evaluator_refuses_names_attributes_and_calls(text):
    with pytest.raises(ExpressionError):
        value_of(text, x=5)


@pytest.mark.parametrize(
    "text", ["2**99999999", "(2**4000)**4000", "1 / 0", "sqrt(-1)", "1 + 'a'", "'a' * 9", "[1] * 9", "1 < 'a'",
             "next_power_of_2(0)", "9**9**9"])
def test_arithmetic_that_cannot_be_done_is_one_line(text):
    with pytest.raises(ExpressionError) as caught:
        value_of(text)
    assert "\n" not in str(caught.value)


# --- comparison


@pytest.mark.parametrize(
    ("expected", "seen", "rule", "agrees"),
    [
        (512, 512.0, "exact", True), (512, 512.0000001, "exact", False), (True, 1, "exact", False),
        (True, True, "exact", True), ("a", "a", "exact", True), ("a", "b", "exact", False),
        (15.63, 15.625, "dp 2", True), (15.63, 15.6249, "dp 2", False), (8.1, 8.12433, "dp 1", True),
        (8.1, 8.151, "dp 1", False), (50, 50.37, "dp 0", True), (3.725e-9, 2.0**-28, "sig 4", True),
        (3.725e-9, 3.726e-9, "sig 4", False), (100, 101.9, "rel 0.02", True), (100, 102.1, "rel 0.02", False),
        (5, float("nan"), "dp 1", False), (5, None, "exact", False), (7, 999, "beside", True),
    ],
)
def test_rules(expected, seen, rule, agrees):
    assert (disagreements(expected, Seen(seen), parse_rule(rule), 0) == []) is agrees


def test_every_entry_counts_and_a_longer_list_is_wrong():
    rule = parse_rule("exact")
    good = {"a": [Seen(1), Seen(2)], "b": Seen(3), "extra": Seen(9)}
    assert disagreements({"a": [1, 2], "b": 3}, good, rule, 0) == []
    assert disagreements({"a": [1, 5], "b": 4}, good, rule, 0) == [("a", 1), ("b",)]
    assert disagreements({"a": [1], "c": 3}, good, rule, 0) == [("a", 0), ("c",)]


@pytest.mark.parametrize("text", ["", "dp", "dp x", "dp -1", "exact 2", "direction", "rel nan", None, 3, "dp 1 2"])
def test_a_rule_that_is_none(text):
    with pytest.raises(ValueError, match="compare="):
        parse_rule(text)


def test_printed_decimals():
    values = (7, 66.0, {"a": 127.1, "b": 124.88}, [3, "x", True], 3.725e-9)
    assert [printed_decimals(value) for value in values] == [0, 1, 2, 0, 12]


@pytest.mark.parametrize("ratio", [0.99, 0.999, 1.0, 1.071, 1.148, 1.15, 1.3])
def test_reachable_is_what_rounding_allows(place, ratio):
    """Oracle: try numerators and denominators inside the rounding of 1.5 and 1.4 (printed to 0.1), on a fine grid."""
    inputs = a_claim(id="toy-in", kind="timing", value={"a": 1.5, "b": 1.4})
    check = {"by": "formula", "expr": "ref('toy-in', 'a') / ref('toy-in', 'b')", "compare": "reachable"}
    row = place.row(a_claim(kind="timing", value=ratio, decimals=3, check=check), inputs)
    grid = [i / 1000 - 0.05 for i in range(101)]
    tried = [(1.5 + da) / (1.4 + db) for da, db in itertools.product(grid, grid)]
    assert (row.status == "verified") is (min(tried) - 0.0005 <= ratio <= max(tried) + 0.0005)


def test_counts_are_not_rounded_but_timings_are(place):
    exact = a_claim(id="toy-in", value=3)
    rough = a_claim(id="toy-in", kind="timing", value=3)
    claim = a_claim(value=9.4, check={"by": "formula", "expr": "3 * ref('toy-in')", "compare": "reachable"})
    assert place.row(claim, exact).status == "differs"
    assert place.row(claim, rough).status == "verified"
