"""Who may import whom, walked with ast, so that an upward import fails before it is a habit."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CORE = {"units", "paths"}
DATA = {"hardware", "models"}
MAY_IMPORT = {
    "units": set(),
    "paths": set(),
    "hardware": CORE,
    "models": CORE,
    "calc": {"units", "calc"},
    "records": CORE,
    "checkpoints": CORE | {"records"},
    "presets": CORE,
    "machine": CORE | {"analyze"},
    "provenance": CORE | {"machine", "records"},
    "workers": CORE | {"workers", "checkpoints"},
    "launch": CORE | {"records", "launch"},
    "analyze": CORE | {"records", "calc", "analyze", "checkpoints"},
    "plots": CORE | {"calc", "plots"} | DATA,
    "claims": CORE | {"records", "machine", "presets", "calc", "ledger"},
    "ledger": CORE | {"records", "machine", "presets", "calc", "ledger"},
    "doctor": CORE | {"machine", "presets", "experiments", "engine"},
    "engine": CORE | DATA | {"machine", "presets", "bootstrap", "engine"},
    "conduct": CORE | DATA | {"records", "launch", "machine", "presets", "provenance"},
    "experiments": CORE | DATA | {
        "calc", "records", "launch", "analyze", "plots", "presets", "machine", "provenance", "claims", "conduct",
        "engine"},
    "batch": CORE | {"records", "presets", "machine", "claims", "engine"},
    "book": None,
    "cli": None,
    "cli_engine": None,
    "cli_ledger": None,
    "cli_output": None,
    "bootstrap": set(),
    "__main__": {"cli"},
    "__init__": set(),
}
FORBIDDEN = {
    "calc": {"numpy", "pandas", "torch", "plotly", "yaml"},
    "launch": {"torch", "pandas", "plotly"},
    "analyze": {"torch", "plotly"},
    "experiments": {"torch"},
    "plots": {"torch"},
    "workers": {"pandas", "plotly"},
    "checkpoints": {"torch", "numpy", "pandas"},
}


def package_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def imports_of(path: Path):
    """(dotted module, names) of every import, also those inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module, tuple(alias.name for alias in node.names)


FILES = sorted((ROOT / "labkit").rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_imports_go_one_way(path):
    parts = path.relative_to(ROOT / "labkit").with_suffix("").parts
    here = parts[0]
    assert here in MAY_IMPORT, f"{here}: say in tests/test_layers.py who may import what"
    for module, names in imports_of(path):
        top = module.split(".")[0]
        assert top not in FORBIDDEN.get(here, ()), f"{path.name} imports {module}"
        if top != "labkit" or MAY_IMPORT[here] is None:
            continue
        targets = {package_of(module)} if "." in module else {n for n in names if n != "__version__"}
        assert targets <= MAY_IMPORT[here] | {here}, f"{'/'.join(parts)} imports {module} {names}"
        if here == "experiments" and module.startswith("labkit.experiments."):
            pytest.fail(f"one slice imports another: {path.name} imports {module}")


def test_the_walk_sees_a_planted_upward_import(tmp_path):
    planted = tmp_path / "x.py"
    planted.write_text("def f():\n    from labkit.plots import style\n    import labkit.cli\n")
    assert {package_of(module) for module, _ in imports_of(planted)} == {"plots", "cli"}


def test_import_is_light_and_fast():
    """`import labkit` takes under 100 ms and pulls in nothing heavy; the CLI's import stays without torch."""
    code = (
        "import time, sys; t = time.perf_counter(); import labkit; dt = time.perf_counter() - t\n"
        "assert not {'torch', 'pandas', 'plotly', 'numpy'} & sys.modules.keys(); assert dt < 0.1, dt\n"
        "import labkit.cli; assert not {'torch', 'pandas', 'plotly'} & sys.modules.keys(), 'cli'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
