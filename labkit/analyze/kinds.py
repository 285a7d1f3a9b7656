"""The kinds of file `labkit analyze KIND PATH...` reads, each with its reader.

A reader takes a list of paths and returns one plain object (strict JSON: no NaN, text keys). A file that cannot be
read raises `UnreadableInput` with a one-line message; nothing else escapes. Readers import what they need when called.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


class UnreadableInput(ValueError):
    """An input file that cannot be used; the message is one line, names the file and says what was expected."""


def one_file(paths: list[Path], kind: str) -> Path:
    """The single path of a kind that takes exactly one file.

    Raises: UnreadableInput when several or none are given, when the path does not exist, or is a folder.
    """
    if len(paths) != 1:
        raise UnreadableInput(f"{kind} takes one file, got {len(paths)}")
    path = Path(paths[0])
    if path.is_dir():
        raise UnreadableInput(f"{path}: is a folder, {kind} takes one file")
    if not path.exists():
        raise UnreadableInput(f"{path}: no such file")
    return path


def read_text(path: Path) -> str:
    """Text of a small file (logs, tool output): UTF-8 or UTF-16 by its byte-order mark, bad bytes replaced.

    Raises: UnreadableInput when the file cannot be read, is binary (holds NUL bytes) or is larger than 256 MiB.
    """
    try:
        if path.stat().st_size > 256 * 2**20:
            raise UnreadableInput(f"{path}: larger than 256 MiB, expected a log or tool output")
        data = path.read_bytes()
    except OSError as err:
        raise UnreadableInput(f"{path}: cannot be read ({err.strerror or err})") from err
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", errors="replace")
    if b"\0" in data:
        raise UnreadableInput(f"{path}: binary data, expected text")
    return data.decode("utf-8-sig", errors="replace")


def clean_text(value: Any) -> str:
    """Text that any encoder takes: bytes that were no UTF-8, and lone surrogates, become replacement characters."""
    text = value if isinstance(value, str) else str(value)
    return text if text.isascii() else text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _torch_trace(paths: list[Path]) -> dict:
    from labkit.analyze.trace import analyze_trace

    return analyze_trace(one_file(paths, "torch_trace"))


def _torch_trace_dir(paths: list[Path]) -> dict:
    from labkit.analyze.trace_ranks import analyze_trace_dir

    return analyze_trace_dir(paths)


def _parsed(paths: list[Path], kind: str, parse: Callable[[str], dict]) -> dict:
    path = one_file(paths, kind)
    try:
        return parse(read_text(path))
    except UnreadableInput as err:
        raise UnreadableInput(str(err) if str(err).startswith(str(path)) else f"{path}: {err}") from err


def _torchrun_log(paths: list[Path]) -> dict:
    from labkit.analyze.torchrun_log import parse_log

    return _parsed(paths, "torchrun_log", parse_log)


def _torchrun_error_file(paths: list[Path]) -> dict:
    from labkit.analyze.torchrun_error_file import parse_error_file

    return _parsed(paths, "torchrun_error_file", parse_error_file)


def _nvidia_smi_query(paths: list[Path]) -> dict:
    from labkit.analyze.smi_query import parse_query

    return _parsed(paths, "nvidia_smi_query", parse_query)


def _nvidia_smi_topo(paths: list[Path]) -> dict:
    from labkit.analyze.smi import parse_topo

    return _parsed(paths, "nvidia_smi_topo", parse_topo)


def _nvidia_smi_topo_p2p(paths: list[Path]) -> dict:
    from labkit.analyze.smi import parse_topo_p2p

    return _parsed(paths, "nvidia_smi_topo_p2p", parse_topo_p2p)


def _rocm_smi_topo(paths: list[Path]) -> dict:
    from labkit.analyze.rocm_smi import parse_rocm_topo

    return _parsed(paths, "rocm_smi_topo", parse_rocm_topo)


def _cuobjdump_resource_usage(paths: list[Path]) -> dict:
    from labkit.analyze.cuobjdump import parse_resource_usage

    return _parsed(paths, "cuobjdump_resource_usage", parse_resource_usage)


def _ptxas_verbose(paths: list[Path]) -> dict:
    from labkit.analyze.ptxas import parse_verbose

    return _parsed(paths, "ptxas_verbose", parse_verbose)


def _ncu_csv(paths: list[Path]) -> dict:
    from labkit.analyze.ncu_csv import parse_ncu_csv

    return _parsed(paths, "ncu_csv", parse_ncu_csv)


def _nccl_tests_text(paths: list[Path]) -> dict:
    from labkit.analyze.nccl_tests_text import parse_text

    return _parsed(paths, "nccl_tests_text", parse_text)


def _nccl_tests_json(paths: list[Path]) -> dict:
    from labkit.analyze.nccl_tests_json import parse_json

    return _parsed(paths, "nccl_tests_json", parse_json)


def _nccl_log(paths: list[Path]) -> dict:
    from labkit.analyze.nccl_log import parse_log

    return _parsed(paths, "nccl_log", parse_log)


def _checkpoint_dir(paths: list[Path]) -> dict:
    from labkit.analyze.checkpoint_dir import analyze_checkpoint_dir

    return analyze_checkpoint_dir(paths)


def _flight_recorder_dir(paths: list[Path]) -> dict:
    from labkit.analyze.flight_recorder import analyze_flight_recorder

    return analyze_flight_recorder(paths)


def _vllm_metrics(paths: list[Path]) -> dict:
    from labkit.analyze.vllm_metrics import page_summary

    return _parsed(paths, "vllm_metrics", page_summary)


def _vllm_metrics_pair(paths: list[Path]) -> dict:
    from labkit.analyze.vllm_metrics import pair_summary

    if len(paths) != 2:
        first = paths[0] if paths else None
        raise UnreadableInput(f"{first}: vllm_metrics_pair takes two files, the earlier first, got {len(paths)}")
    before, after = (read_text(one_file([path], "vllm_metrics_pair")) for path in paths)
    return pair_summary(before, after)


def _vllm_server_log(paths: list[Path]) -> dict:
    from labkit.analyze.vllm_server_log import read_server_log

    return _parsed(paths, "vllm_server_log", read_server_log)


def _vllm_bench_results(paths: list[Path]) -> dict:
    from labkit.analyze.vllm_bench import NotBenchResults, parse_bench_results

    try:
        return _parsed(paths, "vllm_bench_results", parse_bench_results)
    except NotBenchResults as error:
        raise UnreadableInput(f"{paths[0]}: {error}") from None


def _sse_stream(paths: list[Path]) -> dict:
    from labkit.analyze.sse import read_stream

    def one_stream(text: str) -> dict:
        found = read_stream(text)
        if found["num_streams"] > 1:
            raise UnreadableInput(f"{found['num_streams']} streams one after the other, expected one in a file")
        if found["foreign"] and not found["texts"]:
            raise UnreadableInput(f"{found['foreign']}, expected the stream of /v1/completions or /v1/chat/completions")
        return found

    return _parsed(paths, "sse_stream", one_stream)


KINDS: dict[str, Callable[[list[Path]], dict]] = {
    "torch_trace": _torch_trace,
    "torch_trace_dir": _torch_trace_dir,
    "torchrun_log": _torchrun_log,
    "torchrun_error_file": _torchrun_error_file,
    "nvidia_smi_query": _nvidia_smi_query,
    "nvidia_smi_topo": _nvidia_smi_topo,
    "nvidia_smi_topo_p2p": _nvidia_smi_topo_p2p,
    "rocm_smi_topo": _rocm_smi_topo,
    "flight_recorder_dir": _flight_recorder_dir,
    "checkpoint_dir": _checkpoint_dir,
    "nccl_tests_text": _nccl_tests_text,
    "nccl_tests_json": _nccl_tests_json,
    "nccl_log": _nccl_log,
    "ncu_csv": _ncu_csv,
    "cuobjdump_resource_usage": _cuobjdump_resource_usage,
    "ptxas_verbose": _ptxas_verbose,
    "vllm_metrics": _vllm_metrics,
    "vllm_metrics_pair": _vllm_metrics_pair,
    "vllm_server_log": _vllm_server_log,
    "vllm_bench_results": _vllm_bench_results,
    "sse_stream": _sse_stream,
}
