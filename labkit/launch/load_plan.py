"""What a load test sends and when: token-id prompts with exact lengths, closed loop, Poisson arrivals, trace replay."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One request of a plan."""

    prompt_ids: tuple[int, ...]
    """Token ids: a text would be cut by the server's tokenizer into who knows how many."""
    output_tokens: int
    """Exactly as many are asked for: `ignore_eos` is set."""
    at_s: float | None = None
    """When to send it, seconds from the start; None in a closed loop: when a place is free."""
    label: str = ""
    """Phase, tenant or session, for the tables."""
    extra: dict[str, Any] = field(default_factory=dict)
    """More fields of the request's body, such as `cache_salt`."""

    def __post_init__(self) -> None:
        """Refuse what no server answers, naming the argument."""
        if not self.prompt_ids:
            raise ValueError("prompt_ids=(): expected at least one token id")
        if self.output_tokens < 1:
            raise ValueError(f"output_tokens={self.output_tokens}: expected at least 1")
        if self.at_s is not None and not self.at_s >= 0:
            raise ValueError(f"at_s={self.at_s!r}: expected seconds from the start, at least 0")

    def body(self, model: str) -> dict[str, Any]:
        """The JSON of a streamed completion. Token ids come back: without a tokenizer every text is empty."""
        return {
            "model": model, "prompt": list(self.prompt_ids), "max_tokens": self.output_tokens, "temperature": 0,
            "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True,
            **self.extra}


def random_prompt(num_tokens: int, *, seed: int, vocab_size: int = 32000, first_id: int = 100) -> tuple[int, ...]:
    """Token ids drawn evenly from [first_id, vocab_size); ids below are often special.

    Raises: ValueError naming the argument.

    >>> random_prompt(3, seed=1) == random_prompt(3, seed=1) != random_prompt(3, seed=2)
    True
    """
    if num_tokens < 1:
        raise ValueError(f"num_tokens={num_tokens}: expected at least 1")
    if not 0 <= first_id < vocab_size:
        raise ValueError(f"first_id={first_id}: expected 0 to vocab_size={vocab_size}, not included")
    rng = random.Random(seed)
    return tuple(rng.randrange(first_id, vocab_size) for _ in range(num_tokens))


def arrival_times(num_requests: int, *, rate_per_s: float, burstiness: float = 1.0, seed: int = 0) -> list[float]:
    """Arrival times of an open loop, seconds from the start, rising.

    Args:
        num_requests: how many.
        rate_per_s: mean rate, > 0.
        burstiness: shape of the gamma distribution of the gaps, > 0: 1 is Poisson, below 1 comes in bursts, above 1
            is more even than chance. The meaning is that of `vllm bench serve`.
        seed: of the draw.

    Raises: ValueError naming the argument, the value got, what was expected.
    """
    for name, value in (("rate_per_s", rate_per_s), ("burstiness", burstiness)):
        if not 0 < value < float("inf"):
            raise ValueError(f"{name}={value!r}: expected a number above 0")
    rng, now, times = random.Random(seed), 0.0, []
    for _ in range(num_requests):
        now += rng.gammavariate(burstiness, 1 / (rate_per_s * burstiness))
        times.append(now)
    return times


def at_times(requests: Sequence[Request], times: Sequence[float]) -> list[Request]:
    """The same requests with arrival times: of `arrival_times`, or of a recorded trace.

    Raises: ValueError when there are not as many times as requests.
    """
    if len(requests) != len(times):
        raise ValueError(f"times: {len(times)} of them, expected one for each of {len(requests)} requests")
    return [Request(prompt_ids=request.prompt_ids, output_tokens=request.output_tokens, at_s=at_s, label=request.label,
                    extra=request.extra) for request, at_s in zip(requests, times)]
