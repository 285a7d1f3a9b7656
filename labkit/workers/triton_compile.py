"""Compile the report's RMSNorm kernel for GPUs that need not be here, and ask three tools what each cubin uses.

    python -m labkit.workers.triton_compile --run-dir D       # reads D/params.json, writes D/rank0.jsonl

Lines by "kind": compiler (versions), kernel (one a cell, with the raw text of `ptxas -v` and cuobjdump, and what the
ELF file itself says), refusal (a cell that this compiler does not do), done. Cells of one target and row length have a
process of their own: LLVM may abort on a target it does not know, and that must cost nothing else.
Needs Triton, not torch, and no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import multiprocessing.connection
import os
import re
import signal
import subprocess
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from labkit.workers.cubin_elf import NotACubin, read_cubin

KERNEL = "rmsnorm_report"
SIGNATURE = {
    "x_ptr": "*fp16", "w_ptr": "*fp16", "y_ptr": "*fp16", "x_stride": "i32", "y_stride": "i32", "hidden": "i32",
    "eps": "fp32", "BLOCK": "constexpr",
}  # fmt: skip
DIVISIBLE = range(6)
"""Arguments that a launch with torch tensors and a row length like 4,096 shows to be divisible by 16: three pointers,
two strides, the length. The compiler may then move 16 bytes a load."""
TOOL_TIMEOUT_S = 60
NEW_CACHE = "LABKIT_NEW_TRITON_CACHE"
"""Environment variable: an empty folder to compile into, for a process that will load the same kernels afterwards."""


def compile_group(cells: list[dict[str, Any]], path: Path) -> None:
    """Compile cells one after the other and write a line for each; runs in its own process."""
    with open(path, "w", encoding="utf-8") as stream, tempfile.TemporaryDirectory(prefix="labkit-cubin-") as scratch:
        # Always a new cache: from an old one there would be a cubin, but no log of ptxas.
        os.environ["TRITON_CACHE_DIR"] = os.environ.get(NEW_CACHE) or os.path.join(scratch, "cache")
        for cell in cells:
            began = time.perf_counter()
            try:
                line = {"kind": "kernel", **cell, **compile_cell(cell, Path(scratch))}
            except Exception as error:  # whatever a compiler raises, the next cell may still compile
                line = {"kind": "refusal", "what": "cell", **cell, "error": one_line(error)}
            line["seconds"] = time.perf_counter() - began
            stream.write(json.dumps(line, allow_nan=False) + "\n")
            stream.flush()


def compile_cell(cell: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """One cubin and what the tools say of it."""
    import triton
    from triton.backends.compiler import GPUTarget

    from labkit.workers import rmsnorm_kernels

    attrs = {(i,): [["tt.divisibility", 16]] for i in DIVISIBLE} if cell["hints"] else {}
    source = triton.compiler.ASTSource(fn=getattr(rmsnorm_kernels, KERNEL), signature=SIGNATURE,
                                       constexprs={"BLOCK": cell["block"]}, attrs=attrs)  # fmt: skip
    told = io.StringIO()
    with contextlib.redirect_stdout(told):  # Triton prints the log of its own ptxas call there
        kernel = triton.compile(source, target=GPUTarget("cuda", cell["target"], 32),
                                options={"num_warps": cell["num_warps"]})  # fmt: skip
    cubin, ptx = scratch / "kernel.cubin", kernel.asm["ptx"]
    cubin.write_bytes(kernel.asm["cubin"])
    log = told.getvalue() if "Used" in told.getvalue() else run_ptxas(ptx, cell["target"], scratch)
    line: dict[str, Any] = {
        "ptxas": without_paths(log, scratch), "cuobjdump": run_cuobjdump("--dump-resource-usage", cubin),
        "dynamic_shared_bytes": kernel.metadata.shared, "max_load_bytes": widest(ptx, "ld"),
        "max_store_bytes": widest(ptx, "st"), "ptx_target": first(r"\.target\s+(\w+)", ptx),
        "ptx_version": first(r"\.version\s+([\d.]+)", ptx),
    }  # fmt: skip
    try:
        line["elf"] = read_cubin(kernel.asm["cubin"]).get(KERNEL, {})
    except NotACubin as error:
        line["elf_error"] = str(error)
    if re.search(r"STACK:[1-9]", line["cuobjdump"]):  # slow, so only where there is something to count
        try:
            line["local_instructions"] = local_instructions(run_cuobjdump("-sass", cubin))
        except RuntimeError as error:  # from CUDA 13.1 on the disassembler refuses sm_70, which ptxas 12.9 still makes
            line["local_instructions_error"] = one_line(error)
    return line


def widest(ptx: str, operation: str) -> int:
    """Bytes of the widest global load (`ld`) or store (`st`) of one thread in PTX; 0 if there is none.

    >>> widest("ld.global.L1::evict_last.v4.b32 {%r1}, [%rd1];  ld.global.b16 %rs1, [%rd2];", "ld")
    16
    """
    found = re.findall(rf"\b{operation}\.global[\w.:]*?(?:\.v(\d))?\.[bfsu](\d+)\b", ptx)
    return max((int(lanes or 1) * int(bits) // 8 for lanes, bits in found), default=0)


def local_instructions(sass: str) -> dict[str, int]:
    """Bytes a thread moves to and from local memory, by instructions in the machine code: `store` and `load`.

    >>> local_instructions("/*0010*/ STL.64 [R1+0x8], R4 ; /*0020*/ @P0 LDL R5, [R1] ; /*0030*/ LDL.LU.128 R8, [R1];")
    {'store': 8, 'load': 20}
    """
    widths = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}
    totals = {"STL": 0, "LDL": 0}
    for name, suffixes in re.findall(r"\b(STL|LDL)((?:\.\w+)*)\s", sass):
        totals[name] += next((widths[part] for part in suffixes.split(".") if part in widths), 4)
    return {"store": totals["STL"], "load": totals["LDL"]}


def first(pattern: str, text: str) -> str | None:
    """The first group of the first match, None without one."""
    found = re.search(pattern, text)
    return found[1] if found else None


def without_paths(text: str, scratch: Path) -> str:
    """Tool output without the folders of this machine."""
    text = text.replace(str(scratch), "<scratch>").replace(tempfile.gettempdir(), "<tmp>")
    return text.strip() + "\n"


def tool(name: str, target: int = 0) -> str:
    """Path of a tool in Triton's package; ptxas as Triton chooses it for a target."""
    import triton

    if name == "ptxas":
        from triton.backends.nvidia.compiler import get_ptxas

        return get_ptxas(target).path
    return str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name)


def run_tool(argv: list[str]) -> tuple[str, str]:
    """Output and error text of a tool; raises RuntimeError with its first line when it fails."""
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=TOOL_TIMEOUT_S)
    if done.returncode:
        told = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[0]
        raise RuntimeError(f"{Path(argv[0]).name} ended with exit code {done.returncode}: {told[:200]}")
    return done.stdout, done.stderr


def run_cuobjdump(option: str, cubin: Path) -> str:
    """What cuobjdump prints for one option."""
    return run_tool([tool("cuobjdump"), option, str(cubin)])[0]


def run_ptxas(ptx: str, target: int, scratch: Path) -> str:
    """The log of `ptxas -v` on PTX text, for a Triton that does not show its own."""
    source = scratch / "kernel.ptx"
    source.write_text(ptx)
    arch = f"sm_{target}a" if target >= 90 else f"sm_{target}"
    return run_tool([tool("ptxas", target), "-v", f"--gpu-name={arch}", str(source), "-o", str(scratch / "again.o")])[1]


def one_line(error: BaseException) -> str:
    """Type and the line of a compiler's message that says what is wrong, without paths."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next((line for line in lines if re.search(r"fatal|error|not (supported|defined)", line, re.I)), "")
    text = f"{type(error).__name__}: {told or (lines or ['no message'])[0]}"
    return re.sub(r"(/[\w.+-]+){2,}", "<path>", text)[:300]


def versions(targets: list[int]) -> dict[str, Any]:
    """Versions of Triton, ptxas for each target, cuobjdump; None where a tool cannot be asked."""
    import triton

    def release(path: str) -> str | None:
        try:
            return first(r"\bV(\d[\d.]*)", run_tool([path, "--version"])[0])
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            return None

    by_target: dict[str, str | None] = {}
    known: dict[str, str | None] = {}
    for target in targets:
        path = tool("ptxas", target)
        known[path] = known.get(path) or release(path)
        by_target[f"sm_{target}"] = known[path]
    return {"triton": triton.__version__, "ptxas": by_target, "cuobjdump": release(tool("cuobjdump"))}


def run_groups(params: dict[str, Any], run_dir: Path) -> list[dict[str, Any]]:
    """Compile every cell, groups side by side on the cores there are; lines in the order of the cells."""
    fork = multiprocessing.get_context("fork")
    jobs = max(1, min(len(os.sched_getaffinity(0)), params["jobs"]))
    groups: dict[tuple[int, int, bool], list[dict[str, Any]]] = {}
    for cell in params["cells"]:
        groups.setdefault((cell["target"], cell["hidden"], cell["hints"]), []).append(cell)
    with tempfile.TemporaryDirectory(prefix=".compile-", dir=run_dir) as scratch:
        paths = {key: Path(scratch) / f"{i}.jsonl" for i, key in enumerate(groups)}
        # Long rows take longest: they start first.
        waiting, running, codes = sorted(groups, key=lambda key: -key[1]), {}, {}
        while waiting or running:
            while waiting and len(running) < jobs:
                key = waiting.pop(0)
                running[key] = fork.Process(target=compile_group, args=(groups[key], paths[key]))
                running[key].start()
            multiprocessing.connection.wait([process.sentinel for process in running.values()])
            for key, process in list(running.items()):
                if not process.is_alive():
                    process.join()
                    codes[key] = process.exitcode
                    del running[key]
                    print(f"progress: compiled rows of {key[1]} for sm_{key[0]}", flush=True)
        return [line for key in groups for line in read_group(groups[key], paths[key], codes[key])]


def read_group(cells: list[dict[str, Any]], path: Path, code: int) -> list[dict[str, Any]]:
    """Lines of one group; what a process that died did not get to is refused with the reason."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    if code:
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        lines += [{"kind": "refusal", "what": "cell", **cell, "seconds": None,
                   "error": f"the compiler ended its process ({how})"} for cell in cells[len(lines):]]  # fmt: skip
    return lines


def prepare() -> None:
    """Import what every group needs, and let Triton hash its own files, once before the processes are forked."""
    import labkit.workers.rmsnorm_kernels  # noqa: F401

    with contextlib.suppress(ImportError, AttributeError):  # a saving only; the place differs between versions
        from triton.runtime.cache import triton_key

        triton_key()


def main() -> None:
    """Entry point; see the module docstring."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    run_dir = parser.parse_args().run_dir
    params = json.loads((run_dir / "params.json").read_text(encoding="utf-8"))
    began = time.perf_counter()
    # Before Triton is imported: no interpreter, its log of ptxas, and fused multiply-add whatever its default becomes.
    os.environ.pop("TRITON_INTERPRET", None)
    os.environ.update(TRITON_DUMP_PTXAS_LOG="1", TRITON_DEFAULT_FP_FUSION="1")
    warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork.*")
    with open(run_dir / "rank0.jsonl", "w", encoding="utf-8") as stream:
        targets = list(dict.fromkeys(cell["target"] for cell in params["cells"]))
        lines = [{"kind": "compiler", "kernel": KERNEL, "fp_fusion": True, **versions(targets)}]
        prepare()
        lines += run_groups(params, run_dir)
        lines.append({"kind": "done", "wall_s": time.perf_counter() - began})
        stream.writelines(json.dumps(line, allow_nan=False) + "\n" for line in lines)


if __name__ == "__main__":
    main()
