"""Every key under `expect` of the format cases must be in the answer, with that value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from labkit.analyze.kinds import KINDS

FORMATS = Path(__file__).parent / "data" / "formats"
CASES = yaml.safe_load((FORMATS / "expected.yaml").read_text(encoding="utf-8"))["cases"]


def differences(expected: Any, got: Any, where: str, tolerance: float = 0.0) -> list[str]:
    """Where `got` lacks or contradicts something expected: 1e-3 relative for fractions, exact for whole numbers."""
    if isinstance(expected, dict):
        if not isinstance(got, dict):
            return [f"{where}: expected an object, got {got!r}"]
        wrong: list[str] = []
        for key, value in expected.items():
            if str(key).startswith("tolerance"):
                continue
            if str(key) not in got:
                wrong.append(f"{where}.{key}: missing")
            else:
                wrong += differences(value, got[str(key)], f"{where}.{key}", tolerance)
        return wrong
    if isinstance(expected, list):
        if not isinstance(got, list) or len(got) != len(expected):
            return [f"{where}: expected {expected!r}, got {got!r}"]
        pairs = enumerate(zip(expected, got))
        return [line for i, (e, g) in pairs for line in differences(e, g, f"{where}[{i}]", tolerance)]
    numbers = isinstance(expected, (int, float)) and not isinstance(expected, bool)
    if numbers and isinstance(got, (int, float)) and not isinstance(got, bool):
        allowed = max(tolerance, 1e-3 * abs(expected)) if isinstance(expected, float) else tolerance
        return [] if abs(expected - got) <= allowed else [f"{where}: expected {expected!r}, got {got!r}"]
    return (
        []
        if expected == got and isinstance(expected, bool) == isinstance(got, bool)
        else [f"{where}: expected {expected!r}, got {got!r}"]
    )


def files(case):
    """A case's file or files."""
    return case["file"] if isinstance(case["file"], list) else [case["file"]]


@pytest.mark.parametrize("case", CASES, ids=[files(case)[-1] for case in CASES])
def test_expected_answer(case):
    answer = json.loads(json.dumps(KINDS[case["kind"]]([FORMATS / file for file in files(case)]), allow_nan=False))
    expect = dict(case["expect"])
    if "error_contains" in expect:
        assert expect.pop("error_contains") in answer["error"]
    if isinstance(expect.get("usable"), str):  # the case says in words: partial or a clear error
        assert answer["usable"] in expect.pop("usable")
    assert not differences(expect, answer, "", expect.get("tolerance_us", 0.0))


def test_the_comparison_itself_would_notice():
    assert differences({"a": {"0": 1.5}}, {"a": {"0": 1.6}}, "")
    assert differences({"a": None}, {"a": 0}, "")
    assert differences({"a": None}, {}, "")
    assert differences({"a": []}, {"a": ["x"]}, "")
    assert differences({"a": 1}, {"a": True}, "")
    assert not differences({"a": {0: 1.0}}, {"a": {"0": 1.0005}}, "")


def test_trace_times_are_exact_nanoseconds():
    answer = KINDS["torch_trace"]([FORMATS / "trace" / "t01_basic_ns.json"])
    # comm 10.25..50.75 and 30..75.125; compute 0..25.375, 40..60.25, 90.5..100.5 (us)
    assert answer["comm_us"] == 75.125 - 10.25
    assert answer["compute_us"] == 25.375 + 20.25 + 10.0
    assert answer["overlap_us"] == (25.375 - 10.25) + (60.25 - 40.0)
    assert answer["comm_sum_us"] == 40.5 + 45.125
