"""How far off is a load client's TTFT and ITL? Measured against a server whose times are known, in one run.

    python benchmarks/load_client.py [--streams 512] [--tokens 64] [--runs 3] [--skip-aiohttp]

Contestants, each in a fresh process beside the same mock server (TTFT 20 ms, a token every 20 ms):
- labkit: stamps bytes as they arrive, parses after the run;
- aiohttp, parse then stamp: one task a stream that decodes each event before it looks at the clock, as most load
  clients do (our own loop, in an environment of its own under build/);
- `vllm bench serve`, where an interpreter that has it is named by LABKIT_VLLM_PYTHON.

Every chunk carries the moment the server sent it, so the error is that of the client alone: the server's own lateness,
which is printed too, does not count. Table on stderr, one JSON object on stdout.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
AIOHTTP = "aiohttp==3.13.2"
TTFT_MS, ITL_MS = 20.0, 20.0
LABKIT = "labkit: stamp, then parse"
PARSE_FIRST = "aiohttp: parse, then stamp"

_LABKIT = """
import json, sys
from labkit.analyze.load_results import split_body
from labkit.launch.load_client import send_load
from labkit.launch.load_plan import Request, random_prompt
port, streams, tokens = map(int, sys.argv[1:])
plan = [Request(prompt_ids=random_prompt(64, seed=i), output_tokens=tokens) for i in range(streams)]
load = send_load(plan, host="127.0.0.1", port=port, model="mock", concurrency=streams, max_lag_p99_s=9)
rows = []
for answer in load.answers:
    _, body, ends, times, _ = split_body(answer.pieces)
    seen = [(times[ends.index(e)], e) for e in ends]
    start, stamps = 0, []
    for time_s, end in seen:
        event = body[start:end]; start = end
        if b"sent_s" in event:
            stamps.append((time_s, json.loads(event.split(b"data: ", 1)[1])["sent_s"]))
    rows.append({"begun": answer.sent_s, "stamps": stamps})
print(json.dumps(rows))
"""
_PARSE_FIRST = """
import asyncio, json, sys, time
import aiohttp
port, streams, tokens = map(int, sys.argv[1:])
async def one(session, i):
    prompt = [(i * 7919 + k) % 30000 + 100 for k in range(64)]
    body = {"model": "mock", "prompt": prompt, "max_tokens": tokens, "stream": True}
    begun, stamps, rest = time.perf_counter(), [], b""
    async with session.post(f"http://127.0.0.1:{port}/v1/completions", json=body) as answer:
        async for piece in answer.content.iter_any():
            *events, rest = (rest + piece).split(b"\\n\\n")
            for event in events:
                text = event.decode().removeprefix("data: ")
                if text != "[DONE]":
                    chunk = json.loads(text)
                    now = time.perf_counter()
                    if chunk["choices"]:
                        stamps.append((now, chunk["sent_s"]))
    return {"begun": begun, "stamps": stamps}
async def main():
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        return await asyncio.gather(*(one(session, i) for i in range(streams)))
print(json.dumps(asyncio.run(main())))
"""


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


def measure(python: str, program: str, *, streams: int, tokens: int) -> dict[str, float]:
    """One run of one contestant; times in ms."""
    with mock_server() as port:
        done = subprocess.run([python, "-c", program, str(port), str(streams), str(tokens)], capture_output=True,
                              text=True, check=False, timeout=300, env={**os.environ, "PYTHONPATH": str(ROOT)})
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no output"])[-1])
    rows = json.loads(done.stdout.splitlines()[-1])
    if any(len(row["stamps"]) != tokens for row in rows):
        raise RuntimeError("a stream is not whole")
    ttft = [1e3 * (row["stamps"][0][0] - row["stamps"][0][1]) for row in rows]
    itl = [1e3 * abs((b[0] - a[0]) - (b[1] - a[1])) for row in rows for a, b in zip(row["stamps"], row["stamps"][1:])]
    seen = [1e3 * (b[0] - a[0]) for row in rows for a, b in zip(row["stamps"], row["stamps"][1:])]
    told = [1e3 * (row["stamps"][0][0] - row["begun"]) for row in rows]
    late = [1e3 * (b[1] - a[1]) for row in rows for a, b in zip(row["stamps"], row["stamps"][1:])]
    return {"ttft_error_p50": at(ttft, 50), "ttft_error_p99": at(ttft, 99), "itl_error_p50": at(itl, 50),
            "itl_error_p99": at(itl, 99), "ttft_told_p50": at(told, 50), "itl_told_p50": at(seen, 50),
            "server_itl_p50": at(late, 50), "server_itl_p99": at(late, 99)}


def at(values: list[float], q: int) -> float:
    """Nearest-rank quantile."""
    return sorted(values)[-(-len(values) * q // 100) - 1]


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--skip-aiohttp", action="store_true")
    asked = parser.parse_args()
    for name in ("streams", "tokens", "runs"):
        if getattr(asked, name) < (2 if name == "tokens" else 1):
            parser.error(f"--{name} {getattr(asked, name)}: expected more")
    contestants = {LABKIT: (sys.executable, _LABKIT)}
    missing = "left out by --skip-aiohttp"
    if not asked.skip_aiohttp:
        python, missing = own_aiohttp()
        if python:
            contestants[PARSE_FIRST] = (python, _PARSE_FIRST)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in contestants}
    for number in range(asked.runs):
        for name, (python, program) in contestants.items():
            print(f"run {number + 1}/{asked.runs}: {name}", file=sys.stderr)
            found[name].append(measure(python, program, streams=asked.streams, tokens=asked.tokens))
    keys = ("ttft_error_p50", "ttft_error_p99", "itl_error_p50", "itl_error_p99", "server_itl_p99")
    load = os.getloadavg()[0]
    print(f"\n{asked.streams} streams of {asked.tokens} tokens, median of {asked.runs} runs, ms, "
          f"load average {load:.1f}", file=sys.stderr)
    print(f"{'':30}" + "".join(f"{key.replace('_', ' '):>18}" for key in keys), file=sys.stderr)
    medians = {name: {key: at([run[key] for run in runs], 50) for key in runs[0]} for name, runs in found.items()}
    for name, row in medians.items():
        print(f"{name:30}" + "".join(f"{row[key]:18.2f}" for key in keys), file=sys.stderr)
    if missing:
        print(f"{PARSE_FIRST}: {missing}", file=sys.stderr)
    print(json.dumps({"streams": asked.streams, "tokens": asked.tokens, "load_average": load, "median": medians,
                      "runs": found, "aiohttp_missing": missing}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
