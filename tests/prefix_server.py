"""A stand-in for vLLM: the scheduler model behind a metrics page and answers made of bytes; no process, no network.

Times are made up: a first token comes 5 ms after the sending, and 10 us later for each token not in the cache.
"""

import contextlib
from types import SimpleNamespace

from labkit.calc.scheduler import Job, Scheduler, SchedulerConfig
from labkit.calc.scheduler_runs import simulate
from labkit.launch.load_client import Answer, Load
from labkit.launch.supervise import LaunchError

COUNTERS = {"prefix_cache_queries": "query_tokens", "prefix_cache_hits": "hit_tokens", "num_preemptions": "preemptions"}


BY_PORT = {}


class StandIn:
    """One server. `faults` change what it does: see the places where they are asked for."""

    host, model, startup_s = "127.0.0.1", "lab", 12.0

    def __init__(self, settings, run_dir, faults=()):
        self.faults, self.run_dir, self.log, self.settings = set(faults), run_dir, run_dir / "log.txt", settings
        self.port = 10000 + len(BY_PORT)
        BY_PORT[self.port] = self
        self.argv = ["python", "-m", "vllm.entrypoints.openai.api_server", "--port", str(self.port)]
        blocks = settings.num_blocks or settings.kv_cache_memory_bytes // (57344 * settings.block_size)
        self.tokens = blocks * settings.block_size
        self.config = SchedulerConfig(num_blocks=blocks, block_size=settings.block_size,
                                      max_num_seqs=settings.max_num_seqs,
                                      max_num_batched_tokens=settings.max_num_batched_tokens)
        self.engine, self.start, self.loads = Scheduler(self.config), 100.0, 0
        self.totals = dict.fromkeys([*COUNTERS, "prompt_tokens", "generation_tokens", "request_success", "computed"], 0)
        self.clock = 1000.0

    def log_text(self):
        tokens = 999 if "capacity" in self.faults else self.tokens
        return f"INFO 11-30 01:00:00 [kv_cache_utils.py:1] GPU KV cache size: {tokens:,} tokens\n"

    def scrape(self):
        lines = [f'vllm:{name}_total{{engine="0"}} {value}' for name, value in self.totals.items()
                 if name != "computed"]
        computed = self.totals["computed"] + self.loads * ("identity" in self.faults)
        sources = {"local_compute": computed, "local_cache_hit": self.totals["prefix_cache_hits"]}
        lines += [f'vllm:prompt_tokens_by_source_total{{source="{name}"}} {value}' for name, value in sources.items()]
        return "\n".join([*lines, f"process_start_time_seconds {self.start}", ""])

    def raise_if_dead(self):
        if "dies" in self.faults and self.loads == 3:
            raise LaunchError(f"vLLM server {self.run_dir.name} died: CUDA out of memory", log_path=self.log)

    def answer(self, plan, concurrency):
        """Play a plan; the load as a client would have seen it."""
        self.loads += 1
        if "restart" in self.faults and self.loads == 3:
            self.start += 60
        jobs = [Job(prompt_ids=request.prompt_ids, output_tokens=request.output_tokens,
                    salt="" if "no_salt" in self.faults else request.extra.get("cache_salt", "")) for request in plan]
        seen = simulate(jobs, self.config, concurrency=concurrency, scheduler=self.engine)
        ran = sorted(self.engine.done[-len(jobs):], key=lambda sequence: sequence.number)
        for name, ours in COUNTERS.items():
            self.totals[name] += seen[ours]
        prompt = sum(len(job.prompt_ids) for job in jobs)
        self.totals["prompt_tokens"] += prompt
        self.totals["computed"] += prompt - seen["hit_tokens"]
        self.totals["generation_tokens"] += sum(job.output_tokens for job in jobs)
        self.totals["request_success"] += len(jobs)
        if "one_hit_more" in self.faults and self.loads == 4:
            self.totals["prefix_cache_hits"] += 16
            self.totals["computed"] -= 16
        if "probe" in self.faults and self.loads == 2:  # somebody else asks for something between two pages
            for name in ("prefix_cache_queries", "prompt_tokens", "computed"):
                self.totals[name] += 7
        begun, answers = self.clock, []
        for index, (job, sequence) in enumerate(zip(jobs, ran)):
            first = self.clock + 5e-3 + 1e-5 * (len(job.prompt_ids) - sequence.hit_tokens)
            answers.append(Answer(index=index, planned_s=None, sent_s=self.clock, ended_s=first + 1e-3,
                                  pieces=self._pieces(job, first)))
            self.clock = first + 1e-3
        return Load(answers=answers, started_s=begun, ended_s=self.clock, loop_lag_s=[0.001], cpu_s=0.1)

    def _pieces(self, job, first):
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
        event = b'data: {"choices": [{"index": 0, "text": "a", "token_ids": [7]}]}\n\n'
        told = len(job.prompt_ids) + ("usage" in self.faults)
        count = job.output_tokens - ("short" in self.faults and self.loads == 5)
        end = (b'data: {"choices": [], "usage": {"prompt_tokens": %d, "completion_tokens": %d}}\n\ndata: [DONE]\n\n'
               % (told, count))
        return [(first, head + event), (first + 1e-3, event * (job.output_tokens - 1) + end)]


def install(monkeypatch, exp, *, faults=None, drill=False):
    """Put stand-ins in the place of servers, client and engine; `faults`: server -> names; `drill`: the real one."""
    BY_PORT.clear()

    @contextlib.contextmanager
    def servers(settings, *, run_dirs, **options):
        made = []
        for one, run_dir in zip(settings, run_dirs):
            run_dir.mkdir(parents=True, exist_ok=True)
            made.append(StandIn(one, run_dir, (faults or {}).get(run_dir.name, ())))
        yield made

    if not drill:
        monkeypatch.setattr(exp, "_drill", lambda *args: {
            "term_ignored": True, "child_survived": True, "left_after_group_kill": 0})
    engine = SimpleNamespace(python="python", version="0.32.0", as_result=lambda: {"vllm": "0.32.0", "torch": "2.13.0"})
    monkeypatch.setattr(exp, "find_engine", lambda device: engine)
    monkeypatch.setattr(exp, "vllm_servers", servers)
    # As many as the API server and its engine; all gone at the end, unless the fault says otherwise.
    monkeypatch.setattr(exp, "processes_of", lambda argv: [argv, argv])
    monkeypatch.setattr(exp, "still_running", lambda processes: int("left" in BY_PORT[int(
        processes[0][-1])].faults))
    monkeypatch.setattr("labkit.launch.server.send_load", lambda plan, *, port, concurrency, **options:
                        BY_PORT[port].answer(plan, concurrency))
