"""The command line. stdout is data (`--json` for programs), stderr is progress; exit 0 good, 1 failed run, 2 usage.

labkit doctor | list | run SLUG | batch | lab | book | engine ... | runs ... | claims ... | analyze KIND PATH... |
labkit calc TOPIC
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from labkit.cli_engine import engine_app
from labkit.cli_ledger import claims_app, runs_app
from labkit.cli_output import AsJson, emit, emit_table, fail, log, make_group, one_line_errors, print_record
from labkit.presets import UsageError, available_presets, build_params, choose_preset, unknown_name
from labkit.records import RunRecord

app = make_group("An executable AI-infrastructure lab: claims that run.")
app.add_typer(runs_app, name="runs")
app.add_typer(claims_app, name="claims")
app.add_typer(engine_app, name="engine")
Preset = Annotated[str, typer.Option(help="smoke, cpu, gpu1, gpu2, gpu8, or auto: the best this machine supports.")]
Overrides = Annotated[list[str] | None, typer.Option("-p", "--param", metavar="NAME=VALUE", help="Set one parameter.")]
RunId = Annotated[str | None, typer.Option(help="Name of the run directory; made from date and machine if absent.")]


def slugs() -> list[str]:
    """Slugs of all experiments, found by listing labkit.experiments; nothing is imported."""
    import labkit.experiments

    return sorted(m.name for m in pkgutil.iter_modules(labkit.experiments.__path__))


def load_slice(slug: str) -> Any:
    """Import one experiment module; raises UsageError with the close name."""
    if slug not in slugs():
        raise unknown_name("experiment", slug, slugs())
    return importlib.import_module(f"labkit.experiments.{slug}")


def _parse_overrides(pairs: list[str]) -> dict[str, Any]:
    overrides = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or not name:
            raise UsageError(f"-p {pair!r}: expected name=value, e.g. -p world_size=2")
        try:
            overrides[name] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise UsageError(f"-p {pair!r}: {text!r} is not a YAML value") from None
    return overrides


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Say what this machine is, which labs it can run, and the one thing missing for each it cannot."""
    from labkit import doctor as doctor_module

    report = doctor_module.report()
    emit(report) if as_json else print(doctor_module.text(report))


@app.command("list")
def list_experiments(as_json: AsJson = False) -> None:
    """List the experiments and their presets."""
    rows = []
    for slug in slugs():
        module = load_slice(slug)
        rows.append({"slug": slug, "title": module.TITLE, "presets": available_presets(slug), "needs": module.NEEDS})
    if as_json:
        emit(rows)
    else:
        emit_table([{**r, "presets": " ".join(r["presets"])} for r in rows], ["slug", "presets", "title"])


@app.command()
def run(
    slug: str,
    preset: Preset = "auto",
    parameter: Overrides = None,
    run_id: RunId = None,
    as_json: AsJson = False,
) -> None:
    """Run one experiment on this machine and publish its record; exit 1 if a process or an oracle fails."""
    from labkit import machine

    with one_line_errors():
        module = load_slice(slug)
        chosen = choose_preset(slug, num_gpus=machine.detect().num_gpus) if preset == "auto" else preset
        params = build_params(module.Params, slug, chosen, _parse_overrides(parameter or []))
        record: RunRecord = module.run(params, preset=chosen, run_id=run_id, progress=log)
        if as_json:
            print(record.to_json(), end="")
        else:
            print_record(record)
        if record.status != "ok":
            cause = (record.failure or {}).get("message")
            failed = ", ".join(oracle.name for oracle in record.oracles if not oracle.passed)
            fail(f"{slug}: run {record.run_id} failed: {cause or 'oracles ' + failed}", 1)


@app.command()
def batch(
    only: Annotated[list[str] | None, typer.Argument(help="Slugs; all if absent.", metavar="[SLUG]...")] = None,
    preset: Preset = "smoke",
    missing: Annotated[bool, typer.Option(help="Skip notebooks whose executed copy is up to date.")] = False,
    quiet: Annotated[bool, typer.Option(help="No output of the labs, one line each.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run the labs' notebooks with papermill; executed copies go to build/executed, where the book takes them."""
    from labkit import batch as batch_module

    with one_line_errors():
        for slug in only or []:
            load_slice(slug)
        results = batch_module.run_all(only or slugs(), preset=preset, missing=missing, quiet=quiet, log=log)
        emit(results) if as_json else print(batch_module.text(results))
        if any(result["status"] == "failed" for result in results):
            raise SystemExit(1)


@app.command()
def book() -> None:
    """Build the book with warnings as errors from the executed notebooks, and print the page to open."""
    from labkit import batch as batch_module

    with one_line_errors():
        print(batch_module.build_book(log=log))


@app.command()
def lab(preset: Preset = "smoke") -> None:
    """Everything: run every lab, build the book, print the results and the page to open (`make lab`)."""
    from labkit import batch as batch_module

    with one_line_errors():
        results = batch_module.run_all(slugs(), preset=preset, missing=False, quiet=False, log=log)
        failed = [result["slug"] for result in results if result["status"] == "failed"]
        page = None if failed else batch_module.build_book(log=log)
        print(batch_module.text(results))
        if failed:
            fail(f"{', '.join(failed)} failed; the book was not built", 1)
        print(f"\nOpen {page}")


class _Plain(yaml.SafeDumper):
    """YAML for people: what stands twice is written twice, without anchors."""

    def ignore_aliases(self, data: object) -> bool:
        """Every value is written out."""
        return True


@app.command()
def analyze(kind: str, paths: list[Path], as_json: AsJson = False) -> None:
    """Read a file from the wild (a trace, a log, a tool's output) and print what it says."""
    from labkit.analyze.kinds import KINDS

    with one_line_errors():
        if kind not in KINDS:
            raise unknown_name("kind", kind, sorted(KINDS))
        answer = KINDS[kind](list(paths))
        if as_json:
            emit(answer)
        else:
            print(yaml.dump(answer, Dumper=_Plain, sort_keys=False, allow_unicode=True), end="")


@app.command()
def calc(
    topic: str,
    function: Annotated[str | None, typer.Argument(help="All functions of the topic if absent.")] = None,
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[NAME=VALUE]...")] = None,
    as_json: AsJson = False,
) -> None:
    """Call a formula of labkit.calc, e.g. `labkit calc roofline ridge_flop_per_byte peak_flop_per_s=9.89e14 ...`."""
    import labkit.calc

    with one_line_errors():
        topics = sorted(m.name for m in pkgutil.iter_modules(labkit.calc.__path__) if not m.name.startswith("_"))
        if topic not in topics:
            raise unknown_name("topic", topic, topics)
        functions = _formulas(importlib.import_module(f"labkit.calc.{topic}"))
        if function is None:
            for name, call in functions.items():
                print(f"{name}{inspect.signature(call)}\n    {(inspect.getdoc(call) or '').splitlines()[0]}")
            return
        if function not in functions:
            raise unknown_name(f"function of {topic}", function, sorted(functions))
        answer = _call_formula(functions[function], arguments or [])
        emit(answer) if as_json or isinstance(answer, (dict, list, tuple)) else print(answer)


def _formulas(module: Any) -> dict[str, Callable[..., Any]]:
    return {
        name: value
        for name, value in inspect.getmembers(module, inspect.isfunction)
        if value.__module__ == module.__name__ and not name.startswith("_")
    }


def _number(text: str) -> Any:
    """A YAML value; also plain `9.89e14`, which YAML 1.1 would read as a string."""
    try:
        return float(text) if "e" in text.lower() else yaml.safe_load(text)
    except ValueError:
        return yaml.safe_load(text)


def _call_formula(call: Callable[..., Any], arguments: list[str]) -> Any:
    signature = inspect.signature(call)
    positional, named = [], {}
    for argument in arguments:
        name, separator, text = argument.partition("=")
        if not separator:
            positional.append(_number(argument))
        elif name not in signature.parameters:
            raise unknown_name(f"argument of {call.__name__}", name, list(signature.parameters))
        else:
            named[name] = _number(text)
    try:
        signature.bind(*positional, **named)
        return call(*positional, **named)
    except TypeError as error:
        raise UsageError(f"{call.__name__}{signature}: {error}") from None
    except ValueError as error:
        raise UsageError(f"{call.__name__}: {error}") from None


def main() -> None:
    """Entry point: usage errors are one line and exit 2."""
    try:
        exit_code = app(standalone_mode=False, prog_name="labkit")
    except UsageError as error:
        fail(str(error), 2)
    except Exception as error:
        # Typer raises its own copy of click's exceptions or click's, by version: known by their shape.
        if type(error).__name__ == "Abort":
            fail("interrupted", 130)
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error, file=sys.stderr)
            raise SystemExit(2) from None
        if not hasattr(error, "format_message"):
            raise
        fail(error.format_message(), 2)  # type: ignore[attr-defined]
    else:
        raise SystemExit(exit_code or 0)


if __name__ == "__main__":
    main()
