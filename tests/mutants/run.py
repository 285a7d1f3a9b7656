"""Plant every known error, one at a time, and demand that the test named beside it notices: `make mutants`.

Each `tests/mutants/<topic>.py` holds MUTANTS: dict(name, file, old, new, tests). A mutant whose tests still pass is a
hole in the tests; the run exits 1 and names it. Works on copies: the checkout is never changed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("labkit", "tests", "data", "book", "notebooks", "benchmarks")
FILES = ("pyproject.toml", "_config.yml", "_toc.yml", "Makefile", "environment.yml")
TIMEOUT_S = 180


def load_mutants(only: list[str]) -> list[dict]:
    """Every planted error of every topic file, checked: `old` stands exactly once in its file."""
    mutants = []
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.name in ("run.py", "__init__.py") or (only and path.stem not in only):
            continue
        spec = importlib.util.spec_from_file_location(f"mutants_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        mutants += [{**mutant, "topic": path.stem} for mutant in module.MUTANTS]
    return mutants


def stale(mutant: dict) -> str | None:
    """Why a mutant can no longer be planted, or None."""
    path = ROOT / mutant["file"]
    if not path.is_file():
        return f"{mutant['file']} does not exist"
    count = path.read_text(encoding="utf-8").count(mutant["old"])
    if count != 1:
        return f"its old text stands {count} times in {mutant['file']}, expected once"
    missing = [t for t in mutant["tests"] if not (ROOT / t.split("::")[0]).is_file()]
    return f"no such test file: {missing}" if missing else None


def make_copy(folder: Path) -> Path:
    copy = folder / "project"
    copy.mkdir()
    for name in FOLDERS + FILES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.is_file():
            shutil.copy(source, copy / name)
    return copy


def run_tests(copy: Path, tests: list[str]) -> subprocess.CompletedProcess:
    # The copy goes first on the path, before the editable install of the checkout.
    env = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [sys.executable, "-m", "pytest", "-qx", "--no-header", "-p", "no:cacheprovider", "-m", "not gpu", *tests]
    return subprocess.run(argv, cwd=copy, env=env, capture_output=True, text=True, timeout=TIMEOUT_S)


def try_mutant(mutant: dict) -> tuple[dict, str, float]:
    """('caught' | 'SURVIVED' | 'broken: why', seconds)."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="labkit-mutant-") as folder:
        copy = make_copy(Path(folder))
        path = copy / mutant["file"]
        path.write_text(path.read_text(encoding="utf-8").replace(mutant["old"], mutant["new"]), encoding="utf-8")
        try:
            done = run_tests(copy, mutant["tests"])
        except subprocess.TimeoutExpired:
            return mutant, "caught", time.perf_counter() - started
    outcome = {0: "SURVIVED", 1: "caught"}.get(done.returncode, f"broken: pytest exit {done.returncode}")
    if outcome.startswith("broken") and "rror" in done.stdout and "collecting" in done.stdout:
        outcome = "caught"
    return mutant, outcome, time.perf_counter() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("topics", nargs="*", help="topic files without .py; all if absent")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    mutants = load_mutants(arguments.topics)
    problems = [f"{m['topic']}/{m['name']}: {why}" for m in mutants if (why := stale(m))]
    if problems:
        print("\n".join(problems))
        return 1
    bad = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for mutant, outcome, wall_s in pool.map(try_mutant, mutants):
            if outcome != "caught":
                bad.append(mutant)
                print(f"{outcome}  {mutant['topic']}/{mutant['name']}  {wall_s:.0f} s", flush=True)
    print(f"{len(mutants) - len(bad)} of {len(mutants)} planted errors were caught")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
