"""A streamed answer of an OpenAI-style server: events, tokens, and whether the request succeeded.

HTTP 200 says that the stream began. Success is decided here: an error event, a stream that stops without `[DONE]` and
an answer without a token are failures, and none of them may enter an average.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from labkit.analyze.kinds import clean_text

DONE = "[DONE]"


def iter_events(text: str) -> Iterator[tuple[str, str]]:
    r"""(event name, data) of each event; lines may end in LF, CRLF or CR, comments (pings) are dropped.

    >>> list(iter_events(": ping\r\ndata: a\r\ndata: b\r\n\r\nevent: error\ndata:c\n"))
    [('message', 'a\nb'), ('error', 'c')]
    """
    name, data = "message", []
    for line in [*text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), ""]:
        if not line:
            if data:
                yield name, "\n".join(data)
            name, data = "message", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)


def read_stream(text: str) -> dict[str, Any]:
    """What a stream brought.

    Args:
        text: the body of one streamed answer, of a completion or a chat.

    Returns: success, error (None on success), done, content_chunks (those with text, reasoning or token ids in them:
        the first ends TTFT; the role that opens a chat is none), reasoning_chunks (those of them with reasoning), text,
        reasoning_text, num_token_ids (0 where the server sends none), prompt_tokens and completion_tokens as the
        server counted them (None if it did not say), finish_reason, num_events.
    """
    found: dict[str, Any] = {
        "success": False, "error": None, "done": False, "content_chunks": 0, "reasoning_chunks": 0, "text": "",
        "reasoning_text": "", "num_token_ids": 0, "prompt_tokens": None, "completion_tokens": None,
        "finish_reason": None, "num_events": 0}
    for name, data in iter_events(text):
        found["num_events"] += 1
        if data.strip() == DONE:
            found["done"] = True
            continue
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError):
            chunk = None
        if name == "error" or _error(chunk) is not None:
            found["error"] = found["error"] or _error(chunk) or data[:300]
        elif not isinstance(chunk, dict):
            found["error"] = found["error"] or f"an event is no JSON object: {data[:80]!r}"
        else:
            _take(chunk, found)
    found["error"] = found["error"] or _missing(found, text)
    for name in ("error", "text", "reasoning_text", "finish_reason"):
        found[name] = None if found[name] is None else clean_text(found[name])
    return {**found, "success": found["error"] is None}


def _error(chunk: Any) -> str | None:
    """The server's message, in today's form ({"error": {"message"}}) or the old one ({"object": "error"})."""
    if not isinstance(chunk, dict):
        return None
    error = chunk.get("error")
    if error is None and chunk.get("object") == "error":
        error = chunk
    if error is None:
        return None
    return str(error.get("message") or error) if isinstance(error, dict) else str(error)


def _take(chunk: dict[str, Any], found: dict[str, Any]) -> None:
    choices = chunk.get("choices")
    for choice in choices if isinstance(choices, list) else []:
        if not isinstance(choice, dict):
            continue
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            delta = {}
        content = delta.get("content") or choice.get("text")
        reasoning = delta.get("reasoning_content") or delta.get("reasoning")
        token_ids = choice.get("token_ids")
        num_ids = len(token_ids) if isinstance(token_ids, list) else 0
        content, reasoning = (part if isinstance(part, str) else "" for part in (content, reasoning))
        found["content_chunks"] += bool(content or reasoning or num_ids)
        found["reasoning_chunks"] += bool(reasoning)
        found["text"] += content
        found["reasoning_text"] += reasoning
        found["num_token_ids"] += num_ids
        found["finish_reason"] = choice.get("finish_reason") or found["finish_reason"]
    usage = chunk.get("usage")
    if isinstance(usage, dict):
        for name in ("prompt_tokens", "completion_tokens"):
            if isinstance(usage.get(name), int):
                found[name] = usage[name]


def _missing(found: dict[str, Any], text: str) -> str | None:
    if not found["num_events"]:
        try:  # an error without a stream: the whole body is one object
            return _error(json.loads(text)) or "no event in the stream"
        except (ValueError, RecursionError):
            return "no event in the stream"
    if not found["done"]:
        return "the stream was cut: no [DONE]"
    if not found["content_chunks"] and not found["completion_tokens"]:
        return "no token in the stream"
    return None
