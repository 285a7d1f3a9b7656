"""What every command shares: one-line errors with exit codes, JSON on stdout, aligned tables, short values."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer
import typer.core

from labkit.presets import UsageError, unknown_name
from labkit.records import RecordError, RunRecord

AsJson = Annotated[bool, typer.Option("--json", help="One JSON value on stdout.")]


class CloseNameGroup(typer.core.TyperGroup):
    """A command group that answers a misspelt command with the close one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As click does, but an unknown command is our one-line usage error."""
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            raise unknown_name("command", args[0], sorted(self.commands))
        return super().resolve_command(ctx, args)


def make_group(text: str) -> typer.Typer:
    """A command group in the project's manner: plain text, no shell completion, no rich tracebacks."""
    return typer.Typer(cls=CloseNameGroup, help=text, no_args_is_help=True, add_completion=False,
                       pretty_exceptions_enable=False, rich_markup_mode=None)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn expected errors into one line on stderr and exit 2 (usage) or 1 (failed)."""
    from labkit.analyze.kinds import UnreadableInput

    try:
        yield
    except UsageError as error:
        fail(str(error), 2)
    except (RecordError, UnreadableInput) as error:
        fail(str(error), 1)
    except KeyboardInterrupt:
        fail("interrupted", 130)


def fail(message: str, code: int) -> None:
    """Print one line on stderr and exit with `code`."""
    print(f"labkit: {message}", file=sys.stderr)
    raise SystemExit(code)


def log(line: str) -> None:
    """Progress goes to stderr, so that stdout stays data."""
    print(line, file=sys.stderr, flush=True)


def emit(value: Any) -> None:
    """One strict JSON value on stdout."""
    print(json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False, default=str))


def emit_table(rows: list[dict[str, Any]], columns: list[str]) -> None:
    """Plain aligned columns: readable in a pipe, no colour codes."""
    cells = [columns] + [["" if row.get(c) is None else str(row[c]) for c in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())


def short(value: Any, width: int = 160) -> str:
    """A value on one line of at most `width` characters; quantities as median [p10, p90, n]."""
    if isinstance(value, dict) and {"value", "unit", "n"} <= value.keys():
        text = f"{value['value']:.6g} {value['unit']} [p10 {value['p10']:.6g}, p90 {value['p90']:.6g}, n {value['n']}]"
    elif isinstance(value, dict):
        text = "{" + ", ".join(f"{k}: {short(v)}" for k, v in value.items()) + "}"
    else:
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= width else text[: width - 3] + "..."


def print_record(record: RunRecord) -> None:
    """One record for people: head line, oracles, results."""
    print(f"{record.experiment} {record.run_id}  preset {record.preset}  {record.hardware_tag}  {record.status}")
    print(f"oracles {sum(o.passed for o in record.oracles)}/{len(record.oracles)} passed")
    for oracle in record.oracles:
        if not oracle.passed:
            print(f"  FAILED {oracle.name}: expected {oracle.expected}, seen {oracle.seen} {oracle.detail}")
    for name, value in sorted(record.results.items()):
        print(f"{name}: {short(value)}")


def as_plain(row: Any) -> dict[str, Any]:
    """A dataclass as a plain dict."""
    return asdict(row)
