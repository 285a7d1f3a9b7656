"""How far off is a load client's TTFT and ITL? Measured against a server whose times are known, in one run.

    python benchmarks/load_client.py [--streams 512] [--tokens 64] [--runs 3] [--skip-aiohttp] [--skip-vllm]

Contestants, each in a fresh process beside a fresh mock server (TTFT 20 ms, a token every 20 ms):
- labkit: stamps bytes as they arrive, parses after the run;
- aiohttp, parse then stamp: one task a stream that decodes each event before it looks at the clock, as most load
  clients do (our own loop, in an environment of its own under build/);
- `vllm bench serve` itself, where the labs' engine is installed (`labkit engine show`).

The server knows when each request had arrived and when it sent each token. A client's error is against those times: of
TTFT, what the client tells less (first token sent - request arrived); of ITL, gap told less gap sent. The server shares
the machine and may itself be later than 20 ms: it has a column of its own. Table on stderr, one JSON object on stdout.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from labkit.engine.find import Engine, EngineMissing, find_engine

ROOT = Path(__file__).resolve().parents[1]
AIOHTTP = "aiohttp==3.13.2"
TTFT_MS, ITL_MS = 20.0, 20.0
GOAL = {"ttft error p50": 3.0, "ttft error p99": 40.0, "itl error p50": 1.0}
"""How far off labkit's client may be, ms, at 512 streams on two cores."""
LABKIT = "labkit: stamp, then parse"
PARSE_FIRST = "aiohttp: parse, then stamp"
VLLM = "vllm bench serve"
Row = dict[str, Any]
"""{"key" of the request, "ttft_s", "itl_s"} as a client tells it."""

_LABKIT = """
import json, sys
from labkit.analyze.load_results import read_result
from labkit.launch.load_client import send_load
from labkit.launch.load_plan import Request, random_prompt
port, streams, tokens = map(int, sys.argv[1:])
plan = [Request(prompt_ids=random_prompt(64, seed=i), output_tokens=tokens) for i in range(streams)]
load = send_load(plan, host="127.0.0.1", port=port, model="mock", concurrency=streams, max_lag_p99_s=9)
rows = []
for answer in load.answers:
    seen = read_result(answer.pieces, index=answer.index, label="", sent_s=answer.sent_s, started_s=load.started_s,
                       planned_s=None, output_tokens=tokens, error=answer.error)
    body = b"".join(data for _, data in answer.pieces)
    key = body.split(b'"sent_s": ', 1)[1].split(b"}", 1)[0].decode() if seen.success else str(seen.error)
    rows.append({"key": key, "ttft_s": seen.ttft_s, "itl_s": seen.gaps_s})
print(json.dumps({"rows": rows, "stamped_by": load.stamped_by, "lag_p99_ms": 1e3 * load.lag_p99_s}))
"""
_PARSE_FIRST = """
import asyncio, json, sys, time
import aiohttp
port, streams, tokens = map(int, sys.argv[1:])
async def one(session, i):
    prompt = [(i * 7919 + k) % 30000 + 100 for k in range(64)]
    body = {"model": "mock", "prompt": prompt, "max_tokens": tokens, "stream": True}
    begun, stamps, rest, key = time.perf_counter(), [], b"", None
    async with session.post(f"http://127.0.0.1:{port}/v1/completions", json=body) as answer:
        async for piece in answer.content.iter_any():
            *events, rest = (rest + piece).split(b"\\n\\n")
            for event in events:
                text = event.decode().removeprefix("data: ")
                if text != "[DONE]":
                    chunk = json.loads(text)
                    now = time.perf_counter()
                    if chunk["choices"]:
                        stamps.append(now)
                        key = key or f"{chunk['sent_s']:.9f}"
    return {"key": key, "ttft_s": stamps[0] - begun, "itl_s": [b - a for a, b in zip(stamps, stamps[1:])]}
async def main():
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        return await asyncio.gather(*(one(session, i) for i in range(streams)))
print(json.dumps({"rows": asyncio.run(main())}))
"""
_VLLM = """
import argparse
from vllm.benchmarks import serve
from vllm.benchmarks.datasets import SampleRequest
parser = argparse.ArgumentParser()
serve.add_cli_args(parser)
asked = parser.parse_args()
serve.get_samples = lambda *_: [
    SampleRequest(prompt=[(i * 7919 + k) % 30000 + 100 for k in range(64)], prompt_len=64,
                  expected_output_len=int(asked.label), request_id=f"bench-{i}") for i in range(asked.num_prompts)]
serve.main(asked)
"""
# All of `vllm bench serve` but its data sets: they want a tokenizer, and pandas, which an engine need not have. The
# command's own front asks for the version of a package "vllm", which the CPU build has not.


@contextlib.contextmanager
def mock_server() -> Iterator[int]:
    """The port of a fresh mock server."""
    argv = [sys.executable, "-m", "labkit.launch.mock_server", "--ttft-ms", str(TTFT_MS), "--itl-ms", str(ITL_MS)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        try:
            assert server.stdout is not None
            yield json.loads(server.stdout.readline())["port"]
        finally:
            server.terminate()


def own_aiohttp() -> tuple[str | None, str | None]:
    """(interpreter, why it is missing): a virtual environment under build/, made on first use."""
    home = ROOT / "build" / "aiohttp"
    python = home / "bin" / "python"
    steps = [] if python.exists() else [[sys.executable, "-m", "venv", str(home)]]
    if steps or subprocess.run([str(python), "-c", "import aiohttp"], capture_output=True, check=False).returncode:
        steps.append([str(python), "-m", "pip", "install", "--quiet", AIOHTTP])
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            return None, f"{AIOHTTP} could not be installed: {(done.stderr.strip().splitlines() or ['?'])[-1]}"
    return str(python), None


def run_program(argv: list[str]) -> str:
    """Standard output of a program that ended well; RuntimeError with its last line otherwise."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300, env=env)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no output"])[-1])
    return done.stdout


def short_program(python: str, program: str) -> Callable[..., dict[str, Any]]:
    """A contestant that is one of the programs above."""
    def contest(port: int, streams: int, tokens: int) -> dict[str, Any]:
        return json.loads(run_program([python, "-c", program, str(port), str(streams), str(tokens)]).splitlines()[-1])
    return contest


def vllm_bench(engine: Engine) -> Callable[..., dict[str, Any]]:
    """`vllm bench serve` as its users start it: all requests at once, its own detailed results."""
    def contest(port: int, streams: int, tokens: int) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="labkit-bench-") as folder:
            run_program([
                str(engine.python), "-c", _VLLM, "--backend", "openai", "--host", "127.0.0.1", "--port", str(port),
                "--model", "mock", "--skip-tokenizer-init", "--dataset-name", "custom", "--num-prompts", str(streams),
                "--label", str(tokens), "--ignore-eos", "--disable-tqdm", "--ready-check-timeout-sec", "30",
                "--save-result", "--save-detailed", "--result-dir", folder, "--result-filename", "result.json"])
            result = json.loads((Path(folder) / "result.json").read_text())
        rows = [{"key": f"bench-{i}", "ttft_s": ttft, "itl_s": itls}
                for i, (ttft, itls) in enumerate(zip(result["ttfts"], result["itls"]))]
        return {"rows": rows, "version": engine.version}
    return contest


def measure(contest: Callable[..., dict[str, Any]], *, streams: int, tokens: int) -> dict[str, Any]:
    """One run of one contestant; times in ms."""
    with mock_server() as port:
        told = contest(port, streams, tokens)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/times", timeout=60) as page:
            times = json.load(page)
    known = {key: one for one in times for key in (one["id"], f"{one['sent_s'][0]:.9f}" if one["sent_s"] else "")}
    rows = told.pop("rows")
    if len(rows) != streams or any(row["key"] not in known or len(row["itl_s"]) != tokens - 1 for row in rows):
        raise RuntimeError("a stream is not whole")
    pairs = [(row, known[row["key"]]) for row in rows]
    ttft = [1e3 * row["ttft_s"] for row in rows]
    itl = [1e3 * gap for row in rows for gap in row["itl_s"]]
    ttft_error = [1e3 * abs(row["ttft_s"] - (one["sent_s"][0] - one["arrived_s"])) for row, one in pairs]
    itl_error = [1e3 * abs(gap - (b - a)) for row, one in pairs
                 for gap, (a, b) in zip(row["itl_s"], pairwise(one["sent_s"]))]
    late = [1e3 * (sent - one["arrived_s"]) - TTFT_MS - k * ITL_MS for _, one in pairs
            for k, sent in enumerate(one["sent_s"])]
    return {"ttft told p50": at(ttft, 50), "ttft told p99": at(ttft, 99), "ttft error p50": at(ttft_error, 50),
            "ttft error p99": at(ttft_error, 99), "itl told p50": at(itl, 50), "itl error p50": at(itl_error, 50),
            "itl error p99": at(itl_error, 99), "server late p50": at(late, 50),
            "server late p99": at(late, 99), **told}


def at(values: list[float], q: int) -> float:
    """Nearest-rank quantile."""
    return sorted(values)[-(-len(values) * q // 100) - 1]


def contestants(asked: argparse.Namespace) -> tuple[dict[str, Callable[..., dict[str, Any]]], list[str]]:
    """(name -> contestant, what is missing and why)."""
    found, missing = {LABKIT: short_program(sys.executable, _LABKIT)}, []
    python, why = (None, "left out by --skip-aiohttp") if asked.skip_aiohttp else own_aiohttp()
    if python:
        found[PARSE_FIRST] = short_program(python, _PARSE_FIRST)
    else:
        missing.append(f"{PARSE_FIRST}: {why}")
    engine, why = (None, "left out by --skip-vllm") if asked.skip_vllm else own_engine()
    if engine:
        found[VLLM] = vllm_bench(engine)
    else:
        missing.append(f"{VLLM}: {why}")
    return found, missing


def own_engine() -> tuple[Engine | None, str | None]:
    """(the labs' engine of any build, why it is missing)."""
    for device in ("cpu", "cuda"):
        try:
            return find_engine(device), None
        except EngineMissing as error:
            why = str(error)
    return None, why


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Measure load clients against a server whose times are known.")
    parser.add_argument("--streams", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--skip-aiohttp", action="store_true")
    parser.add_argument("--skip-vllm", action="store_true")
    asked = parser.parse_args()
    for name in ("streams", "tokens", "runs"):
        if getattr(asked, name) < (2 if name == "tokens" else 1):
            parser.error(f"--{name} {getattr(asked, name)}: expected more")
    compared, missing = contestants(asked)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in compared}
    for number in range(asked.runs):
        for name, contest in compared.items():
            print(f"run {number + 1}/{asked.runs}: {name}", file=sys.stderr)
            try:
                found[name].append(measure(contest, streams=asked.streams, tokens=asked.tokens))
            except RuntimeError as error:
                missing.append(f"{name}, run {number + 1}: {re.sub(r'/[^ ]*/', '', str(error))[:200]}")
    load = os.getloadavg()[0]
    print(f"\n{asked.streams} streams of {asked.tokens} tokens; median of {asked.runs} runs, ms; TTFT {TTFT_MS:g} and "
          f"ITL {ITL_MS:g} where the server is on time; load average {load:.1f}", file=sys.stderr)
    medians = {name: {key: at([run[key] for run in runs], 50) for key, value in runs[0].items()
                      if isinstance(value, float)} for name, runs in found.items() if runs}
    columns = ["ttft told p50", "ttft told p99", "ttft error p50", "ttft error p99", "itl told p50", "itl error p50",
               "itl error p99", "server late p99"]
    print(f"{'':27}" + "".join(f"{column:>16}" for column in columns), file=sys.stderr)
    for name, row in medians.items():
        print(f"{name:27}" + "".join(f"{row[column]:16.2f}" for column in columns), file=sys.stderr)
    for line in missing:
        print(line, file=sys.stderr)
    goal = {name: {"off_ms": medians[LABKIT][name], "at_most_ms": most, "met": medians[LABKIT][name] <= most}
            for name, most in GOAL.items() if LABKIT in medians}
    if goal:
        print("labkit: " + ", ".join(f"{name} {one['off_ms']:.2f} ms (goal {one['at_most_ms']:g}, "
                                     f"{'met' if one['met'] else 'missed'})" for name, one in goal.items()),
              file=sys.stderr)
    print(json.dumps({"streams": asked.streams, "tokens": asked.tokens, "load_average": load, "median": medians,
                      "runs": found, "missing": missing, "goal": goal}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
