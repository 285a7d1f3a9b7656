"""`labkit runs ...` and `labkit claims ...`: records on disk and the claim ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from labkit.cli_output import AsJson, as_plain, emit, emit_table, fail, make_group, one_line_errors, print_record, short
from labkit.presets import unknown_name
from labkit.records import RecordError, list_runs, load_record

runs_app = make_group("Look at run records: local ones (runs/) and committed ones (data/runs/).")
claims_app = make_group("The claim ledger.")
Runs = Annotated[list[str] | None, typer.Argument(metavar="[RUN]...")]


@runs_app.command("list")
def runs_list(
    experiment: Annotated[str | None, typer.Argument(help="Only this experiment.")] = None, as_json: AsJson = False
) -> None:
    """List runs, oldest first; an interrupted run shows as incomplete."""
    rows = []
    for run_dir in list_runs(experiment):
        row: dict[str, Any] = {"experiment": run_dir.parent.name, "run_id": run_dir.name}
        try:
            record = load_record(run_dir)
            passed = f"{sum(o.passed for o in record.oracles)}/{len(record.oracles)}"
            row |= {"status": record.status, "preset": record.preset, "hardware": record.hardware_tag}
            row["oracles"] = passed
        except RecordError as error:
            row |= {"status": "incomplete" if "incomplete" in str(error) else "unreadable"}
        rows.append(row)
    if as_json:
        emit(rows)
    else:
        emit_table(rows, ["experiment", "run_id", "status", "preset", "hardware", "oracles"])


def find_run(name: str) -> Path:
    """A run directory from a path, a run id, or `slug/run_id`; raises UsageError with the close name."""
    if (Path(name) / "params.json").is_file() or (Path(name) / "record.json").is_file():
        return Path(name)
    known = {path.name: path for path in list_runs()}
    if name.split("/")[-1] not in known:
        raise unknown_name("run", name, sorted(known)[-8:])
    return known[name.split("/")[-1]]


@runs_app.command("show")
def runs_show(run_name: Annotated[str, typer.Argument(metavar="RUN")], as_json: AsJson = False) -> None:
    """Show one record."""
    with one_line_errors():
        record = load_record(find_run(run_name))
        print(record.to_json(), end="") if as_json else print_record(record)


@runs_app.command("check")
def runs_check(run_names: Runs = None, as_json: AsJson = False) -> None:
    """Check records against the bytes on disk; exit 1 if anything changed, is missing or is incomplete."""
    from labkit.records import check_run

    with one_line_errors():
        run_dirs = [find_run(name) for name in run_names] if run_names else list_runs()
        rows = [{"run": f"{d.parent.name}/{d.name}", "problems": check_run(d)} for d in run_dirs]
        if as_json:
            emit(rows)
        else:
            for row in rows:
                print(f"{row['run']}: {'; '.join(row['problems']) or 'ok'}")
        if any(row["problems"] for row in rows):
            raise SystemExit(1)


@runs_app.command("compare")
def runs_compare(first: str, second: str, as_json: AsJson = False) -> None:
    """Put two records side by side: parameters that differ, then every shared result with its unit."""
    from labkit.records import compare_records

    with one_line_errors():
        rows = compare_records(load_record(find_run(first)), load_record(find_run(second)))
        emit(rows) if as_json else emit_table(rows, list(rows[0]) if rows else ["name"])


@claims_app.command("verify")
def claims_verify(
    lab_slug: Annotated[str | None, typer.Option("--lab", help="Only the claims of one lab.")] = None,
    status: Annotated[str | None, typer.Option(help="Only rows of one status.")] = None,
    as_json: AsJson = False,
) -> None:
    """Re-derive every claim that can be re-derived here; exit 1 when one marked must-hold differs."""
    from labkit import claims

    with one_line_errors():
        rows = claims.verify(lab=lab_slug)
        shown = [as_plain(row) for row in rows if status is None or row.status == status]
        if as_json:
            emit(shown)
        else:
            for row in (row for row in shown if row["status"] != "not_run"):
                row["expected"], row["seen"] = short(row["expected"], 44), short(row["seen"], 44)
            ran = [row for row in shown if row["status"] != "not_run" or status == "not_run"]
            emit_table(ran, ["id", "kind", "status", "expected", "seen", "record"])
            print(json.dumps(claims.summary(rows)))
        failed = claims.failed(rows)
        if failed:
            fail(f"must hold but differs: {', '.join(row.id for row in failed)}", 1)


@claims_app.command("show")
def claims_show(claim_id: str) -> None:
    """Show one claim: statement, value, settings, how it is checked."""
    from labkit import claims

    with one_line_errors():
        print(yaml.safe_dump(as_plain(claims.get_claim(claim_id)), sort_keys=False, allow_unicode=True), end="")


