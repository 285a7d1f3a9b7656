"""Start vLLM servers, wait until they are ready, and leave nothing behind when done.

    with vllm_servers([settings], engine_python=python, model=folder, run_dirs=[run_dir / "s0"], explain=...) as (s,):
        s.scrape()

Each server runs under a guard process (labkit.launch.guard): when this process ends, by whatever means, the guard ends
the API server and then every process below it, EngineCore included. What is wrong is told from the server's own log;
`explain` reads it, since this layer reads no formats.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.launch.process import describe_exit
from labkit.launch.supervise import LOG_NAME, LaunchError, Progress, Running, start_program

HOST = "127.0.0.1"
MODEL = "lab"
"""Name under which the model is served."""
GRACE_S = 20.0
"""Seconds between SIGTERM and SIGKILL: vLLM waits for its engine."""
DEATH_S = 5.0
"""From the end of a server's port to the end of its processes."""
POLL_S = 0.25
PORT_TRIES = 3
GPU_RETURN_S = 30.0
GPU_SLACK_BYTES = 512 << 20
"""A driver gives memory back late and not to the last byte."""
Explain = Callable[[str], str | None]
"""Text of a log -> the first error in it that is no consequence of another, or None."""
GpuMemory = Callable[[], int | None]
"""Bytes in use on the GPUs, all processes; None if unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """Settings of one server, named as vLLM's arguments."""

    block_size: int
    """Tokens a KV block."""
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int | None = None
    """KV blocks (`--num-gpu-blocks-override`); None: what the memory gives."""
    kv_cache_memory_bytes: int | None = None
    enable_prefix_caching: bool = True
    enforce_eager: bool = True
    dtype: str = "bfloat16"
    gpu_index: int | None = None
    """The one GPU it may see; None: as it is."""
    extra: tuple[str, ...] = ()
    """More arguments, as they are."""

    def arguments(self) -> list[str]:
        """The command line of `vllm.entrypoints.openai.api_server`, without model, host and port."""
        argv = ["--served-model-name", MODEL, "--load-format", "dummy", "--skip-tokenizer-init", "--dtype", self.dtype,
                "--block-size", str(self.block_size), "--max-model-len", str(self.max_model_len),
                "--max-num-seqs", str(self.max_num_seqs), "--max-num-batched-tokens", str(self.max_num_batched_tokens),
                "--enable-prefix-caching" if self.enable_prefix_caching else "--no-enable-prefix-caching"]
        if self.num_blocks is not None:
            argv += ["--num-gpu-blocks-override", str(self.num_blocks)]
        if self.kv_cache_memory_bytes is not None:
            argv += ["--kv-cache-memory-bytes", str(self.kv_cache_memory_bytes)]
        return [*argv, *(["--enforce-eager"] if self.enforce_eager else []), *self.extra]


class VllmServer:
    """One server; made by `vllm_servers`."""

    host, model = HOST, MODEL

    def __init__(self, settings: ServerSettings, *, engine_python: Path, model: Path, run_dir: Path, timeout_s: float,
                 env: Mapping[str, str], explain: Explain) -> None:
        """Start it and come back at once."""
        self.settings, self.run_dir, self._explain = settings, run_dir, explain
        self._python, self._folder, self._timeout_s, self._env = engine_python, model, timeout_s, env
        self.startup_s = 0.0
        """Seconds from the start to the first good answer of `/health`."""
        self._num_tries = 0
        self._start()

    def _start(self) -> None:
        self._num_tries += 1
        self.port = free_port()
        self.argv = [str(self._python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(self._folder),
                     "--host", HOST, "--port", str(self.port), *self.settings.arguments()]
        visible = {} if self.settings.gpu_index is None else {"CUDA_VISIBLE_DEVICES": str(self.settings.gpu_index)}
        self._begun = time.monotonic()
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self._running: Running = start_program(self.argv, run_dir=self.run_dir, timeout_s=self._timeout_s,
                                               env={**_ENVIRONMENT, **self._env, **visible}, grace_s=GRACE_S)

    @property
    def log(self) -> Path:
        """Its output."""
        return self.run_dir / LOG_NAME

    def log_text(self) -> str:
        """Everything it has said since it was started."""
        with open(self.log, "rb") as stream:
            stream.seek(self._log_start)
            return stream.read().decode("utf-8", "replace")

    def wait_ready(self, deadline: float, progress: Progress | None) -> None:
        """Until `/health` answers 200; raises LaunchError with the log's first error if it ends or does not come up.

        Args:
            deadline: on `time.monotonic`.
            progress: told when it is ready.
        """
        while not self._is_healthy():
            if not self._running.relay(None, timeout_s=POLL_S):
                cause = self._explain(self.log_text())
                if cause == "address already in use" and self._num_tries < PORT_TRIES:
                    self.stop()  # somebody took the port between its choice and its use
                    self._start()
                    continue
                raise self._failed("did not start", cause)
            if time.monotonic() >= deadline:
                raise self._failed(f"was not ready after {time.monotonic() - self._begun:.0f} s",
                                   self._explain(self.log_text()), timed_out=True)
        self.startup_s = time.monotonic() - self._begun
        if progress:
            progress(f"server {self.run_dir.name} ready after {self.startup_s:.0f} s")

    def _is_healthy(self) -> bool:
        try:
            return self.request("GET", "/health", timeout_s=2.0)[0] == 200
        except OSError:
            return False

    def raise_if_dead(self) -> None:
        """LaunchError with the log's first error when the server runs no more, or nobody listens any more."""
        if self._running.is_alive() and self._is_listening():
            return
        self._running.relay(None, timeout_s=DEATH_S)  # its guard may still be ending what it left
        raise self._failed("died", self._explain(self.log_text()))

    def _is_listening(self) -> bool:
        try:
            socket.create_connection((self.host, self.port), timeout=5.0).close()
        except ConnectionRefusedError:
            return False
        except OSError:  # too busy to take us is not dead
            return True
        return True

    def _failed(self, what: str, cause: str | None, *, timed_out: bool = False) -> LaunchError:
        try:
            exitcode = self._running.finish().exitcode
            how = "" if timed_out else describe_exit(exitcode)
        except LaunchError as error:  # no such program, or its guard was killed
            exitcode, how = None, str(error)
        told = cause or self._running.tail.last_line(None)[:300] or "it said nothing"
        place = f"{self.run_dir.name}/{LOG_NAME}"
        return LaunchError(f"vLLM server {self.run_dir.name} {what}{f' ({how})' if how else ''}: {told}; see {place}",
                           log_path=self.log, exitcode=exitcode, error=told, timed_out=timed_out)

    def request(self, method: str, path: str, *, timeout_s: float = 30.0) -> tuple[int, str]:
        """Status and body of an answer; OSError when there is none."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode("utf-8", "replace")
        except http.client.HTTPException as error:
            raise OSError(f"{type(error).__name__}: {error}") from None
        finally:
            connection.close()

    def post(self, path: str) -> int:
        """Status of a POST, whatever it is; 0 when no answer came."""
        try:
            return self.request("POST", path)[0]
        except OSError:
            return 0

    def scrape(self, *, timeout_s: float = 10.0) -> str:
        """Text of `/metrics`; LaunchError when there is no such page."""
        try:
            status, text = self.request("GET", "/metrics", timeout_s=timeout_s)
        except OSError as error:
            self.raise_if_dead()
            raise self._no_page(str(error) or type(error).__name__) from None
        if status != 200:
            raise self._no_page(f"HTTP {status}")
        return text

    def _no_page(self, why: str) -> LaunchError:
        place = f"{self.run_dir.name}/{LOG_NAME}"
        return LaunchError(f"vLLM server {self.run_dir.name}: no metrics page: {why}; see {place}", log_path=self.log,
                           error=why)

    def stop(self) -> None:
        """End it and everything below it, and wait until it is gone."""
        self._running.stop()


_ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
                "VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0",
                "SPT_NOENV": "1"}
"""Nothing is reported or fetched; endpoints to pause and to empty the cache are there. A CPU's cache space is a bound
only: the labs say how many blocks. SPT_NOENV: process titles are not written over the environment, by which processes
of a run are found."""


@contextlib.contextmanager
def vllm_servers(
    settings: Sequence[ServerSettings], *, engine_python: Path, model: Path, run_dirs: Sequence[Path],
    explain: Explain, timeout_s: float = 1800.0, ready_timeout_s: float = 300.0,
    env: Mapping[str, str] | None = None, gpu_memory: GpuMemory | None = None, progress: Progress | None = None,
) -> Iterator[list[VllmServer]]:
    """Servers that are started together and are all ready; none is left when the block ends, however it ends.

    Args:
        settings: one for each server.
        engine_python: interpreter that has vLLM.
        model: folder with `config.json`.
        run_dirs: a folder for each; made if it is not there. The log goes there.
        explain: text of a log -> its first error.
        timeout_s: deadline of each server's life, seconds.
        ready_timeout_s: until all must answer, seconds.
        env: added to the environment of the servers.
        gpu_memory: bytes in use on the GPUs; if given, they are seen to return at the end.
        progress: told what happens.

    Raises: ValueError for a bad argument; LaunchError when a server does not get ready (the others are stopped first)
        or GPU memory does not come back.
    """
    if len(settings) != len(run_dirs) or not settings:
        raise ValueError(f"run_dirs: {len(run_dirs)} of them, expected one for each of {len(settings)} servers")
    before = gpu_memory() if gpu_memory else None
    with contextlib.ExitStack() as stack:
        servers = []
        for one, run_dir in zip(settings, run_dirs):
            run_dir.mkdir(parents=True, exist_ok=True)
            server = VllmServer(one, engine_python=engine_python, model=model, run_dir=run_dir, timeout_s=timeout_s,
                                env=env or {}, explain=explain)
            stack.callback(server.stop)
            servers.append(server)
        deadline = time.monotonic() + ready_timeout_s
        for server in servers:
            server.wait_ready(deadline, progress)
        yield servers
    if gpu_memory and before is not None:
        _wait_for_memory(gpu_memory, before, servers[0].log)


def _wait_for_memory(gpu_memory: GpuMemory, before: int, log: Path) -> None:
    deadline = time.monotonic() + GPU_RETURN_S
    while (now := gpu_memory()) is not None and now > before + GPU_SLACK_BYTES:
        if time.monotonic() >= deadline:
            raise LaunchError(f"GPU memory did not return: {now / 2**20:.0f} MiB in use, {before / 2**20:.0f} MiB "
                              "before the servers", log_path=log)
        time.sleep(0.2)


def free_port() -> int:
    """A port that nobody listens on at this moment, from the system."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]
