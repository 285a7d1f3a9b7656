"""C++ programs that prove language rules while they compile: data/claims/programs/*.cpp.

A program holds static_asserts, which must pass. A line marked `// refused here` is what the language forbids: it is
compiled only with FORBIDDEN defined (`// refused here 2`: with FORBIDDEN=2), and then the compiler must refuse exactly
that line. Nothing is linked or run, so a program takes a fraction of a second.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

from labkit.ledger.schema import CannotRun
from labkit.paths import CLAIMS

PROGRAMS = CLAIMS / "programs"
COMPILERS = ("g++", "clang++")
TIMEOUT_S = 60
_MARK = re.compile(r"// refused here(?: (\d+))?$")


def find_compiler() -> str:
    """Path of g++ or clang++; raises CannotRun when there is neither."""
    found = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    if found is None:
        raise CannotRun(f"no C++ compiler here ({' or '.join(COMPILERS)})")
    return found


def compile_program(name: str, *, refused_standard: str = "", folder: Path = PROGRAMS) -> dict[str, bool | int]:
    """Compile a program as it is, then once for each line that must be refused.

    Args:
        name: file name without `.cpp`.
        refused_standard: the marked line is refused in this standard, say c++14, not behind FORBIDDEN.
        folder: where the program lies.

    Returns: {"compiles": as it is, as C++20, "refused": number of marked lines at which the compiler stopped}.
    Raises: ValueError when there is no such program; CannotRun without a C++ compiler.
    """
    path = folder / f"{name}.cpp"
    if not path.is_file():
        raise ValueError(f"name={name!r}: expected one of {', '.join(sorted(p.stem for p in folder.glob('*.cpp')))}")
    source, compiler = path.read_text(encoding="utf-8"), find_compiler()
    marks = {int(match[1] or 1): i for i, line in enumerate(source.splitlines(), 1) if (match := _MARK.search(line))}
    refused = 0
    for number, line in marks.items():
        options = (f"-std={refused_standard}",) if refused_standard else ("-std=c++20", f"-DFORBIDDEN={number}")
        refused += _first_error_line(compiler, options, source) == line
    return {"compiles": _first_error_line(compiler, ("-std=c++20",), source) is None, "refused": refused}


@lru_cache(maxsize=256)
def _first_error_line(compiler: str, options: tuple[str, ...], source: str) -> int | None:
    """Line of the first error in the program itself; 0 for an error elsewhere, None if it compiles."""
    command = [compiler, *options, "-fsyntax-only", "-Wall", "-Wextra", "-x", "c++", "-"]
    try:
        done = subprocess.run(command, input=source, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotRun(f"{compiler}: {error}") from None
    if done.returncode == 0:
        return None
    found = re.search(r"^<stdin>:(\d+)(?::\d+)?: error:", done.stderr, re.MULTILINE)
    return int(found[1]) if found else 0
