"""Whatever happens to a file, a reader gives a strict-JSON object or one clear line; nothing else escapes."""

from __future__ import annotations

import gzip
import json
import os
import random
from pathlib import Path

import pytest
import yaml

from labkit.analyze.kinds import KINDS, UnreadableInput

FORMATS = Path(__file__).parent / "data" / "formats"
CASES = yaml.safe_load((FORMATS / "expected.yaml").read_text(encoding="utf-8"))["cases"]
SINGLE = [case for case in CASES if isinstance(case["file"], str) and not case["file"].endswith("/")]
FILES = [(case["kind"], FORMATS / case["file"]) for case in SINGLE]
ROUNDS = int(os.environ.get("LABKIT_FUZZ_ROUNDS", "40"))
ODD_VALUES = [None, True, -1, 0, 1e308, -1e308, float("nan"), float("inf"), 10**30, "", "x", "7", "stream 9", "\ud800",
              [], [1], {}, {"a": 1}, [[]], "2026-11-29", -(2**63), 2**64, 1e-320, "1e999999", "nan"]  # fmt: skip
SEPARATORS = [
    b"\0",
    b"\n",
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\xff",
    b"\t",
    b"[rank9]:",
    b"}, {",
    b"NaN",
]


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Bytes with a random cut, flips, insertions, deletions or a repeated stretch."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(data) + 1)
        span = rng.choice((1, 2, 10, 100))
        action = rng.randrange(6)
        if action == 0:
            data = data[:at]
        elif action == 1:
            data[at : at + span] = rng.randbytes(len(data[at : at + span]))
        elif action == 2:
            data[at:at] = rng.choice(SEPARATORS)
        elif action == 3:
            del data[at : at + span]
        elif action == 4:
            data[at:at] = data[at : at + span] * 3
        else:
            data = data[at:]
    return bytes(data)


def mutated(value, rng: random.Random):
    """A JSON value with a few random nodes replaced, removed, repeated or renamed."""
    if isinstance(value, dict):
        result = {}
        for key, item in value.items():
            if rng.random() < 0.03:
                continue
            result[key + "x" if rng.random() < 0.02 else key] = mutated(item, rng)
        return result
    if isinstance(value, list):
        items = [mutated(item, rng) for item in value if rng.random() > 0.03]
        return [*items, rng.choice(items)] if items and rng.random() < 0.2 else items
    return rng.choice(ODD_VALUES) if rng.random() < 0.06 else value


def check(kind: str, path: Path) -> str:
    try:
        answer = KINDS[kind]([path])
    except UnreadableInput as err:
        assert str(err).strip() and "\n" not in str(err) and str(path) in str(err)
        return "refused"
    text = json.dumps(answer, allow_nan=False, ensure_ascii=False)
    text.encode("utf-8")  # no lone surrogates either
    assert json.loads(text) == answer
    return "read"


@pytest.mark.parametrize(("kind", "source"), FILES, ids=[path.name for _, path in FILES])
def test_damaged_files(tmp_path, kind, source):
    rng = random.Random(source.name)
    content = source.read_bytes()
    for number in range(ROUNDS):
        path = tmp_path / f"f{number}_rank{number}{source.suffix}"
        path.write_bytes(damaged(content, rng))
        check(kind, path)
    if content[:2] == b"\x1f\x8b":
        inner = gzip.decompress(content) if "truncated" not in source.name else b"{}"
        for number in range(ROUNDS // 2):
            path = tmp_path / f"g{number}.json.gz"
            path.write_bytes(gzip.compress(damaged(inner, rng), 1))
            check(kind, path)


JSON_FILES = [(kind, path) for kind, path in FILES if path.suffix == ".json" and "unescaped" not in path.name]


@pytest.mark.parametrize(("kind", "source"), JSON_FILES, ids=[path.name for _, path in JSON_FILES])
def test_mutated_json(tmp_path, kind, source):
    rng = random.Random(source.name)
    document = json.loads(source.read_text())
    outcomes = set()
    for number in range(ROUNDS):
        path = tmp_path / f"m{number}.json"
        path.write_bytes(json.dumps(mutated(document, rng)).encode())
        outcomes.add(check(kind, path))
    assert "read" in outcomes  # the mutations are not all so wild that nothing is tested


def test_folders_of_damaged_ranks(tmp_path):
    rng = random.Random(11)
    contents = [path.read_bytes() for path in sorted((FORMATS / "trace" / "ranks").glob("*.json"))]
    for number in range(ROUNDS):
        folder = tmp_path / f"d{number}"
        folder.mkdir()
        for rank, content in enumerate(contents * 2):
            document = mutated(json.loads(content), rng)
            data = json.dumps(document).encode() if rng.random() < 0.5 else damaged(content, rng)
            (folder / f"rank{rank}.json").write_bytes(data)
        check("torch_trace_dir", folder)


def test_text_of_other_kinds(tmp_path):
    """Every file given to every reader: the wrong kind is refused or read, never a traceback."""
    for kind in KINDS:
        for _, source in FILES:
            check(kind, source)
