"""A decode run without an engine: results of requests with known stamps, and pages and logs as vLLM writes them."""

from labkit.analyze.decode_roofline import Point, Served
from labkit.analyze.load_results import Result

LOG = """INFO 11-30 02:41:07 [gpu_worker.py:1] Model loading took {gib} GiB memory and 1.2 seconds
WARNING 11-30 02:41:08 [router.py:1] Simulating MoE routing using a uniform_random strategy. This should only be used.
INFO 11-30 02:41:09 [kv_cache_utils.py:1] GPU KV cache size: {tokens:,} tokens
INFO 11-30 02:41:09 [launcher.py:1] Application startup complete.
"""


def page(*, blocks=0, block_size=16, prompt=0, output=0, finished=0, hits=0, preemptions=0, prefill_s=0.0):
    """A metrics page with the counters that the lab reads."""
    same = 'engine="0",model_name="lab"'
    return "\n".join([
        f'vllm:cache_config_info{{block_size="{block_size}",num_gpu_blocks="{blocks}",engine="0"}} 1.0',
        f"vllm:prompt_tokens_total{{{same}}} {prompt}", f"vllm:generation_tokens_total{{{same}}} {output}",
        f'vllm:request_success_total{{{same},finished_reason="length"}} {finished}',
        f"vllm:prefix_cache_hits_total{{{same}}} {hits}", f"vllm:prefix_cache_queries_total{{{same}}} 0",
        f"vllm:num_preemptions_total{{{same}}} {preemptions}",
        f'vllm:request_prefill_time_seconds_bucket{{{same},le="+Inf"}} {finished}',
        f"vllm:request_prefill_time_seconds_sum{{{same}}} {prefill_s}",
        f"vllm:request_prefill_time_seconds_count{{{same}}} {finished}", ""])


def result(*, index=0, sent_s=0.0, ttft_s=0.1, gap_s=0.01, prompt=16, output=8, error=None, one=True):
    """A request whose tokens come in even steps; `gap_s` may be a list of its gaps."""
    gaps = tuple(gap_s) if isinstance(gap_s, list | tuple) else (gap_s,) * (output - 1)
    if error:
        return Result(index=index, label="", success=False, error=error, status=200, sent_s=sent_s, queued_s=None,
                      prompt_tokens=prompt, output_tokens=None)
    return Result(index=index, label="", success=True, error=None, status=200, sent_s=sent_s, queued_s=None,
                  prompt_tokens=prompt, output_tokens=output, ttft_s=ttft_s, e2el_s=ttft_s + sum(gaps),
                  tpot_s=None, gaps_s=gaps, one_token_a_chunk=one)


def served(name, told, params, *, itl_ms=None, ttft_ms=None, **change):
    """One server as the prediction says it should be: `told` is its part of the prediction."""
    gib = round(told["weights_bytes"] / 2**30, 2)
    one = Served(name=name, startup_s=31.5, log=LOG.format(gib=gib, tokens=told["capacity_tokens"]),
                 page=page(blocks=told["capacity_blocks"], block_size=told["block_size"]))
    points = [("decode", batch, params.context_tokens, params.output_tokens, params.rounds, batch)
              for batch in params.batches]
    points += [("ttft", tokens, tokens, 1, params.prompt_repeats, 1) for tokens in params.prompt_tokens]
    for kind, size, prompt, output, rounds, batch in points:
        step = (itl_ms or told["decode"][str(size)]["predicted_ms"]) / 1e3 if kind == "decode" else 0.0
        first = 0.1 if kind == "decode" else (ttft_ms or told["ttft"][str(size)]["predicted_ms"]) / 1e3
        point = Point(kind=kind, size=size, prompt_tokens=prompt, output_tokens=output)
        point.rounds = [[result(index=i, sent_s=0.0, ttft_s=first + i * step, gap_s=step, prompt=prompt, output=output)
                         for i in range(batch)] for _ in range(rounds)]
        count = rounds * batch
        point.pages = (page(), page(prompt=count * prompt, output=count * output, finished=count,
                                    prefill_s=count * 0.004))
        one.points.append(point)
    for key, value in change.items():
        setattr(one, key, value)
    return one
