"""One experiment is one vertical slice: everything it needs is there, nothing of a deleted one remains."""

import ast
import inspect
import json
import pkgutil
import re
from dataclasses import fields
from pathlib import Path

import nbformat
import pytest
import yaml

import labkit.experiments
from labkit.cli import load_slice
from labkit.presets import PRESET_DIR, available_presets, build_params
from labkit.records import check_run, load_record

ROOT = Path(__file__).resolve().parents[1]
SLUGS = sorted(m.name for m in pkgutil.iter_modules(labkit.experiments.__path__))
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
SLICE_API = {"predict", "run", "load", "table", "check", "figures", "compare"}


def notebook(slug):
    (path,) = [p for p in NOTEBOOKS if p.name[3:-6] == slug]
    return nbformat.read(path, as_version=4)


@pytest.mark.parametrize("slug", SLUGS)
def test_a_slice_is_whole(slug):
    module = load_slice(slug)
    assert slug == module.SLUG and module.TITLE and module.NEEDS
    assert not {name for name in SLICE_API if not callable(getattr(module, name, None))}
    assert (ROOT / "tests" / f"test_exp_{slug}.py").is_file()
    assert (ROOT / "tests" / "mutants" / f"{slug}.py").is_file()
    assert len([p for p in NOTEBOOKS if p.name[3:-6] == slug]) == 1
    assert f"{slug}" in (ROOT / "_toc.yml").read_text()


@pytest.mark.parametrize("slug", SLUGS)
def test_presets_name_only_parameters_that_exist(slug):
    module = load_slice(slug)
    assert {"smoke", "cpu"} <= set(available_presets(slug))
    for preset in available_presets(slug):
        build_params(module.Params, slug, preset)


@pytest.mark.parametrize("slug", SLUGS)
def test_parameters_cell_is_literals_with_known_names(slug):
    (cell,) = [c for c in notebook(slug).cells if "parameters" in c.metadata.get("tags", [])]
    names = set()
    for node in ast.parse(cell.source).body:
        assert isinstance(node, ast.Assign), ast.unparse(node)
        ast.literal_eval(node.value)
        names |= {target.id for target in node.targets}
    assert {"mode", "preset", "run_id"} <= names
    assert names - {"mode", "preset", "run_id"} <= {f.name for f in fields(load_slice(slug).Params)}


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda p: p.name)
def test_no_committed_outputs(path):
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        assert not cell.get("outputs") and not cell.get("execution_count"), cell["source"][:80]
        assert not cell["metadata"].get("papermill") and not cell["metadata"].get("execution")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_notebook_shape(path):
    """One H1, short code cells, no shell escapes, follow-ups and an evidence boundary at the end."""
    cells = nbformat.read(path, as_version=4).cells
    prose = "\n".join(c.source for c in cells if c.cell_type == "markdown")
    assert len(re.findall(r"^# ", prose, re.M)) == 1
    assert re.search(r"^## .*follow-up", prose, re.M | re.I) and re.search(r"^## .*boundary", prose, re.M | re.I)
    for cell in cells:
        if cell.cell_type == "code":
            assert not re.search(r"^\s*[!%]", cell.source, re.M), cell.source[:80]
            assert len(cell.source.splitlines()) <= 20, cell.source[:80]


def test_no_orphans():
    known = set(SLUGS)
    assert {p.name for p in PRESET_DIR.iterdir() if p.is_dir()} == known
    assert {p.name[3:-6] for p in NOTEBOOKS} == known
    assert {p.stem.removeprefix("test_exp_") for p in (ROOT / "tests").glob("test_exp_*.py")} == known
    assert {p.name for p in (ROOT / "data" / "runs").iterdir() if p.is_dir()} <= known
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    pages = re.findall(r"notebooks/\d\d_(\w+)", json.dumps(toc))
    assert set(pages) == known


RECORDS = sorted((ROOT / "data" / "runs").glob("*/*"))


@pytest.mark.parametrize("run_dir", RECORDS, ids=lambda p: p.name)
def test_committed_records_load_and_are_unchanged(run_dir):
    record = load_record(run_dir)
    assert check_run(run_dir) == []
    assert record.experiment == run_dir.parent.name and record.run_id == run_dir.name
    assert sum(f.stat().st_size for f in run_dir.rglob("*")) < 1_000_000
    module = load_slice(record.experiment)
    assert len(module.table(record)) > 0


@pytest.mark.parametrize("slug", SLUGS)
def test_every_slice_has_a_loadable_record(slug):
    assert any(load_record(path).status == "ok" for path in (ROOT / "data" / "runs" / slug).glob("*"))


def public_functions():
    for info in pkgutil.walk_packages(labkit.__path__, "labkit."):
        if info.name.startswith(("labkit.workers", "labkit.bootstrap", "labkit.__main__")):
            continue
        module = __import__(info.name, fromlist=["_"])
        for name, value in inspect.getmembers(module, inspect.isfunction):
            if value.__module__ == info.name and not name.startswith("_"):
                yield pytest.param(value, id=f"{info.name}.{name}")


@pytest.mark.parametrize("function", list(public_functions()))
def test_public_functions_are_documented_and_typed(function):
    assert (inspect.getdoc(function) or "").strip(), "no docstring"
    signature = inspect.signature(function)
    untyped = [n for n, p in signature.parameters.items() if p.annotation is p.empty and n not in ("self", "cls")]
    assert not untyped and signature.return_annotation is not signature.empty, f"untyped: {untyped or 'return'}"


@pytest.mark.parametrize("function", [p for p in public_functions() if re.match(r"labkit\.calc\.[a-z]", p.id)])
def test_formulas_say_units_source_and_show_an_example(function):
    text = inspect.getdoc(function)
    assert "Source:" in text, "a formula cites where it comes from"
    assert ">>>" in text, "a formula shows one worked example"
