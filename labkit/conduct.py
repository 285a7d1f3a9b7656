"""What every lab does around its measurement: predict, measure, check, publish, load again.

A lab gives two functions and keeps its own parameters, analysis and pages. Nothing here knows what is measured.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import machine, provenance
from labkit.hardware import HardwareProfile, load_profile, match_profile
from labkit.launch.process import LaunchError
from labkit.paths import RECORDS
from labkit.presets import UsageError
from labkit.records import (
    Oracle,
    RecordError,
    RunRecord,
    describe_artifacts,
    list_runs,
    load_record,
    new_run_id,
    open_run_dir,
    publish,
    run_status,
    utc_now,
    write_json,
)

if TYPE_CHECKING:
    import pandas as pd


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a measurement has brought so far. It is filled in place, so that a later failure loses nothing."""

    results: dict[str, Any] = field(default_factory=dict)
    samples: dict[str, Any] = field(default_factory=dict)
    oracles: list[Oracle] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    argv: list[list[str]] = field(default_factory=list)
    """Command of each process launched; one is added after the launch has ended."""


def conduct(
    slug: str, params: Any, *, preset: str, run_id: str | None, predict: Callable[[], dict[str, Any]],
    measure: Callable[[Path, dict[str, Any], Outcome], None],
) -> RunRecord:
    """Open a run directory, write the prediction, measure, check and publish.

    Args:
        slug: name of the lab.
        params: its parameters, a dataclass of plain values.
        preset: name to keep in the record.
        run_id: name of the run; made from date, hardware and parameters if not given.
        predict: gives the prediction; it is on the disk, with its own time, before `measure` is called.
        measure: called with run directory, prediction and the outcome to fill. A LaunchError, or a ValueError or
            LookupError (files of the processes that cannot be used), ends the run as failed, with what is there.

    Returns: the record as published: `ok` if nothing failed, there is an oracle, and every oracle passed.
    Raises: UsageError if the parameters ask for a GPU and this machine has none; RecordError if the run directory
        exists or cannot be written.
    """
    plain = plain_params(params)
    require_device(slug, plain.get("device", "cpu"))
    run_id = run_id or new_run_id(plain, hardware_tag=machine.detect().tag)
    run_dir = open_run_dir(slug, run_id, params=plain)
    prediction = {"created_utc": utc_now(), "values": predict()}
    write_json(run_dir / "prediction.json", prediction)
    outcome, failure = Outcome(), None
    try:
        measure(run_dir, prediction["values"], outcome)
    except LaunchError as error:
        failure = error.as_failure()
    except (ValueError, LookupError) as error:
        failure = {"message": f"what the processes wrote cannot be used: {type(error).__name__}: {error}"}
    passed = failure is None and bool(outcome.oracles) and all(oracle.passed for oracle in outcome.oracles)
    if failure is None and not outcome.oracles:
        failure = {"message": "nothing was checked: the run has no oracle"}
    record = RunRecord(
        experiment=slug, run_id=run_id, preset=preset, status="ok" if passed else "failed",
        created_utc=prediction["created_utc"], finished_utc=utc_now(), params=plain, argv=outcome.argv,
        environment=provenance.collect(outcome.argv[-1] if outcome.argv else (), run_dir=run_dir),
        prediction=prediction, results=outcome.results, samples=outcome.samples, oracles=outcome.oracles,
        failure=failure, artifacts=describe_artifacts(run_dir, _files(run_dir)), notes=outcome.notes)
    publish(record, run_dir)
    return load_record(run_dir)  # as published: without this machine's paths


def require_device(slug: str, device: str) -> None:
    """Raise UsageError when a lab is to run on a GPU (`device` is `cuda`) and this machine has none."""
    if device == "cuda" and not machine.detect().num_gpus:
        raise UsageError(f"{slug}: device='cuda', but this machine has no GPU; on a CPU use --preset smoke or cpu")


def own_profile(device: str) -> HardwareProfile | None:
    """Profile of this machine's GPU, for a prediction; None on a CPU (`device` is `cpu`) and for an unknown GPU."""
    gpus = machine.detect().gpus if device == "cuda" else ()
    name = match_profile(gpus[0].name) if gpus else None
    return load_profile(name) if name else None


def plain_params(params: Any) -> dict[str, Any]:
    """A parameters dataclass as the JSON that a record keeps: tuples are lists."""
    return json.loads(json.dumps(asdict(params)))


def _files(run_dir: Path) -> list[str]:
    return [path.relative_to(run_dir).as_posix() for path in run_dir.rglob("*")
            if path.is_file() and not path.is_symlink() and not path.name.startswith(".")]


def load_run(slug: str, run_id: str, *, expect: Any | None = None) -> RunRecord:
    """A recorded run, local or committed; nothing is run.

    Args:
        slug: name of the lab.
        run_id: name of the run; "" takes the newest good one.
        expect: parameters the run must have been made with.

    Raises: RecordError if there is no such run, it is incomplete or changed, or its parameters are others.
    """
    known = [path for path in list_runs(slug) if path.name == run_id or (not run_id and run_status(path) == "ok")]
    if not known:
        raise RecordError(f"run_id={run_id!r}: no such run of {slug}, expected a folder of runs/ or data/runs/")
    record = load_record(known[-1])
    if expect is not None:
        wanted = plain_params(expect)
        odd = sorted(name for name in {*wanted, *record.params} if wanted.get(name) != record.params.get(name))
        if odd:
            raise RecordError(f"run {record.run_id} was made with {odd[0]}={record.params.get(odd[0])!r}, "
                              f"expected {wanted.get(odd[0])!r}")
    return record


def newest_records(slug: str) -> list[RunRecord]:
    """Committed good records, the newest of each hardware and preset, in order of their run ids."""
    records = [load_record(path) for path in list_runs(slug, roots=[RECORDS]) if run_status(path) == "ok"]
    return list({(record.hardware_tag, record.preset): record for record in records}.values())


def oracle_table(record: RunRecord) -> pd.DataFrame:
    """The oracles: name, passed, expected, seen, tolerance, detail.

    Raises: RecordError naming the oracles that failed, or the failure of the launch.
    """
    import pandas as pd

    if record.failure:
        raise RecordError(f"run {record.run_id} failed: {record.failure['message']}")
    if failed := [oracle for oracle in record.oracles if not oracle.passed]:
        told = "; ".join(f"{o.name}: expected {o.expected}, seen {o.seen} ({o.detail})" for o in failed)
        raise RecordError(f"run {record.run_id}: {told}")
    return pd.DataFrame([asdict(oracle) for oracle in record.oracles])
