"""Measure labkit's trace analyzer beside traceinsight 0.6.1 on one synthetic trace, in fresh processes, alternating.

    python benchmarks/trace_speed.py [--runs 3] [--traceinsight-python PATH | --skip-traceinsight]

Table on stderr, one JSON object on stdout. Wall time is that of the call (read and analyze the file), without imports;
peak RSS is that of the whole process. traceinsight runs twice: with its defaults, and with the two settings that make
it right (`HTA_DISABLE_NS_ROUNDING=1`, last profiler step included). The answers are checked against the closed form;
exit code 1 if labkit's is not exact.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from make_trace import DEFAULT_CYCLES, known_answer, write_trace

ROOT = Path(__file__).resolve().parents[1]
TRACEINSIGHT = "traceinsight==0.6.1"
_MEASURED = """
import json, resource, sys, time
from pathlib import Path
IMPORTS
begin = time.perf_counter()
CALL
wall_s = time.perf_counter() - begin
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print("RESULT " + json.dumps({"wall_s": wall_s, "peak_rss_bytes": peak, "overlap_pct": answer, "more": more}))
"""
_LABKIT_IMPORTS = "from labkit.analyze.trace import analyze_trace"
_LABKIT_CALL = """
seen = analyze_trace(Path(sys.argv[1]), use_msgspec=MSGSPEC)
answer = 100 * seen["overlap_fraction"]
more = {key: seen[key] for key in ("n_comm", "n_compute", "comm_us", "compute_us", "overlap_us", "busy_us")}
"""
_HTA_IMPORTS = "from hta.trace_analysis import TraceAnalysis"
_HTA_CALL = """
analysis = TraceAnalysis(trace_dir=str(Path(sys.argv[1]).parent), include_last_profiler_step=LAST_STEP)
table = analysis.get_comm_comp_overlap(visualize=False)
answer, more = float(table["comp_comm_overlap_pctg"].iloc[0]), None
"""
LABKIT = "labkit"
LABKIT_STDLIB = "labkit, stdlib json"
HTA_DEFAULT = "traceinsight, defaults"
HTA_RIGHT = "traceinsight, right settings"


def program(imports: str, call: str, **settings: bool) -> str:
    """Text of a child program; upper-case words in `call` are its settings."""
    for name, value in settings.items():
        call = call.replace(name, str(value))
    return _MEASURED.replace("IMPORTS", imports).replace("CALL", call)


def contestants(hta_python: str | None) -> dict[str, tuple[str, str, dict[str, str]]]:
    """Name -> (interpreter, program, extra environment)."""
    found = {
        LABKIT: (sys.executable, program(_LABKIT_IMPORTS, _LABKIT_CALL, MSGSPEC=True), {}),
        LABKIT_STDLIB: (sys.executable, program(_LABKIT_IMPORTS, _LABKIT_CALL, MSGSPEC=False), {}),
    }
    if hta_python:
        right = {"HTA_DISABLE_NS_ROUNDING": "1"}
        found[HTA_DEFAULT] = (hta_python, program(_HTA_IMPORTS, _HTA_CALL, LAST_STEP=False), {})
        found[HTA_RIGHT] = (hta_python, program(_HTA_IMPORTS, _HTA_CALL, LAST_STEP=True), right)
    return found


def run_once(python: str, program: str, extra: dict[str, str], trace: Path, timeout_s: float) -> dict:
    """One fresh process; returns what it measured. Raises: RuntimeError with the end of its error output."""
    env = {**os.environ, **extra, "PYTHONPATH": str(ROOT) if python == sys.executable else ""}
    done = subprocess.run(
        [python, "-c", program, str(trace)], capture_output=True, text=True, env=env, timeout=timeout_s, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode or not lines:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no output"])[-1])
    return json.loads(lines[-1].removeprefix("RESULT "))


def own_traceinsight() -> tuple[str | None, str | None]:
    """(interpreter, reason it is missing): a virtual environment under build/, made on first use."""
    home = ROOT / "build" / "traceinsight"
    python = home / "bin" / "python"
    steps = []
    if not python.exists():
        steps.append([sys.executable, "-m", "venv", str(home)])
    probe = [str(python), "-c", "import hta"]
    if steps or subprocess.run(probe, capture_output=True, check=False).returncode:
        steps.append([str(python), "-m", "pip", "install", "--quiet", TRACEINSIGHT])
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            return None, f"{TRACEINSIGHT} could not be installed: {(done.stderr.strip().splitlines() or ['?'])[-1]}"
    return str(python), None


def summary(samples: dict[str, list[dict]], events: int, size: int) -> dict[str, dict]:
    """Medians and every sample by contestant."""
    return {
        name: {
            "wall_s": statistics.median(run["wall_s"] for run in runs),
            "events_per_s": events / statistics.median(run["wall_s"] for run in runs),
            "peak_rss_bytes": max(run["peak_rss_bytes"] for run in runs),
            "rss_over_file": max(run["peak_rss_bytes"] for run in runs) / size,
            "overlap_pct": runs[0]["overlap_pct"],
            "samples": runs,
        }
        for name, runs in samples.items()
        if runs
    }


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="fresh processes each, alternating")
    parser.add_argument("--cycles", type=int, default=DEFAULT_CYCLES, help="size of the trace: 10 events each")
    parser.add_argument("--traceinsight-python", help="interpreter that has traceinsight 0.6.1")
    parser.add_argument("--skip-traceinsight", action="store_true")
    parser.add_argument("--timeout-s", type=float, default=600, help="of each process")
    args = parser.parse_args()
    hta_python, missing = args.traceinsight_python, None
    if args.skip_traceinsight:
        hta_python, missing = None, "skipped by --skip-traceinsight"
    elif hta_python is None:
        hta_python, missing = own_traceinsight()
    truth = known_answer(args.cycles)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "rank0.json"
        size = write_trace(trace, args.cycles)
        entries = contestants(hta_python)
        samples: dict[str, list[dict]] = {name: [] for name in entries}
        for number in range(args.runs):
            for name, (python, program, extra) in entries.items():
                print(f"run {number + 1}/{args.runs}: {name}", file=sys.stderr)
                try:
                    samples[name].append(run_once(python, program, extra, trace, args.timeout_s))
                except (RuntimeError, subprocess.TimeoutExpired) as err:
                    print(f"  failed: {err}", file=sys.stderr)
    events = int(truth["events"])
    results = summary(samples, events, size)
    mine = results.get(LABKIT)
    own = [run for name in (LABKIT, LABKIT_STDLIB) for run in samples[name]]
    exact = bool(own) and all(run["more"] == {key: truth[key] for key in run["more"]} for run in own)
    report = {
        "events": events,
        "file_bytes": size,
        "truth_overlap_pct": 100 * truth["overlap_fraction"],
        "labkit_is_exact": exact,
        "results": results,
        "traceinsight_missing": missing,
        "load_average": os.getloadavg()[0],
    }
    for key, other in (("ratio_to_traceinsight", HTA_RIGHT), ("ratio_to_traceinsight_defaults", HTA_DEFAULT)):
        report[key] = results[other]["wall_s"] / mine["wall_s"] if mine and other in results else None
    show(report)
    print(json.dumps(report, allow_nan=False))
    return 0 if exact else 1


def show(report: dict) -> None:
    """The table."""
    lines = [
        f"\n{report['events']:,} events, {report['file_bytes'] / 1e6:.1f} MB, true overlap "
        f"{report['truth_overlap_pct']:.4f} %, load average {report['load_average']:.1f}",
        f"{'':30s} {'wall s':>8s} {'events/s':>10s} {'RSS MB':>8s} {'RSS/file':>8s} {'overlap %':>10s}",
    ]
    for name, row in report["results"].items():
        lines.append(
            f"{name:30s} {row['wall_s']:8.3f} {row['events_per_s']:10,.0f} {row['peak_rss_bytes'] / 1e6:8.0f} "
            f"{row['rss_over_file']:8.2f} {row['overlap_pct']:10.4f}"
        )
    if report["ratio_to_traceinsight"]:
        lines.append(
            f"labkit is {report['ratio_to_traceinsight']:.1f} times as fast as traceinsight with the right settings, "
            f"{report['ratio_to_traceinsight_defaults']:.1f} times as fast as with its defaults"
        )
    if report["traceinsight_missing"]:
        lines.append(f"traceinsight: {report['traceinsight_missing']}")
    print("\n".join(lines), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
