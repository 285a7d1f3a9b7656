"""One timeline written in every form that traces come in must give one answer, with msgspec and without."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys

import pytest

from labkit.analyze.kinds import KINDS, UnreadableInput
from labkit.analyze.trace import analyze_trace
from labkit.analyze.trace_decode import msgspec

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
# (name, stream, start us, duration us): comm 10.25..50.75; compute 0..25.375, 40..60.25
WORK = [(NCCL, 20, 10.25, 40.5), ("gemm_nt", 7, 0.0, 25.375), ("add<ncclThing>", 7, 40.0, 20.25)]
ANSWER = {
    "n_comm": 1,
    "n_compute": 2,
    "comm_us": 40.5,
    "compute_us": 45.625,
    "overlap_us": 15.125 + 10.75,
    "exposed_comm_us": 40.5 - 25.875,
    "busy_us": 60.25,
}


def kernel(name, stream, ts, dur, **more):
    args = {"device": 0, "stream": stream, "correlation": int(ts) + 1}
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": stream,
        "ts": ts,
        "dur": dur,
        "args": args,
    } | more


def python_function(name, ts=1.0):
    return {"ph": "X", "cat": "python_function", "name": name, "pid": 9, "tid": 9, "ts": ts, "dur": 1.0, "args": {}}


EVENTS = [kernel(*row) for row in WORK]
INFO = {"backend": "nccl", "rank": 3, "world_size": 8}


def document(events=EVENTS, **more):
    return {"schemaVersion": 1, "distributedInfo": INFO, "traceEvents": events} | more


def text(events=EVENTS, **layout):
    return json.dumps(document(events), **layout)


def broken(name_text):
    """A document whose middle event is a python_function with `name_text` put raw between the quotes."""
    return text([EVENTS[0], python_function("HOLE"), *EVENTS[1:]], indent=1).replace("HOLE", name_text)


def pairs():
    """The same work as B and E events, ends without names, threads interleaved."""
    events = []
    for event in EVENTS:
        begin = {key: value for key, value in event.items() if key != "dur"} | {"ph": "B"}
        end = {"ph": "E", "pid": event["pid"], "tid": event["tid"], "ts": event["ts"] + event["dur"]}
        events += [begin, end]
    return sorted(events, key=lambda event: event["ts"])


def old_format():
    """Before torch 1.13: capital categories, the stream in `tid` as text, no distributedInfo."""
    events = []
    for event in EVENTS:
        args = {key: value for key, value in event["args"].items() if key != "stream"}
        events.append(event | {"cat": "Kernel", "tid": f"stream {event['tid']}", "args": args})
    return json.dumps({"traceEvents": events})


NO_ARGS = [event | {"args": None} for event in EVENTS]
SAME_ANSWER = {
    "indented": text(indent=2),
    "compact": text(separators=(",", ":")),
    "bare list": json.dumps(EVENTS),
    "byte order mark": "\ufeff" + text(),
    "utf-16": text().encode("utf-16"),
    "blank lines first": "\n\n  " + text(),
    "gzip": gzip.compress(text().encode()),
    "gzip in two members": gzip.compress(text().encode()[:200]) + gzip.compress(text().encode()[200:]),
    "gzip with zero padding": gzip.compress(text().encode()) + b"\0" * 512,
    "info after the events": json.dumps({"traceEvents": EVENTS, "distributedInfo": INFO}),
    "begin and end": json.dumps(document(pairs())),
    "no ph": text([{key: value for key, value in event.items() if key != "ph"} for event in EVENTS]),
    "text numbers": text([event | {"ts": str(event["ts"]), "dur": str(event["dur"])} for event in EVENTS]),
    "epoch in text": text([event | {"ts": f"{1712195495506000 + event['ts']:.3f}"} for event in EVENTS]),
    "far from zero": text([event | {"ts": event["ts"] + 5_123_527_724_000} for event in EVENTS]),
    "before zero": text([event | {"ts": event["ts"] - 1000} for event in EVENTS]),
    "old format": old_format(),
    "no args": text(NO_ARGS),
    "args is a list": text([event | {"args": [1, 2]} for event in EVENTS]),
    "device as text": text([event | {"args": event["args"] | {"device": "0", "correlation": "7"}} for event in EVENTS]),
    "nan and infinity": text(
        [event | {"args": event["args"] | {"a": float("nan"), "b": float("inf")}} for event in EVENTS]
    ),
    "list of objects in args": text(
        [event | {"args": event["args"] | {"l": [{"a": 1}, {"b": 2}]}} for event in EVENTS]
    ),
    "category is a list of words": text([event | {"cat": "kernel,gpu"} for event in EVENTS]),
    "category is no text": text(
        [*EVENTS, python_function("f") | {"cat": ["kernel"]}, python_function("f") | {"cat": 7}]
    ),
    "other phases": text(
        [{"ph": p, "name": "x", "ts": 1, "pid": 0, "tid": 7, "id": 1, "cat": "kernel"} for p in "sftbeniIC"] + EVENTS
    ),
    "shuffled": text(random.Random(5).sample(EVENTS, len(EVENTS))),
    "annotation lanes": text(
        [
            *EVENTS,
            *(
                e | {"cat": "gpu_user_annotation", "name": n, "dur": 90.0}
                for e in EVENTS
                for n in ("nccl:all_reduce", "x")
            ),
        ]
    ),
    "sync markers": text(
        [
            *EVENTS,
            *(kernel(n, 7, 0.0, 99.0, cat=c) for n in ("Stream Sync", "Event Sync") for c in ("cuda_sync", "kernel")),
        ]
    ),
    "overhead and python": text([*EVENTS, kernel("Buffer Flush", 7, 0.0, 99.0, cat="overhead"), python_function("f")]),
    "copies and memsets": text(
        [*EVENTS, kernel("Memcpy DtoD", 7, 70.0, 9.0, cat="gpu_memcpy"), kernel("m", 7, 1.0, 1.0, cat="Memset")]
    ),
    "control characters": broken("a\tb\x01c"),
    "windows path": broken(r"C:\Users\me\q"),
    "bytes that are no utf-8": broken("HERE").encode().replace(b"HERE", b"\xff\xfe\x80"),
    "emoji and surrogates": text([*EVENTS, python_function("\ud83d\ude00"), python_function("\udc80")]),
}


def write(tmp_path, content, name="trace.json"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    return path


@pytest.mark.parametrize("form", SAME_ANSWER)
def test_same_answer_in_every_form(tmp_path, form):
    path = write(tmp_path, SAME_ANSWER[form])
    answer = analyze_trace(path)
    assert {key: answer[key] for key in ANSWER} == ANSWER
    assert answer["complete"] is True and answer["skipped_events"] == 0
    assert answer == analyze_trace(path, use_msgspec=False)
    json.dumps(answer, allow_nan=False)


SKIPS_ONE = {
    "raw quotes and a newline": broken('lib("x", "y")\n(1): <module>'),
    "raw quote before the end": broken('say "'),
    "trailing backslash": broken("C:\\dir\\"),
    "missing quote": text([EVENTS[0], python_function("HOLE"), *EVENTS[1:]]).replace('"HOLE"', 'HOLE"'),
    "number cut": text([EVENTS[0], python_function("f", ts=1.5), *EVENTS[1:]]).replace('"ts": 1.5', '"ts": '),
    "last event broken": text([*EVENTS, python_function("HOLE")], indent=1).replace("HOLE", 'a "b" c'),
    "no object": text([EVENTS[0], 17, *EVENTS[1:]]),
}


@pytest.mark.parametrize("damage", SKIPS_ONE)
def test_one_damaged_event_costs_one_event(tmp_path, damage):
    path = write(tmp_path, SKIPS_ONE[damage])
    answer = analyze_trace(path)
    assert {key: answer[key] for key in ANSWER} == ANSWER
    assert (answer["complete"], answer["skipped_events"], answer["usable"]) == (False, 1, "partial")
    assert answer["rank"] == 3 and "event at byte" in answer["damage"][0]
    assert answer == analyze_trace(path, use_msgspec=False)


def test_byte_offset_of_damage_points_at_the_event(tmp_path):
    content = broken('é "x"').encode()
    answer = analyze_trace(write(tmp_path, content))
    offset = int(answer["damage"][0].split("byte ")[1].split()[0])
    assert content[offset:].startswith(b'{\n   "ph": "X",\n   "cat": "python_function"')


def test_a_damaged_kernel_is_said_to_make_times_lower_bounds(tmp_path):
    content = text([*EVENTS, kernel("HOLE", 7, 70.0, 1.0)]).replace("HOLE", 'a"b')
    assert "device work was skipped" in analyze_trace(write(tmp_path, content))["warnings"]


@pytest.mark.parametrize("compressed", [False, True])
def test_every_cut_gives_a_part_or_one_clear_line(tmp_path, compressed):
    whole = text(indent=1).encode()
    content = gzip.compress(whole) if compressed else whole
    counts = set()
    for cut in range(0, len(content) - 3, 7):
        path = write(tmp_path, content[:cut])
        try:
            answer = analyze_trace(path)
        except UnreadableInput as err:
            assert str(err).startswith(str(path)) and "\n" not in str(err)
            continue
        assert answer["complete"] is False and answer["usable"] == "partial" and answer["damage"]
        assert answer["rank"] == 3
        counts.add(answer["n_comm"] + answer["n_compute"])
    assert counts >= ({1, 2, 3} if not compressed else {3})


def test_damage_at_every_place_of_pieces_is_the_same_damage(tmp_path, monkeypatch):
    """Where the file is cut into pieces for decoding must not matter."""
    events = [EVENTS[i % 3] | {"ts": 100.0 * i} for i in range(60)]
    content = text([*events[:30], python_function("HOLE"), *events[30:]]).replace("HOLE", 'a "b" }, {"ph": "c')
    path = write(tmp_path, content)
    reference = analyze_trace(path)
    assert reference["skipped_events"] >= 1 and reference["n_comm"] == 20 and reference["n_compute"] == 40
    for size in (1, 50, 200, 333, 1000, 4096):
        monkeypatch.setattr("labkit.analyze.trace_read.PIECE_BYTES", size)
        monkeypatch.setattr("labkit.analyze.trace_read.READ_BYTES", max(size // 2, 1))
        assert analyze_trace(path) == reference


NOT_A_TRACE = {
    "empty": b"",
    "blank": b"  \n\t ",
    "web page": b"<!DOCTYPE html><html><body>502 Bad Gateway</body></html>",
    "other object": b'{"name": "x", "values": [1, 2]}',
    "number": b"17",
    "list of numbers": b"[1, 2, 3]",
    "list of lists": b"[[1], [2]]",
    "binary": bytes(range(256)),
    "gzip of nothing": gzip.compress(b""),
    "gzip of a page": gzip.compress(b"<html></html>"),
    "gzip magic only": b"\x1f\x8b",
    "zip": b"PK\x03\x04" + b"\0" * 60,
    "zstd": b"\x28\xb5\x2f\xfd" + b"\0" * 60,
    "sqlite": b"SQLite format 3\0" + b"\0" * 60,
    "null events": b'{"traceEvents": null}',
    "cut in the header": b'{"schemaVersion": 1, "distributedInfo": {"ran',
    "lfs pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
}


@pytest.mark.parametrize("what", NOT_A_TRACE)
def test_what_is_no_trace_is_refused_in_one_line(tmp_path, what):
    path = write(tmp_path, NOT_A_TRACE[what])
    with pytest.raises(UnreadableInput) as caught:
        analyze_trace(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def test_wrong_arguments_are_refused(tmp_path):
    with pytest.raises(UnreadableInput, match="folder"):
        KINDS["torch_trace"]([tmp_path])
    with pytest.raises(UnreadableInput, match="one file, got 2"):
        KINDS["torch_trace"]([tmp_path / "a", tmp_path / "b"])
    with pytest.raises(UnreadableInput, match="no such file"):
        KINDS["torch_trace"]([tmp_path / "missing.json"])


@pytest.mark.parametrize(
    "content", ["[]", '{"traceEvents": []}', '{"traceEvents": [ ], "distributedInfo": {"rank": 1}}']
)
def test_a_trace_without_events_is_a_trace(tmp_path, content):
    answer = analyze_trace(write(tmp_path, content))
    assert (answer["n_comm"], answer["comm_us"], answer["overlap_fraction"], answer["complete"]) == (0, 0.0, None, True)


def test_a_list_that_is_never_closed_is_read_and_called_incomplete(tmp_path):
    answer = analyze_trace(write(tmp_path, json.dumps(EVENTS)[:-1] + ","))
    assert answer["n_comm"] == 1 and answer["complete"] is False
    assert answer["skipped_events"] == 0 and "no closing bracket" in answer["damage"][0]


def test_msgspec_is_really_used_here():
    assert msgspec is not None  # else the comparisons above compare one path with itself


def test_a_machine_without_msgspec_or_pandas_gets_the_same_answer(tmp_path):
    path = write(tmp_path, SAME_ANSWER["begin and end"])
    program = (
        "import sys, json; sys.modules['msgspec'] = sys.modules['pandas'] = None\n"
        "from pathlib import Path; from labkit.analyze.trace import analyze_trace\n"
        "print(json.dumps(analyze_trace(Path(sys.argv[1]))))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == analyze_trace(path)
