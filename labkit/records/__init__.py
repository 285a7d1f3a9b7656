"""Run records: what a run was asked, what it measured, and proof that nothing was changed since.

A run directory is complete when, and only when, it holds `record.json`. That file is written last, atomically, after
every artifact it names is on disk with its SHA-256; it also holds its own SHA-256. A kill at any moment leaves a
complete record or a directory without one. The schema is in `book/records.md`.

schema: the record. rules: what it must keep. files: atomic writes. store: directories, publish, load, check.
redact: no paths of this machine in a record. compare: two records side by side. trim: a small copy to commit.
"""

from labkit.records.compare import compare_records
from labkit.records.files import sha256_file, write_atomic, write_json
from labkit.records.redact import is_secret, public_argv, public_text
from labkit.records.rules import RECORD_NAME
from labkit.records.schema import (
    SCHEMA_VERSION,
    Oracle,
    RecordError,
    RunRecord,
    new_run_id,
    params_hash,
    quantity,
    utc_now,
)
from labkit.records.store import (
    artifact_problems,
    check_run,
    describe_artifacts,
    list_runs,
    load_record,
    open_run_dir,
    publish,
    run_status,
)
from labkit.records.trim import trim_record

__all__ = [
    "RECORD_NAME",
    "SCHEMA_VERSION",
    "Oracle",
    "RecordError",
    "RunRecord",
    "artifact_problems",
    "check_run",
    "compare_records",
    "describe_artifacts",
    "is_secret",
    "list_runs",
    "load_record",
    "new_run_id",
    "open_run_dir",
    "params_hash",
    "public_argv",
    "public_text",
    "publish",
    "quantity",
    "run_status",
    "sha256_file",
    "trim_record",
    "utc_now",
    "write_atomic",
    "write_json",
]  # fmt: skip
