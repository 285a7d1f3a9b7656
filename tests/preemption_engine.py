"""A stand-in for a vLLM server under a load: the scheduler model makes the steps, every step takes 10 ms.

`observed` gives what labkit.launch.observed_round.observe gives: stamped bytes, two pages, samples, a log.
"""

import json

from labkit.calc.preemption_prediction import equal_jobs
from labkit.calc.scheduler import Scheduler, SchedulerConfig
from labkit.calc.scheduler_runs import simulate
from labkit.launch.load_client import Answer, Load
from labkit.launch.observed_round import Observed
from labkit.launch.release import HELD, Release

STEP_S, T0 = 0.01, 1000.0
HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
READY = ("INFO 11-30 02:31:11 [kv_cache_utils.py:2327] CPU KV cache size: {tokens:,} tokens, Maximum concurrency for "
         "{length:,} tokens per request: {times:.2f}x\nINFO: Application startup complete.\n")


def log_line(index, step, *, usage=True):
    """A step as a release of late 2026 logs it, or as earlier ones do."""
    text = (f"(APIServer pid=7) INFO 11-30 02:31:15 [loggers.py:199] Engine 000: Iteration({index}): "
            f"{step.context_requests} context requests, {step.context_tokens} context tokens, "
            f"{step.generation_requests} generation requests, {step.generation_tokens} generation tokens, "
            f"iteration elapsed time: {1e3 * STEP_S:.2f} ms")
    return text + (f", CPU KV cache usage: {100 * step.usage:.1f}%\n" if usage else "\n")


def page(*, preemptions, prompt, generation, finished, usage=0.0, running=0, waiting=0, start=1.0):
    """A metrics page with what the lab reads."""
    one = '{engine="0",model_name="lab"}'
    return "".join(f"{name} {value}\n" for name, value in {
        "process_start_time_seconds": start, f"vllm:num_preemptions_total{one}": preemptions,
        f"vllm:prompt_tokens_total{one}": prompt, f"vllm:generation_tokens_total{one}": generation,
        'vllm:prompt_tokens_by_source_total{engine="0",model_name="lab",source="local_compute"}': prompt,
        'vllm:request_success_total{engine="0",finished_reason="length",model_name="lab"}': finished,
        f"vllm:kv_cache_usage_perc{one}": usage, f"vllm:num_requests_running{one}": running,
        f"vllm:num_requests_waiting{one}": waiting}.items())


def stream(prompt_tokens, times):
    """Bytes of one answer: a token at each time."""
    pieces = [(times[0] - 0.001, HEAD)]
    pieces += [(t, b'data: {"choices": [{"index": 0, "text": "a", "token_ids": [7]}]}\n\n') for t in times]
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": len(times)}
    done = f'data: {{"choices": [], "usage": {json.dumps(usage)}}}\n\ndata: [DONE]\n\n'.encode()
    return [*pieces, (times[-1] + 0.0001, done)]


class StandIn:
    """A server with a history; `late_steps` is how long after an end the client's next request is there."""

    def __init__(self, settings, run_dir, *, late_steps=2, usage=True):
        self.settings, self.run_dir, self.log = settings, run_dir, run_dir / "log.txt"
        self.argv = ["python", "--max-num-seqs", str(settings.max_num_seqs), "--max-num-batched-tokens",
                     str(settings.max_num_batched_tokens), "--no-enable-prefix-caching", "--enforce-eager"]
        self.startup_s, self.late_steps, self.usage = 30.0, late_steps, usage
        self.totals, self.num_steps = {"preemptions": 0, "prompt": 0, "generation": 0, "finished": 0}, 0
        blocks = settings.num_blocks or settings.kv_cache_memory_bytes // (57344 * settings.block_size)
        self.config = SchedulerConfig(num_blocks=blocks, block_size=settings.block_size,
                                      max_num_seqs=settings.max_num_seqs, enable_prefix_caching=False,
                                      max_num_batched_tokens=settings.max_num_batched_tokens)
        self.log.write_text(self.log_text())

    def log_text(self):
        """What a server says when it is ready."""
        size, length = self.settings.block_size, self.settings.max_model_len
        return READY.format(tokens=self.config.num_blocks * size, length=length,
                            times=self.config.num_blocks / -(-length // size))

    def arrivals(self, plan, concurrency, held):
        """Steps before each arrival: together, a few steps after an end, or four steps a gap."""
        if not held:
            return [round((request.at_s or 0) / STEP_S) for request in plan]
        arrivals, jobs = [0] * min(concurrency, len(plan)), self.jobs(plan)
        while len(arrivals) < len(plan):  # one more at a time: the ends of those before decide
            ends = sorted(simulate(jobs[: len(arrivals)], self.config, arrivals=arrivals)["end_steps"])
            arrivals.append(max(arrivals[-1], ends[len(arrivals) - concurrency] + self.late_steps))
        return arrivals

    def jobs(self, plan):
        return equal_jobs(num_requests=len(plan), prompt_tokens=len(plan[0].prompt_ids),
                          output_tokens=plan[0].output_tokens)

    def observe(self, plan, *, concurrency, held):
        """One load."""
        engine = Scheduler(self.config)
        arrivals = self.arrivals(plan, concurrency, held)
        seen = simulate(self.jobs(plan), self.config, arrivals=arrivals, scheduler=engine)
        before, prompt = page(**self.totals), len(plan[0].prompt_ids)
        answers = []
        for number, request in enumerate(plan):
            first, last, count = seen["first_steps"][number], seen["end_steps"][number], request.output_tokens
            times = [T0 + STEP_S * (first + (last - first) * i / max(1, count - 1)) for i in range(count)]
            at = None if request.at_s is None else T0 + request.at_s
            waits = held and number < concurrency
            answers.append(Answer(
                index=number, planned_s=at, ended_s=times[-1] + 0.0002, pieces=stream(prompt, times),
                sent_s=T0 - 0.3 if waits else at or T0 + STEP_S * arrivals[number]))
        self.totals = {"preemptions": self.totals["preemptions"] + seen["preemptions"],
                       "prompt": self.totals["prompt"] + prompt * len(plan),
                       "generation": self.totals["generation"] + sum(r.output_tokens for r in plan),
                       "finished": self.totals["finished"] + len(plan)}
        log = "".join(log_line(self.num_steps + i, step, usage=self.usage) for i, step in enumerate(engine.trace))
        self.num_steps += len(engine.trace)
        samples = [{"t_s": T0 + STEP_S * (i + 1), "running": step.running, "waiting": step.waiting,
                    "kv_cache_usage": step.usage} for i, step in enumerate(engine.trace) if i % 5 == 0]
        load = Load(answers=answers, started_s=T0 - 0.4, ended_s=max(a.ended_s for a in answers), loop_lag_s=[0.001],
                    cpu_s=0.1)
        return Observed(release=Release(load=load, released_s=T0 if held else T0 - 0.4,
                                        how=HELD if held else "each as it came"),
                        before=before, after=page(**self.totals), samples=samples, log_text=log)
