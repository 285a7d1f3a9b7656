"""What the fault tests of the server launcher share: a stand-in engine, marks on processes, a launcher of its own."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil

from labkit.launch.guard import shm_files
from labkit.launch.vllm_server import ServerSettings
from labkit.paths import ROOT

STAND_IN = ROOT / "tests" / "vllm_stand_in.py"
SETTINGS = ServerSettings(block_size=32, num_blocks=64, max_model_len=512, max_num_seqs=4, max_num_batched_tokens=512)
LAUNCHER = """
import json, sys, time
from pathlib import Path
from labkit.analyze.vllm_server_log import first_cause
from labkit.launch.vllm_server import ServerSettings, vllm_servers
asked = json.loads(sys.argv[1])
settings = [ServerSettings(**asked["settings"])] * asked["servers"]
run_dirs = [Path(asked["run_dir"]) / f"s{k}" for k in range(len(settings))]
with vllm_servers(settings, engine_python=Path(asked["python"]), model=Path(asked["model"]), run_dirs=run_dirs,
                  explain=first_cause, timeout_s=600, ready_timeout_s=300) as servers:
    print(json.dumps([server.port for server in servers]), flush=True)
    time.sleep(600)
"""
"""A process that starts servers and holds them, to be killed."""


def stand_in(folder):
    """An "interpreter with vLLM" that runs the stand-in."""
    path = Path(folder) / "python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{STAND_IN}" "$@"\n')
    path.chmod(0o755)
    return path


def model_folder(folder):
    """As much of a model as the stand-in looks for."""
    path = Path(folder) / "model"
    path.mkdir()
    (path / "config.json").write_text("{}")
    return path


class Marks:
    """Finds every process that inherited a mark, guards included."""

    def __init__(self):
        self.value, self.shm_before = uuid.uuid4().hex, set(shm_files())
        # Without SPT_NOENV vLLM's processes write their titles over the environment that is looked at here.
        self.env = {"LABKIT_TEST_MARK": self.value, "SPT_NOENV": "1"}

    def alive(self):
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("LABKIT_TEST_MARK") == self.value \
                        and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def new_shm(self):
        return set(shm_files()) - self.shm_before

    def kill_left(self, logs=None):
        """What is still there, ended now: (names of processes, shared-memory files of a server).

        With `logs`, text of the servers' logs, only files that are named there: others may run servers meanwhile.
        """
        left = self.alive()
        names = [f"{process.pid} {' '.join(process.cmdline())[-80:]}" for process in left]
        for process in left:
            process.kill()
        files = {name for name in self.new_shm() if name.startswith(("psm_", "torch_", "sem.mp-", "nccl-", "gloo"))}
        return names, {name for name in files if logs is None or f"/{name}\n" in logs}


def wait_until(condition, timeout_s=90.0):
    """True as soon as it holds; False when the time is over."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def is_free(port):
    """Nobody listens there."""
    with socket.socket() as probe:
        probe.settimeout(2.0)
        return probe.connect_ex(("127.0.0.1", port)) != 0


def start_launcher(run_dir, *, python, model, marks, servers=1, settings=None, plan=None):
    """LAUNCHER in a process of its own, in a group of its own as a shell makes it."""
    fields = settings or {"block_size": 32, "num_blocks": 64, "max_model_len": 512, "max_num_seqs": 4,
                          "max_num_batched_tokens": 512}
    asked = {"settings": fields, "servers": servers, "run_dir": str(run_dir), "python": str(python),
             "model": str(model)}
    env = {**os.environ, **marks.env, "PYTHONPATH": str(ROOT), "LABKIT_STAND_IN": json.dumps(plan or {})}
    return subprocess.Popen([sys.executable, "-c", LAUNCHER, json.dumps(asked)], cwd=ROOT, env=env,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def kill_someone(rng, launcher, marks):
    """One process of the run, any, with a signal that may end it; returns who and how."""
    victim = rng.choice(marks.alive() or [psutil.Process(launcher.pid)])
    signum = rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    with contextlib.suppress(psutil.Error):
        words = " ".join(victim.cmdline())
        who = "launcher" if victim.pid == launcher.pid else "guard" if "launch.guard" in words else \
            "engine" if "ngine" in words[-20:] or "spawn" in words else "server"
        victim.send_signal(signum)
        return f"{who} {signal.Signals(signum).name}"
    return "nobody"


def random_kill(seed, run_dir, *, python, model, latest_s, settle_s, servers=2, settings=None, alone=False):
    """Start servers, kill one process at a random moment, then end the launcher if it still runs.

    With `alone`, no other server may be started meanwhile: then every new shared-memory file is one of ours.

    Returns: (what was done, processes left, shared-memory files left, ports still open).
    """
    rng, marks = random.Random(seed), Marks()
    run_dir.mkdir()
    launcher = start_launcher(run_dir, python=python, model=model, marks=marks, servers=servers, settings=settings)
    try:
        delay_s = rng.uniform(0.05, latest_s)
        time.sleep(delay_s)
        what = f"seed {seed}: after {delay_s:.2f} s {kill_someone(rng, launcher, marks)}"
        wait_until(lambda: launcher.poll() is not None, timeout_s=rng.choice([0.0, 1.0]))
        if launcher.poll() is None:
            launcher.send_signal(rng.choice([signal.SIGKILL, signal.SIGINT]))
        wait_until(lambda: launcher.poll() is not None and not marks.alive(), timeout_s=settle_s)
    finally:
        logs = "".join(path.read_text(errors="replace") for path in run_dir.rglob("log.txt"))
        left, files = marks.kill_left(None if alone else logs)
        told, _ = launcher.communicate(timeout=120)
    ports = [port for line in told.splitlines()[:1] for port in json.loads(line) if not is_free(port)]
    return what, left, files, ports
