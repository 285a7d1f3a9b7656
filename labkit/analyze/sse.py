"""A streamed answer of an OpenAI-style server: events, tokens, and whether the request succeeded.

HTTP 200 says that the stream began. Success is decided here: an error event, a stream that stops without `[DONE]` and
an answer without a token are failures, and none of them may enter an average.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from typing import Any

from labkit.analyze.kinds import clean_text

DONE = "[DONE]"
_STOPPED = ("error", "abort", "cancelled")
"""Reasons to finish that are no answer's end."""
_FIELD = re.compile(
    r"^[ \t>]*(?:\[?\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?\]?[ \t]+)?(?=(?:data|event|error):)")
_QUOTED = re.compile(r"""\s*b?(['"])(?:data|event|error|):.*\1\s*""")


def iter_events(text: str) -> Iterator[tuple[str, str]]:
    r"""(event name, data) of each event; lines may end in LF, CRLF or CR, comments (pings) are dropped.

    >>> list(iter_events(": ping\r\ndata: a\r\ndata: b\r\n\r\nevent: error\ndata:c\n"))
    [('message', 'a\nb'), ('error', 'c')]
    """
    name, data = "message", []
    for line in [*_lines(text), ""]:
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
        elif field == "error" and value.startswith("{"):  # llama.cpp's server puts it in a field of its own
            name = "error"
            data.append(value)


def _lines(text: str) -> list[str]:
    """Lines; of a paste where every one is indented, quoted, stamped or a Python string, without that."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if any(line.startswith(("data:", "event:", "error:")) for line in lines):
        return lines
    plain: list[str] = []
    for line in lines:
        if _QUOTED.fullmatch(line):
            try:
                value = ast.literal_eval(line.strip())
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                continue
            plain += (value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)).split("\n")
        else:
            plain.append(_FIELD.sub("", line) if line.strip(" \t>") else "")
    return plain


def _parts(data: str) -> list[str]:
    """One event's data; its lines apart where a paste lost the empty lines between events."""
    lines = [line for line in data.split("\n") if line.strip()]
    if len(lines) < 2 or _decoded(data) is not None:
        return [data]
    return lines if all(line.strip() == DONE or isinstance(_decoded(line), dict) for line in lines) else [data]


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def read_stream(text: str) -> dict[str, Any]:
    """What a stream brought.

    Args:
        text: the body of one streamed answer, of a completion or a chat.

    Returns: success, error (None on success), done, content_chunks (those with text, reasoning, a part of a tool call
        or token ids in them: the first ends TTFT; the role that opens a chat is none), reasoning_chunks and
        tool_call_chunks (those of them with reasoning, with a tool call), text, reasoning_text and finish_reason (of
        the first choice), texts (of every choice), num_token_ids (0 where the server sends none), prompt_tokens and
        completion_tokens as the server counted them (None if it did not say), num_events, num_streams (1, or how many
        answers the text holds one after the other), foreign (None, or the form of a stream that is neither).
    """
    found: dict[str, Any] = {
        "success": False, "error": None, "done": False, "content_chunks": 0, "reasoning_chunks": 0,
        "tool_call_chunks": 0, "text": "", "reasoning_text": "", "texts": {}, "num_token_ids": 0,
        "prompt_tokens": None, "completion_tokens": None, "finish_reason": None, "num_events": 0, "num_streams": 1,
        "foreign": None}
    ids: set[str] = set()
    for name, data in ((name, part) for name, whole in iter_events(text) for part in _parts(whole)):
        found["num_events"] += 1
        if data.strip() == DONE:
            found["done"] = True
            continue
        chunk = _decoded(data)
        if name == "error" or _error(chunk) is not None:
            found["error"] = found["error"] or _error(chunk) or data[:300]
        elif not isinstance(chunk, dict):
            found["error"] = found["error"] or f"an event is no JSON object: {data[:80]!r}"
        else:
            _count_stream(chunk, found, ids)
            _take(chunk, found)
    found["texts"] = [found["texts"][index] for index in sorted(found["texts"])]
    found["text"] = found["texts"][0] if found["texts"] else ""
    found["error"] = found["error"] or _missing(found, text)
    for name in ("error", "text", "reasoning_text", "finish_reason"):
        found[name] = None if found[name] is None else clean_text(found[name])
    return {**found, "texts": [clean_text(part) for part in found["texts"]], "success": found["error"] is None}


def _count_stream(chunk: dict[str, Any], found: dict[str, Any], ids: set[str]) -> None:
    """A chunk of another answer, behind a [DONE], begins a stream; old servers end every choice of one with [DONE]."""
    if found["done"] and chunk.get("choices") and str(chunk.get("id")) not in ids:
        found["num_streams"] += 1
        ids.clear()
        found["done"] = False
    ids.add(str(chunk.get("id")))


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
    if not isinstance(choices, list):
        found["foreign"] = found["foreign"] or _form(chunk)
    for choice in choices if isinstance(choices, list) else []:
        if isinstance(choice, dict):
            _take_choice(choice, found)
    usage = chunk.get("usage")
    if isinstance(usage, dict):
        for name in ("prompt_tokens", "completion_tokens"):
            if isinstance(usage.get(name), int) and not isinstance(usage[name], bool):
                found[name] = usage[name]


def _take_choice(choice: dict[str, Any], found: dict[str, Any]) -> None:
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        delta = {}
    content, thought = _written(delta.get("content") or choice.get("text") or delta.get("refusal"))
    reasoning = delta.get("reasoning_content") or delta.get("reasoning")
    reasoning = reasoning if isinstance(reasoning, str) else thought
    token_ids = choice.get("token_ids")
    num_ids = len(token_ids) if isinstance(token_ids, list) else 0
    is_call = bool(delta.get("tool_calls") or delta.get("function_call"))
    found["content_chunks"] += bool(content or reasoning or num_ids or is_call)
    found["reasoning_chunks"] += bool(reasoning)
    found["tool_call_chunks"] += is_call
    found["num_token_ids"] += num_ids
    index = choice.get("index")
    index = index if isinstance(index, int) else 0
    texts = found["texts"]
    texts[index] = texts.get(index, "") + content
    if index == min(texts):
        found["reasoning_text"] += reasoning
        found["finish_reason"] = choice.get("finish_reason") or found["finish_reason"]


def _written(content: Any) -> tuple[str, str]:
    """(text, reasoning) of a delta's content: a text, or a list of typed parts."""
    if isinstance(content, str):
        return content, ""
    text, thought = "", ""
    for part in content if isinstance(content, list) else []:
        if isinstance(part, dict):
            text += part["text"] if isinstance(part.get("text"), str) else ""
            inner = part.get("thinking")
            thought += inner if isinstance(inner, str) else _written(inner)[0]
    return text, thought


def _form(chunk: dict[str, Any]) -> str | None:
    """Whose stream this is, if it is neither a completion's nor a chat's."""
    kind = chunk.get("type")
    if isinstance(kind, str) and re.match(r"response\.|message_|content_block_", kind):
        return f"events of type {kind[:40]}"
    for name in ("meta_info", "generated_text", "token", "stop"):
        if name in chunk:
            return f"a server's own form, with {name!r}"
    return None


def _missing(found: dict[str, Any], text: str) -> str | None:
    if not found["num_events"]:
        return _not_streamed(text)
    if found["foreign"] and not found["texts"]:
        return f"no completion or chat in the stream: {found['foreign']}"
    if not found["done"]:
        return "the stream was cut: no [DONE]"
    if not found["content_chunks"] and not found["completion_tokens"]:
        return "no token in the stream"
    if str(found["finish_reason"]).lower() in _STOPPED:
        return f"the server gave up: finish_reason {found['finish_reason']}"
    return None


def _not_streamed(text: str) -> str:
    """What a body without an event says: an error as one object, behind HTTP's own lines or not."""
    body = text.lstrip("\ufeff \t\r\n")
    status = re.match(r"HTTP/[\d.]+ (\d{3}[^\r\n]*)", body)
    start = body.find("{")
    if start >= 0:
        try:
            value, _ = json.JSONDecoder().raw_decode(body[start:])
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            told = next((part for part in (_error(value), value.get("detail"), value.get("message"))
                         if isinstance(part, str) and part), None)
            if told:
                return told[:300]
            if "choices" in value:
                return "no event in the stream: the answer came in one piece"
    return "no event in the stream" + (f": HTTP {status[1].strip()[:80]}" if status and status[1][0] in "45" else "")
