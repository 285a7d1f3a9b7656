"""Programs of the question pages: compiled with sanitizers, run, their output compared with the file the page shows.

    book/questions/cpp/qNN_name.cpp            prints what qNN_name.out holds, without a warning
    ... with a line `// stops: regex`          a sanitizer ends it; .out has what it printed, then the words matched
    book/questions/cpp/qNN_name_forbidden.cpp  fails at its line `// error: regex`, and compiles without that line
    book/questions/cpp/q20_constants.ptx       assembled for a GPU; .out has the machine code

A first line `// flags: ...` adds flags. New outputs, to be read before they are committed:

    python tests/test_question_programs.py
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import pytest

from labkit.paths import ROOT

FOLDER = ROOT / "book" / "questions" / "cpp"
FORBIDDEN = sorted(FOLDER.glob("*_forbidden.cpp"))
PROGRAMS = sorted(set(FOLDER.glob("*.cpp")) - set(FORBIDDEN))
COMPILERS = [name for name in ("g++", "clang++") if shutil.which(name)] or [None]
FLAGS = ["-std=c++17", "-Wall", "-Wextra", "-g0"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
PROBE = """
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#ifndef __SANITIZE_ADDRESS__
#error ignored
#endif
int main() {}
"""
ENVIRON = {**os.environ, "LC_ALL": "C"}  # messages in English
WORK = tempfile.TemporaryDirectory(prefix="question_programs_")

each_compiler = pytest.mark.parametrize("compiler", COMPILERS)


def mark_of(path, word):
    """(line number, pattern) of a program's `// word: pattern`."""
    found = [
        (number, match[1])
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (match := re.search(rf"// {word}: (.+)$", line))
    ]
    assert len(found) <= 1, f"{path.name}: {len(found)} lines marked {word}"
    return found[0] if found else None


def call(argv):
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, cwd=WORK.name, env=ENVIRON)


def flags_of(path):
    return [*FLAGS, *(mark_of(path, "flags") or (0, ""))[1].split()]


@lru_cache
def sanitizers(compiler):
    """The flags if this compiler has the libraries and does not ignore the flags, else none."""
    source = Path(WORK.name) / "probe.cpp"
    source.write_text(PROBE)
    return SANITIZERS if call([compiler, *SANITIZERS, str(source), "-o", "probe"]).returncode == 0 else []


def output(compiler, path):
    """What a program prints; for one that a sanitizer stops also the words of its mark."""
    stops, binary = mark_of(path, "stops"), str(Path(WORK.name) / f"{path.stem}_{compiler}")
    if stops and not sanitizers(compiler):
        pytest.skip(f"{compiler} has no sanitizers here, {path.name} needs one to stop it")
    built = call([compiler, *flags_of(path), *sanitizers(compiler), str(path), "-o", binary])
    assert built.returncode == 0 and not built.stderr, built.stderr
    ran = call([binary])
    if not stops:
        assert ran.returncode == 0 and not ran.stderr, f"exit {ran.returncode}: {ran.stderr[:2000]}"
        return ran.stdout
    found = re.search(stops[1], ran.stderr)
    assert ran.returncode != 0 and found, f"exit {ran.returncode}: {ran.stderr[:2000]}"
    return f"{ran.stdout}stopped: {found[0]}\n"


def refusal_problem(compiler, path):
    """What is wrong with a program that must not compile; empty when it is refused as it says."""
    mark = mark_of(path, "error")
    assert mark, f"{path.name}: no line is marked // error: ..."
    line, pattern = mark
    refused = call([compiler, *flags_of(path), "-fsyntax-only", str(path)])
    errors = re.findall(rf"{re.escape(path.name)}:(\d+):\d+: error: (.*)", refused.stderr)
    if refused.returncode == 0:
        return "it compiles"
    if {number for number, _ in errors} != {str(line)} or not any(re.search(pattern, words) for _, words in errors):
        return f"expected one error at line {line} like {pattern!r}, got {errors}"
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[line - 1] = ""
    source = Path(WORK.name) / f"allowed_{path.name}"
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    allowed = call([compiler, *flags_of(path), "-fsyntax-only", str(source)])
    return f"without line {line} it does not compile either: {allowed.stderr}" if allowed.returncode else ""


def need(compiler):
    if compiler is None:
        pytest.skip("no C++ compiler here (g++ or clang++)")


@pytest.fixture(scope="session")
def outputs(request):
    """Outputs of the selected programs as futures: compilers side by side, on a busy machine twice as fast."""
    chosen = [getattr(item, "callspec", None) for item in request.session.items]
    pairs = {
        (call.params["compiler"], call.params["path"])
        for call in chosen
        if call and call.params.get("compiler") and call.params.get("path") in PROGRAMS
    }
    for compiler in {compiler for compiler, _ in pairs}:
        sanitizers(compiler)
    with ThreadPoolExecutor(4) as pool:
        yield {pair: pool.submit(output, *pair) for pair in sorted(pairs)}


@each_compiler
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_program_prints_what_the_page_shows(path, compiler, outputs):
    need(compiler)
    assert outputs[compiler, path].result() == path.with_suffix(".out").read_text(encoding="utf-8")


@each_compiler
@pytest.mark.parametrize("path", FORBIDDEN, ids=lambda path: path.stem)
def test_forbidden_line_is_refused(path, compiler):
    need(compiler)
    assert not refusal_problem(compiler, path)


@each_compiler
def test_checks_bite(compiler, tmp_path):
    need(compiler)
    allowed = tmp_path / "allowed.cpp"
    allowed.write_text("int main() {\n    return 0;  // error: anything\n}\n")
    assert refusal_problem(compiler, allowed) == "it compiles"
    elsewhere = tmp_path / "elsewhere.cpp"
    elsewhere.write_text("int main() {\n    return x;\n    int y = z;  // error: z\n}\n")
    assert "expected one error at line 3" in refusal_problem(compiler, elsewhere)
    other = tmp_path / "other.cpp"
    other.write_text("int main() {\n    return x;  // error: lvalue required\n}\n")
    assert "like 'lvalue required'" in refusal_problem(compiler, other)
    warned = tmp_path / "warned.cpp"
    warned.write_text("int main() { int unused = 1; }\n")
    with pytest.raises(AssertionError, match="unused"):
        output(compiler, warned)


def ptxas_tools():
    """Paths of ptxas and cuobjdump, from the path or as Triton brings them."""
    folders = [None, *map(str, Path(sys.prefix).glob("lib/python3*/site-packages/triton/backends/nvidia/bin"))]
    for folder in folders:
        found = [shutil.which(name, path=folder) for name in ("ptxas", "cuobjdump")]
        if all(found):
            return found
    pytest.skip("neither ptxas nor cuobjdump here: CUDA toolkit or Triton")


@lru_cache
def machine_code():
    """(release of ptxas, instructions up to EXIT) of the kernel with four constants."""
    ptxas, cuobjdump = ptxas_tools()
    cubin = str(Path(WORK.name) / "constants.cubin")
    built = call([ptxas, "-arch=sm_90", str(FOLDER / "q20_constants.ptx"), "-o", cubin])
    assert built.returncode == 0, built.stderr
    listed = call([cuobjdump, "-sass", cubin])
    code = re.findall(r"/\*[0-9a-f]{4}\*/\s+(.+?) ?;", listed.stdout)
    release = re.search(r"release ([\d.]+)", call([ptxas, "--version"]).stdout)
    assert code and release, listed.stderr
    return release[1], code[: code.index("EXIT") + 1]


def test_four_constants_lie_where_the_page_says():
    release, code = machine_code()
    text = "\n".join(code)
    assert re.search(r"^U?LDC\S* U?R\d+, c\[0x0\]\[0x2", text, flags=re.M), "arguments: bank 0"
    assert re.search(r"c\[0x3\]\[0x10\]", text), "__constant__: bank 3, at the offset asked for"
    assert re.search(r"0\.08838834613\d*", text), "the literal is inside an instruction"
    assert len(re.findall(r"\bLDG", text)) == 1 and not re.search(r"\bLDL|\bLDS", text), "the pointee: global memory"
    expected = (FOLDER / "q20_constants.out").read_text(encoding="utf-8").splitlines()
    if expected[0] == f"ptxas {release}, sm_90":
        assert expected[1:] == code


def test_every_program_is_on_a_page():
    pages = {path.stem[:3]: path.read_text(encoding="utf-8") for path in FOLDER.parent.glob("q[0-9][0-9]_*.md")}
    shown = {
        name for text in pages.values() for name in re.findall(r"^```\{literalinclude\} cpp/(\S+)$", text, flags=re.M)
    }
    assert shown == {path.name for path in FOLDER.iterdir()}, "on a page but not here, or here and on no page"
    for name in shown:
        assert f"cpp/{name}" in pages[name[:3]], f"{name} is on another question's page"


if __name__ == "__main__":
    for program in PROGRAMS:
        program.with_suffix(".out").write_text(output(COMPILERS[0], program), encoding="utf-8")
    ptxas_release, instructions = machine_code()
    (FOLDER / "q20_constants.out").write_text(
        "\n".join([f"ptxas {ptxas_release}, sm_90", *instructions]) + "\n", encoding="utf-8"
    )
