"""Text that may be published: folders, interpreter, host and user of this machine are replaced by names.

Records and pages are public. `$RUN_DIR` stands for the run's directory, `$ENV` for the Python environment, `~` for a
home directory, `$TMP` for the temporary folder, `$HOST` for the host name; paths in the checkout become relative.
"""

from __future__ import annotations

import re
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit.paths import ROOT, runs_root

_ANY_HOME = re.compile(r"(?<![\w.-])/(?:home|Users)/[^/\s'\":,;]+")
_SECRET_NAME = re.compile(
    r"(?:^|_|API|ACCESS|PRIVATE|SECRET)KEYS?(?:_|$|\d)|KEY_?ID|TOKENS?(?:_|$|\d)|SECRET|PASSW|PASSPHRASE|_P(?:AS|W)D$"
    r"|CREDENTIAL|COOKIE|SIGNATURE|WEBHOOK|(?:^|_)AUTH(?!OR)(?!\w*SOCK)|(?:^|_)(?:DSN|JWT|PAT)$", re.IGNORECASE)
_SECRET_VALUE = re.compile(
    r"\b(?:hf|sk|pk|gh[opsu]|github_pat|glpat|xox[abp]|AKIA|ASIA)[_-]?[A-Za-z0-9_-]{12,}|://[^/\s:@]*:[^/\s@]+@"
    r"|\beyJ[\w-]{10,}\.|-----BEGIN ")
_TOLD = re.compile(
    r"(?:NCCL|RCCL|TORCH|PYTORCH|GLOO|UCX|FI|OMPI_MCA)_\w+|(?:CUDA|HIP)_(?:VISIBLE_DEVICES|DEVICE_ORDER|LAUNCH_BLOCKING"
    r"|DEVICE_MAX_CONNECTIONS)|OMP_NUM_THREADS|HSA_\w+")


def public_text(text: str, *, run_dir: Path | None = None) -> str:
    """`text` without the paths and the host name of this machine.

    Args:
        text: anything, e.g. an error message or a command line.
        run_dir: the run's directory, shown as `$RUN_DIR`.
    """
    for pattern, name in _replacements(run_dir):
        text = pattern.sub(lambda _, name=name: name, text)
    return _ANY_HOME.sub("~", text)


def public_argv(argv: Sequence[str], *, run_dir: Path | None = None) -> list[str]:
    """A command line for a record: the interpreter is `python`, paths are relative to the checkout or the run."""
    return [public_text(str(word), run_dir=run_dir) for word in argv]


def public_value(value: Any, *, run_dir: Path | None = None) -> Any:
    """`public_text` on every string inside a JSON value; keys too."""
    if isinstance(value, str):
        return public_text(value, run_dir=run_dir)
    if isinstance(value, dict):
        return {public_value(key, run_dir=run_dir): public_value(inner, run_dir=run_dir)
                for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [public_value(inner, run_dir=run_dir) for inner in value]
    return value


def public_environ(entries: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """What may be told of a dumped environment (`NAME=value` each): settings of the libraries, and no secrets.

    Args:
        entries: as `env` prints them; entries without a name are dropped.

    Returns: (name -> value of the settings that can change a result, names of the variables that hold a secret, in the
        order given). All else is neither told nor named: paths, users and hosts.

    >>> public_environ(["HOME=/root", "MY_API_KEY=abc", "NCCL_ALGO=Ring", "TOKENIZERS_PARALLELISM=false"])
    ({'NCCL_ALGO': 'Ring'}, ['MY_API_KEY'])
    """
    told: dict[str, str] = {}
    secret: list[str] = []
    for entry in entries:
        name, found, value = str(entry).partition("=")
        if not found or not name:
            continue
        if is_secret(name, value):
            secret.append(name)
        elif _TOLD.fullmatch(name):
            told[name] = public_text(re.sub(r"(?<![\w.])/[\w.@+-]+(?:/[\w.@+-]*)+", "<path>", value))
    return told, list(dict.fromkeys(secret))


def is_secret(name: str, value: str) -> bool:
    """Whether an environment variable holds a secret, by its name or by the look of its value."""
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(value))


def private_line(text: str, *, run_dir: Path | None = None) -> int | None:
    """Number (from 1) of the first line that `public_text` would change, or None."""
    for number, line in enumerate(text.splitlines(), start=1):
        if public_text(line, run_dir=run_dir) != line:
            return number
    return None


def _replacements(run_dir: Path | None) -> list[tuple[re.Pattern[str], str]]:
    """Longest path first, so that the checkout does not hide the run directory inside it."""
    named: list[tuple[Path, str]] = [
        (Path(sys.executable), "python"), (runs_root(), "$RUNS"), (ROOT, ""), (Path(sys.prefix), "$ENV"),
        (Path.home(), "~"), (Path(tempfile.gettempdir()), "$TMP"),
    ]
    if run_dir is not None:
        named.append((run_dir, "$RUN_DIR"))
    # A path may be written as it was given or with its links followed (not the interpreter's: it is often a link).
    both = {(str(form), name) for path, name in named
            for form in ((path,) if name == "python" else (path.absolute(), path.resolve()))}
    found = []
    for path, name in sorted(both, key=lambda pair: (-len(pair[0]), pair[0])):
        if len(path) > 1:  # "/" is a home directory in some containers
            found += _path_patterns(path, name)
    host = socket.gethostname()
    if len(host) >= 4 and host != "localhost":  # a shorter name would be found inside words
        found.append((re.compile(rf"(?<![\w-]){re.escape(host)}(?![\w-])"), "$HOST"))
    return found


def _path_patterns(path: str, name: str) -> list[tuple[re.Pattern[str], str]]:
    start = rf"(?<![\w.$~/-]){re.escape(path)}"
    if name == "":  # the checkout: "<root>/data/x" is "data/x", "<root>" is "."
        return [(re.compile(rf"{start}/(?=[\w.])"), ""), (re.compile(rf"{start}(?![\w-])"), ".")]
    return [(re.compile(rf"{start}(?![\w-])"), name)]
