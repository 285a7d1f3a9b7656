"""Where things live. Everything is found from this file, so a notebook or a test never needs a relative path."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "data"
HARDWARE = DATA / "hardware"
MODELS = DATA / "models"
CLAIMS = DATA / "claims"
RECORDS = DATA / "runs"
"""Committed records: small, trimmed, shown by the pages."""
NOTEBOOKS = ROOT / "notebooks"
BUILD = ROOT / "build"
EXECUTED = BUILD / "executed"


def runs_root() -> Path:
    """Folder of local runs (ignored by git): `runs/` here, or `$LABKIT_RUNS_DIR` where the checkout is read-only."""
    return Path(os.environ.get("LABKIT_RUNS_DIR") or ROOT / "runs")
