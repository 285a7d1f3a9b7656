"""Streams of chat servers as they are pasted, cut and mixed: what a careful reader takes from them."""

import json

import pytest

from labkit.analyze import sse
from labkit.analyze.kinds import KINDS, UnreadableInput


def events(*chunks):
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def chat(index=0, finish=None, **delta):
    return {"id": "c1", "choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


@pytest.mark.parametrize(("pasted", "text"), [
    (events(chat(content="a"), chat(content="b")).replace("\n\n", "\n"), "ab"),
    ("    " + events(chat(content="a")).replace("\n", "\n    "), "a"),
    ("> " + events(chat(content="a")).replace("\n", "\n> "), "a"),
    ("".join(f"2026-11-29T10:00:0{i}.5Z data: {json.dumps(chat(content='a'))}\n\n" for i in range(2))
     + "2026-11-29T10:00:03Z data: [DONE]\n\n", "aa"),
    ("".join(f"{part.encode()!r}\n" for part in events(chat(content="a\n'é")).split("\n")), "a\n'é"),
    ("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + events(chat(content="a")), "a"),
])
def test_a_pasted_stream_is_read(pasted, text):
    seen = sse.read_stream(pasted)
    assert seen["success"] and seen["text"] == text


def test_a_tool_call_is_an_answer():
    seen = sse.read_stream(events(chat(role="assistant", content=None),
                                  chat(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": ""}}]),
                                  chat(tool_calls=[{"index": 0, "function": {"arguments": "{}"}}]),
                                  chat(finish="tool_calls")))
    assert seen["success"] and (seen["content_chunks"], seen["tool_call_chunks"], seen["text"]) == (2, 2, "")


def test_choices_are_kept_apart_and_typed_parts_read():
    seen = sse.read_stream(events(chat(content="a"), chat(index=1, content="x"), chat(content="b", finish="stop"),
                                  chat(index=1, content="y", finish="length")))
    assert (seen["text"], seen["texts"], seen["finish_reason"]) == ("ab", ["ab", "xy"], "stop")
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "h"}]}, {"type": "text", "text": "t"}]
    seen = sse.read_stream(events(chat(content=parts)))
    assert (seen["text"], seen["reasoning_text"], seen["content_chunks"]) == ("t", "h", 1)


@pytest.mark.parametrize(("text", "error"), [
    (events(chat(content="a")) + 'error: {"code": 500, "message": "slot lost"}\n\n', "slot lost"),
    (events(chat(content="a"), chat(finish="abort")), "abort"),
    ('HTTP/1.1 404 Not Found\r\ncontent-length: 22\r\n\r\n{"detail":"Not Found"}', "Not Found"),
    ("HTTP/1.1 503 Service Unavailable\r\n\r\nno upstream", "HTTP 503 Service Unavailable"),
    (json.dumps({"object": "chat.completion", "choices": [{"message": {"content": "a"}}]}), "in one piece"),
])
def test_failures_outside_the_usual_event(text, error):
    seen = sse.read_stream(text)
    assert not seen["success"] and error in seen["error"]


@pytest.mark.parametrize(("text", "reason"), [
    (events(chat(content="a")) + events(chat(content="b") | {"id": "c2"}), "2 streams"),
    ('event: message_start\ndata: {"type": "message_start"}\n\n', "message_start"),
    (events({"text": "ab", "meta_info": {"completion_tokens": 2}}), "meta_info"),
    ('data: {"content": "a", "stop": false}\n\n', "own form"),
])
def test_several_streams_and_other_servers_forms_are_refused(tmp_path, text, reason):
    path = tmp_path / "s.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UnreadableInput, match=reason):
        KINDS["sse_stream"]([path])


def test_a_done_after_every_choice_is_one_stream():
    assert sse.read_stream(events(chat(content="a")) + events(chat(index=1, content="b")))["num_streams"] == 1
