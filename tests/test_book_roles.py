"""Roles and directives in a miniature book, built in process: the number, its badge, its link; or one clear warning."""

import io
import json
import re
from dataclasses import dataclass
from functools import lru_cache

import pytest
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace, patch_docutils

from labkit import paths
from labkit.book import lookup, sources
from labkit.book.evidence import KINDS
from labkit.records import Oracle, RunRecord, open_run_dir, publish


@dataclass
class Claim:
    id: str
    value: object
    unit: str | None = None
    kind: str = "structural"
    ledger: str = "v100_report"
    section: str = "3.4"
    statement: str = "Counts with `code`."
    decimals: int | None = None
    role: str = "result"
    entries: tuple = ()
    area: str | None = None


@dataclass
class Row:
    id: str
    status: str
    record: str | None = None
    reason: str = "because"
    seen: object = None
    expected: object = None


@dataclass
class Erratum:
    id: str
    seed: str
    claims: tuple
    section: str = "7.2"
    cls: str = "cell"
    printed: object = 335.5
    corrected: object = 335.0
    comment: str = "Rounding."


CLAIMS = {
    claim.id: claim
    for claim in (
        Claim("counts", {"1 MiB": 50, "25 MiB": 13}, "buckets"),
        Claim("formula", 333, "rows", kind="analytic"),
        Claim("cells", [1, 2], None),
        Claim("printed-zero", 2.08, "x", kind="timing", decimals=3),
        Claim("wrong", 5),
        Claim("unrun", 6),
        Claim("far", 7),
        Claim("why", None, kind="mechanism"),
    )
}
VERDICTS = {
    row.id: row
    for row in (
        Row("counts", "verified", record="r-local", expected={"1 MiB": 50, "25 MiB": 13}),
        Row("formula", "verified", expected=333),
        Row("printed-zero", "verified", record="r-local", expected=2.08),
        Row("wrong", "differs", record="r-local", seen=4, expected=5),
        Row("far", "reproduced_elsewhere", record="r-far", expected=7),
    )
}


def write_record(root, run_id, *, tag="cpu-2c", status="ok", results=None, evidence="measured", day=1):
    run_dir = open_run_dir("ddp_buckets", run_id, params={}, root=root)
    record = RunRecord(
        experiment="ddp_buckets",
        run_id=run_id,
        preset="smoke",
        status=status,
        params={},
        evidence=evidence,
        created_utc=f"2026-01-{day:02d}T00:00:00.000Z",
        finished_utc=f"2026-01-{day:02d}T00:01:00.000Z",
        environment={"hardware": {"tag": tag}, "git": {"commit": "c" * 40}},
        results=results or {},
        oracles=[Oracle(name="sum", passed=status == "ok", expected=1, seen=1)],
        failure=None if status == "ok" else {"what": "oracle"},
    )
    publish(record, run_dir)


TIME = {"value": 56.0, "unit": "ms", "n": 60, "p10": 55.0, "p90": 57.0, "num_processes": 3}


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A ledger and records of our own, so that no test depends on what this machine has run."""
    local, committed = tmp_path / "runs", tmp_path / "committed"
    monkeypatch.setenv("LABKIT_RUNS_DIR", str(local))
    monkeypatch.setattr(paths, "RECORDS", committed)
    fakes = {
        "_ledger": lru_cache(maxsize=1)(
            lambda: (CLAIMS, [Erratum("E06", "v100_report", ("counts", "gone"))], VERDICTS)
        ),
        "machine_tag": lru_cache(maxsize=1)(lambda: "cpu-2c"),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(sources, name, fake)
    write_record(local, "r-local", results={"bucket_count": {"25 MiB": 13}, "step_time_ms": TIME}, day=3)
    write_record(local, "r-failed", status="failed", results={"bucket_count": {"25 MiB": 99}}, day=9)
    write_record(committed, "r-old", tag="h200-x2", results={"only_old": 1.5, "bucket_count": {"25 MiB": 1}}, day=1)
    write_record(committed, "r-far", tag="h200-x2", results={"bucket_count": {"25 MiB": 13}, "unknown": None}, day=2)
    write_record(committed, "r-sim", tag="sim-8", evidence="simulated", results={"time_s": 2.0}, day=2)
    (local / "ddp_buckets" / "r-torn").mkdir()
    sources.clear()
    yield tmp_path
    sources.clear()


def build(folder, pages, *, extra=""):
    """HTML of each page and the warnings of a small book."""
    src = folder / "src"
    src.mkdir(exist_ok=True)
    (src / "book").mkdir(exist_ok=True)
    toc = "\n".join(name for name in pages if name != "index")
    pages = {"index": "# Start\n", **pages}
    pages["index"] += f"\n```{{toctree}}\n{toc}\n```\n"
    for name, text in pages.items():
        (src / f"{name}.md").write_text(text, encoding="utf-8")
    config = {
        "extensions": ["myst_parser", "labkit.book"],
        "html_theme": "basic",
        "nitpicky": True,
        "source_suffix": {".md": "markdown"},  # said, because Sphinx keeps one default for the whole process
    }
    warnings = io.StringIO()
    with patch_docutils(str(src)), docutils_namespace():
        app = Sphinx(
            str(src),
            None,
            str(folder / "out"),
            str(folder / "trees"),
            "html",
            confoverrides=config,
            status=None,
            warning=warnings,
            freshenv=True,
        )
        app.build()
    html = {name: (folder / "out" / f"{name}.html").read_text(encoding="utf-8") for name in pages}
    lines = re.sub(r"\x1b\[[\d;]*m", "", warnings.getvalue()).splitlines()
    return html, [line for line in lines if "WARNING" in line or "ERROR" in line]


@pytest.fixture(autouse=True)
def no_vendored_copies(monkeypatch):
    from labkit.book import vendor

    monkeypatch.setattr(vendor, "vendored_files", dict)


def numbers(html):
    """(value, badge class, badge word, link, title) of every number on a page."""
    pattern = (
        r'<span class="lk-number(?: lk-short)?"><span class="lk-value">(.*?)</span>'
        r'<a class="lk-badge lk-(\w+) reference internal" href="(.*?)" title="(.*?)">'
        r'<span>(\w+)</span><span class="lk-sr"> \((.*?)\)</span></a></span>'
    )
    return [
        (v.replace("\N{NO-BREAK SPACE}", " ").replace("&#160;", " "), c, w, h, t)
        for v, c, h, t, w, _ in re.findall(pattern, html)
    ]


REFERENCE = {
    "book/claim-ledger": "# Ledger\n\n```{claim-ledger}\n```\n",
    "book/runs": "# Runs\n\n```{run-list} committed\n```\n\n```{run-list} here\n```\n",
    "book/formulas": "# Formulas\n\n```{formula-sheet}\n```\n",
    "book/hardware": "# Hardware\n\n```{hardware-table} peaks\n```\n\n```{hardware-table} sources\n```\n",
}


def test_each_role_shows_value_badge_and_link(world):
    text = "\n\n".join(
        [
            "# Page",
            "{claim}`counts:25 MiB`",
            "{claim}`formula`",
            "{claim}`printed-zero`",
            "{claim}`wrong`",
            "{claim}`unrun`",
            "{claim}`far | .1f`",
            "{run}`ddp_buckets@here:bucket_count.25 MiB`",
            "{run}`ddp_buckets@h200-x2:bucket_count.25 MiB`",
            "{run}`ddp_buckets@h200-x2:only_old`",
            "{run}`ddp_buckets@here:step_time_ms | .1f`",
            "{run}`ddp_buckets@sim-8:time_s`",
            '{calc}`ddp.gradient_bytes(parameters=[["w", [1024, 1024]]]) | .1f MiB`',
            "{hw}`h200.memory_bandwidth_bytes_per_s | .1f TB/s`",
            "{hw}`h200.copy_bytes_per_s | .1f TB/s`",
        ]
    )
    html, warnings = build(world, {"page": text, **REFERENCE})
    assert warnings == []
    assert [(value, kind) for value, kind, *_ in numbers(html["page"])] == [
        ("13 buckets", "here"),
        ("333 rows", "derived"),
        ("2.080 ×", "quoted"),
        ("5", "quoted"),
        ("6", "quoted"),
        ("7.0", "elsewhere"),
        ("13", "here"),
        ("13", "elsewhere"),
        ("1.5", "elsewhere"),
        ("56.0 ms", "here"),
        ("2", "simulated"),
        ("4.0 MiB", "derived"),
        ("4.8 TB/s", "quoted"),
        ("4.3 TB/s", "elsewhere"),
    ]
    by_value = {value: rest for value, *rest in numbers(html["page"])}
    assert by_value["13 buckets"][2] == "book/claim-ledger.html#claim-counts"
    assert "on this machine" in by_value["13 buckets"][3]
    assert "median of 60 samples from 3 processes, p10 to p90 55.0" in by_value["56.0 ms"][3]
    assert all(word == kind for _, kind, word, *_ in numbers(html["page"])), "the badge says its kind in words"


def test_every_link_of_a_number_has_a_target(world):
    html, _ = build(
        world,
        {
            "page": "# Page\n\n{claim}`counts:1 MiB` {run}`ddp_buckets@here:step_time_ms` "
            "{run}`ddp_buckets@h200-x2:only_old` "
            '{calc}`ddp.num_parameters(parameters=[["w", [2]]])` {hw}`h200.tdp_w`',
            **REFERENCE,
        },
    )
    links = [link for _, _, _, link, _ in numbers(html["page"])]
    assert len(links) == 5
    for link in links:
        page, _, anchor = link.partition("#")
        assert f'id="{anchor}"' in html[page.removesuffix(".html")], link


def test_every_kind_of_evidence_says_what_it_means(world):
    html, warnings = build(world, {"page": "# Page\n\n```{evidence-kinds}\n```\n\n{claim}`counts:1 MiB`"})
    assert warnings == []
    for kind in KINDS:
        assert f"lk-{kind.key}" in html["page"] and kind.meaning in html["page"]
    assert "lk-badge" in html["page"] and "labkit:" not in html["page"], "without the ledger page a badge is plain text"


@pytest.mark.parametrize(
    ("role", "message"),
    [
        ("{claim}`count:1 MiB`", "unknown claim 'count'; did you mean 'counts'?"),
        ("{claim}`counts:2 MiB`", "no '2 MiB' (there is: 1 MiB, 25 MiB)"),
        ("{claim}`counts`", "the value has the keys 1 MiB, 25 MiB; name one"),
        ("{claim}`formula | .1q`", "format '.1q' does not fit 333"),
        ("{claim}`why`", "the value is unknown (null)"),
        (
            "{run}`ddp_bucket@here:x`",
            "a complete record 'ddp_bucket'; did you mean 'ddp_buckets'?",
        ),
        ("{run}`ddp_buckets@v100-x8:x`", "no record of ddp_buckets on 'v100-x8' (there is: cpu-2c, h200-x2, sim-8)"),
        ("{run}`ddp_buckets@here:nothing`", "no 'nothing' (there is: "),
        ("{run}`ddp_buckets@h200-x2:unknown`", "the value is unknown (null)"),
        ("{run}`ddp_buckets`", "expected experiment@hardware:result"),
        ("{run}`ddp_buckets@here:step_time_ms | .1f MiB`", "the value is in ms, the format asks for MiB"),
        ("{calc}`ddp.buckets(1)`", "unknown formula of ddp 'buckets'"),
        ("{hw}`h201.tdp_w`", "unknown hardware profile 'h201'; did you mean 'h200'"),
        ("{hw}`h200.tdp`", "unknown field of h200 'tdp'"),
        ("{hw}`h200.peak_fp4_dense_flop_per_s`", "is not known"),
    ],
)
def test_a_wrong_role_is_one_warning_that_names_it(world, role, message):
    _, warnings = build(world, {"index": f"# Start\n\nText {role} text.\n"})
    assert len(warnings) == 1, warnings
    assert role in warnings[0] and message in warnings[0] and "index.md" in warnings[0]


@pytest.mark.parametrize(
    "directive",
    ["{run-list} there", "{hardware-table} prices", "{status} weather", "{errata} nothing", "{claim-ledger} rows"],
)
def test_a_wrong_directive_is_one_warning_that_names_it(world, directive):
    _, warnings = build(world, {"index": f"# Start\n\n```{directive}\n```\n"})
    assert len(warnings) == 1 and directive in warnings[0], warnings


def test_a_ledger_that_cannot_be_read_is_a_warning(world, monkeypatch):
    monkeypatch.setattr(sources, "_ledger", lru_cache(maxsize=1)(lambda: "the ledger cannot be used: x.yaml: bad"))
    _, warnings = build(world, {"index": "# Start\n\n{claim}`counts:1 MiB`\n\n```{claim-ledger}\n```\n"})
    assert len(warnings) == 2 and all("x.yaml: bad" in line for line in warnings)


def test_a_failed_record_never_reaches_a_page(world):
    """The newest local record failed its oracle: its 99 must not win over the older, right 13."""
    assert lookup.run_number("ddp_buckets@here:bucket_count.25 MiB").text == "13"
    assert lookup.run_number("ddp_buckets@cpu-2c:bucket_count.25 MiB").text == "13"


def test_newest_record_wins_and_here_prefers_this_kind_of_machine(world):
    assert lookup.run_number("ddp_buckets@h200-x2:bucket_count.25 MiB").text == "13"
    write_record(paths.RECORDS, "r-cpu", results={"fresh": 4}, day=1)
    write_record(paths.RECORDS, "r-gpu", tag="h200-x2", results={"fresh": 5}, day=8)
    sources.clear()
    number = lookup.run_number("ddp_buckets@here:fresh")
    assert (number.text, number.evidence.key) == ("4", "elsewhere"), "committed record of a machine like this one"


def test_ledger_rows_have_anchor_status_and_filter_fields(world):
    html, warnings = build(world, {"page": "# L\n\n```{claim-ledger}\n```\n\n```{claim-ledger} summary\n```\n"})
    assert warnings == []
    rows = dict(re.findall(r'<tr[^>]*id="claim-([\w-]+)"[^>]*>(.*?)</tr>', html["page"], re.S))
    assert set(rows) == set(CLAIMS)
    for claim_id, row in rows.items():
        assert all(f"lk-f-{name}" in row for name in ("source", "kind", "status")), claim_id
    assert "reproduced elsewhere" in rows["far"] and "differs" in rows["wrong"] and "not run here" in rows["unrun"]
    assert "lk-pill-bad" in rows["wrong"] and "lk-pill-good" in rows["counts"]
    assert "<code" in rows["counts"], "backticks in a statement become code"
    summary = re.sub(r"<[^>]+>", " ", html["page"].split("lk-fixed")[-1])
    # structural 5: 1 verified, 1 elsewhere, 1 differs, 2 not run; all 8: 3, 1, 1, 3
    assert re.search(r"structural\s+1\s+1\s+1\s+2\b", summary) and re.search(r"all\s+3\s+1\s+1\s+3\b", summary)


def test_errata_link_to_claims_that_exist(world):
    html, warnings = build(world, {"page": "# E\n\n```{errata} v100_report\n```\n", **REFERENCE})
    assert warnings == []
    assert 'id="erratum-v100-report-e06"' in html["page"] and "335.5" in html["page"] and "335" in html["page"]
    assert 'href="book/claim-ledger.html#claim-counts"' in html["page"]
    assert "claim-gone" not in html["page"], "no link into nothing"


def test_run_list_shows_failed_runs_as_failed(world):
    html, warnings = build(world, {"page": "# R\n\n```{run-list} here\n```\n"})
    assert warnings == []
    rows = dict(re.findall(r'<tr[^>]*id="(run-[\w-]+)"[^>]*>(.*?)</tr>', html["page"], re.S))
    assert set(rows) == {"run-ddp-buckets-r-local", "run-ddp-buckets-r-failed"}, "a torn run is no record"
    assert "failed" in rows["run-ddp-buckets-r-failed"] and "0 of 1" in rows["run-ddp-buckets-r-failed"]


def test_formula_sheet_holds_every_public_formula(world):
    from labkit.book.calc_call import calc_modules, formulas

    html, warnings = build(world, {"page": "# F\n\n```{formula-sheet}\n```\n"})
    assert warnings == []
    for topic, module in calc_modules().items():
        for name in formulas(module):
            assert f'id="{lookup.formula_anchor(f"{topic}.{name}")}"' in html["page"]
    assert "Source" in html["page"] and "Assumes" in html["page"]


def test_hardware_tables_mix_no_units_and_leave_unknown_cells_empty(world):
    tables = "\n\n".join(
        f"```{{hardware-table}} {name}\n```" for name in ("peaks", "bandwidth", "capacity", "limits", "measured")
    )
    html, warnings = build(world, {"page": f"# H\n\n{tables}\n"})
    assert warnings == []
    found = re.findall(r"<table.*?</table>", html["page"], re.S)
    assert len(found) == 5
    plain = [re.sub(r"<[^>]+>", " ", table) for table in found]
    for table in (plain[1], plain[2]):
        assert not ("GB/s" in table and "GiB" in table)
    row = re.search(r"NVIDIA H200 SXM 141 GB((?:\s+[\d.,]+)+)", plain[0])
    assert row and "989.5" in row[1].split() and "1,979" in row[1].split(), "dense rates of the data sheet"
    assert json.dumps(plain).count("None") == 0


def test_status_page_reads_the_stamps_beside_the_executed_copies(world):
    html, warnings = build(world, {"page": "# S\n\n```{status} machine\n```\n\n```{status} notebooks\n```\n"})
    assert warnings == []
    assert "Sphinx" in html["page"] or "sphinx" in html["page"]
    assert "This book holds no notebook." in html["page"]
