"""The load client against a server whose times are known. Speed is not asserted here: see benchmarks/load_client.py."""

import json
import random
import socket
import statistics
import subprocess
import sys
import threading
import time

import pytest

from labkit.analyze.load_results import read_result, split_body, spread, summarize
from labkit.launch import load_client, stamp_loop
from labkit.launch.load_client import LoadClientError, send_load
from labkit.launch.load_plan import Request, arrival_times, at_times, random_prompt


@pytest.fixture(scope="module")
def port():
    """A mock server with the first token after 30 ms, the next ones every 10 ms."""
    argv = [sys.executable, "-m", "labkit.launch.mock_server", "--ttft-ms", "30", "--itl-ms", "10"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        yield json.loads(server.stdout.readline())["port"]
        server.terminate()


def plan(count, tokens=4):
    return [Request(prompt_ids=random_prompt(16, seed=index), output_tokens=tokens, label=f"r{index}")
            for index in range(count)]


def send(requests, port, **options):
    load = send_load(requests, port=port, **{"host": "127.0.0.1", "model": "mock", "max_lag_p99_s": 9.0, **options})
    return load, [read_result(a.pieces, index=a.index, label=requests[a.index].label, sent_s=a.sent_s,
                              started_s=load.started_s, planned_s=a.planned_s, error=a.error,
                              output_tokens=requests[a.index].output_tokens) for a in load.answers]


def test_closed_loop(port):
    load, results = send(plan(12), port, concurrency=3)
    assert [result.success for result in results] == [True] * 12
    assert {(r.prompt_tokens, r.output_tokens, len(r.gaps_s)) for r in results} == {(16, 4, 3)}
    assert all(result.one_token_a_chunk for result in results)
    for result in results:
        assert result.ttft_s >= 0.03 and result.e2el_s >= result.ttft_s + 0.02, "never earlier than the server sent"
        assert result.tpot_s == pytest.approx(sum(result.gaps_s) / 3)
    starts = sorted((answer.sent_s, 1) for answer in load.answers)
    ends = sorted((answer.ended_s, -1) for answer in load.answers)
    running = peak = 0
    for _, step in sorted(starts + ends):
        running += step
        peak = max(peak, running)
    assert peak == 3, "as many in flight as asked for, never more"


def test_every_stamp_is_after_the_server_sent_the_chunk(port):
    load, _ = send(plan(8, tokens=6), port, concurrency=8)
    errors = []
    for answer in load.answers:
        _, body, ends, times, whole = split_body(answer.pieces)
        assert whole
        for event, end in zip(body.split(b"\n\n"), ends):
            if b"sent_s" in event:
                errors.append(times[ends.index(end)] - json.loads(event.removeprefix(b"data: "))["sent_s"])
    assert len(errors) == 48 and min(errors) > 0 and statistics.median(errors) < 0.5


def test_open_loop_keeps_its_times(port):
    times = arrival_times(10, rate_per_s=100, seed=3)
    load, results = send(at_times(plan(10), times), port)
    for answer, at_s, result in zip(load.answers, times, results):
        assert answer.planned_s == pytest.approx(load.started_s + at_s) and result.queued_s >= 0 and result.success


@pytest.mark.parametrize(("model", "error"), [
    ("mock-error", "not enough KV cache"), ("mock-cut", "cut"), ("mock-short", "3 output tokens, asked for 4"),
    ("mock-500", "HTTP 500: engine died"), ("mock-html", "HTTP 502"),
])
def test_a_failed_request_has_no_times(port, model, error):
    load, results = send(plan(3), port, concurrency=2, model=model)
    assert all(not result.success and error in result.error and result.ttft_s is None for result in results)
    figures = summarize(results, wall_s=load.ended_s - load.started_s, lag_p99_s=load.lag_p99_s)
    assert figures["num_failed"] == 3 and sum(figures["failures"].values()) == 3
    assert figures["ttft_s"]["n"] == 0 and figures["ttft_s"]["p50"] is None and figures["requests_per_s"] == 0


def test_nobody_there():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        _, results = send(plan(2), taken.getsockname()[1], concurrency=1)
    assert all("Refused" in result.error or "refused" in result.error for result in results)


def test_a_server_that_never_answers_ends_at_the_deadline():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        _, results = send(plan(2), silent.getsockname()[1], concurrency=2, timeout_s=0.3)
    assert all(result.error == "no end within 0.3 s" for result in results)


def test_stop(port):
    asked = []

    def should_stop():
        asked.append(time.perf_counter())
        return asked[-1] > asked[0] + 0.2

    load, results = send(plan(50, tokens=40), port, concurrency=2, should_stop=should_stop)
    assert len(load.answers) < 10 and results[-1].error == "stopped"


def test_a_name_with_several_addresses(port):
    """`localhost` may be ::1 first, where nobody listens."""
    _, results = send(plan(2), port, concurrency=2, host="localhost")
    assert all(result.success for result in results)


def test_a_host_without_address_is_one_line():
    with pytest.raises(LoadClientError, match=r"host='no\.such\.host\.invalid': "):
        send_load(plan(1), host="no.such.host.invalid", port=1, model="m", concurrency=1)


def test_a_server_that_closes_before_the_request_is_a_failure():
    """Connections of a closed loop are made first; one that is gone by then must not vanish from the count."""
    answers = [stamp_loop.Answer(index=0, planned_s=None)]
    with socket.create_server(("127.0.0.1", 0)) as rude:
        loop = stamp_loop.StampLoop([b"x"], answers, host="127.0.0.1", port=rude.getsockname()[1], timeout_s=5.0,
                                    should_stop=lambda: False)
        loop._open(0)
        rude.accept()[0].close()
        for _ in range(100):
            loop._poll(0.05, hold=True)
        loop.close()
    assert answers[0].error == "ConnectionResetError: closed before the request was sent" and not answers[0].sent_s


def test_a_server_that_takes_no_request_is_a_failure():
    with socket.create_server(("127.0.0.1", 0)) as rude:
        closer = threading.Thread(target=lambda: [rude.accept()[0].close() for _ in range(3)])
        closer.start()
        load, results = send(plan(3), rude.getsockname()[1], concurrency=3, timeout_s=5.0)
        closer.join()
    assert len(load.answers) == 3 and all(not result.success and result.error for result in results)


def test_a_request_larger_than_the_system_takes_at_once(port):
    big = [Request(prompt_ids=random_prompt(1_000_000, seed=1), output_tokens=2)]
    _, (result,) = send(big, port, concurrency=1)
    assert result.success and result.prompt_tokens == 1_000_000


def test_the_kernel_stamps_what_this_process_reads_late(port):
    """The loop is held up for 0.4 s while tokens of a 30 ms server arrive: the stamps are those of their arrival."""
    held, answers = [], []

    def hold_up():
        if not held and answers[0].sent_s:
            held.append(time.sleep(0.4))
        return False

    load, (result,) = send(plan(1, tokens=2), port, concurrency=1, should_stop=hold_up, watch=answers.extend)
    assert held
    if load.stamped_by != "kernel":
        pytest.skip("this system does not stamp")
    assert load.answers[0].ended_s - load.answers[0].sent_s > 0.3 > result.e2el_s


def test_without_the_kernels_stamps_the_client_stamps(port, monkeypatch):
    monkeypatch.setattr(stamp_loop, "_TIMESTAMPNS", None)
    load, results = send(plan(4), port, concurrency=2)
    assert load.stamped_by == "client" and all(r.success and r.ttft_s >= 0.03 for r in results)


def test_a_clock_that_was_set_gives_no_result(port, monkeypatch):
    offsets = iter([stamp_loop.clock_offset_ns(), 0])
    monkeypatch.setattr(stamp_loop, "clock_offset_ns", lambda: next(offsets))
    if stamp_loop._TIMESTAMPNS is None:
        pytest.skip("this system does not stamp")
    with pytest.raises(LoadClientError, match="clock was set"):
        send(plan(1), port, concurrency=1)


def test_ctrl_c_ends_the_load(port):
    code = ("import os, signal, sys, threading\n"
            "from labkit.launch.load_client import send_load\n"
            "from labkit.launch.load_plan import Request\n"
            "threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
            "try: send_load([Request(prompt_ids=(1,), output_tokens=100000)], host='127.0.0.1', port=int(sys.argv[1]), "
            "model='mock', concurrency=1)\n"
            "except KeyboardInterrupt: print([t.name for t in threading.enumerate()])\n")
    done = subprocess.run([sys.executable, "-c", code, str(port)], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "['MainThread']", done.stderr


def test_a_late_loop_gives_no_result(port):
    with pytest.raises(LoadClientError, match=r"woke .* ms late"):
        send(plan(2), port, concurrency=1, max_lag_p99_s=-1.0)


@pytest.mark.parametrize(("requests", "options", "message"), [
    ([], {"concurrency": 1}, "plan: expected at least one"),
    (plan(1), {}, "concurrency=None: expected a number in a closed loop"),
    (plan(1), {"concurrency": 0}, "concurrency=0: expected at least 1"),
    (at_times(plan(1), [0.0]), {"concurrency": 1}, "none in an open one"),
    (plan(1) + at_times(plan(1), [0.0]), {"concurrency": 1}, "for every request or for none"),
])
def test_plans_that_cannot_be_run(requests, options, message):
    with pytest.raises(ValueError, match=message):
        send_load(requests, host="127.0.0.1", port=1, model="m", **options)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: Request(prompt_ids=(), output_tokens=1), "prompt_ids"),
    (lambda: Request(prompt_ids=(1,), output_tokens=0), "output_tokens=0"),
    (lambda: Request(prompt_ids=(1,), output_tokens=1, at_s=-1), "at_s=-1"),
    (lambda: random_prompt(0, seed=1), "num_tokens=0"), (lambda: random_prompt(1, seed=1, vocab_size=9), "first_id"),
    (lambda: arrival_times(1, rate_per_s=0), "rate_per_s=0"),
    (lambda: arrival_times(1, rate_per_s=1, burstiness=float("nan")), "burstiness=nan"),
    (lambda: at_times(plan(2), [1.0]), "times: 1"),
])
def test_bad_requests_name_the_argument(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_burstiness_is_the_shape_of_the_gaps():
    """Gamma gaps of shape k have a variance of mean^2 / k; 4,000 gaps give it to a few percent (seeded)."""
    for shape in (0.5, 1.0, 4.0):
        times = arrival_times(4000, rate_per_s=10, burstiness=shape, seed=1)
        gaps = [b - a for a, b in zip([0.0, *times], times)]
        assert statistics.mean(gaps) == pytest.approx(0.1, rel=0.06)
        assert statistics.variance(gaps) == pytest.approx(0.01 / shape, rel=0.15)


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def framed(*events):
    return HEAD + b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events) + b"0\r\n\r\n"


def test_any_cut_of_the_bytes_gives_the_same_body_and_rising_times():
    """However the network cuts the stream, body and whole stay, and a chunk is stamped when its last byte came."""
    events = [b'data: {"choices": [{"text": "a%d"}]}\n\n' % i for i in range(5)] + [b"data: [DONE]\n\n"]
    raw, rng = framed(*events), random.Random(5)
    for _ in range(200):
        cuts = sorted(rng.sample(range(1, len(raw)), rng.randrange(1, 12)))
        pieces = [(float(i), raw[a:b]) for i, (a, b) in enumerate(zip([0, *cuts], [*cuts, len(raw)]))]
        status, body, ends, times, whole = split_body(pieces)
        assert (status, body, whole) == (200, b"".join(events), True) and len(ends) == 6
        assert times == sorted(times)
        for event_number, time_s in enumerate(times):
            last_byte = raw.index(events[event_number]) + len(events[event_number])
            assert sum(len(data) for when, data in pieces if when <= time_s) >= last_byte
            assert sum(len(data) for when, data in pieces if when < time_s) < last_byte
        seen = read_result(pieces, index=0, label="", sent_s=-1.0, started_s=-2.0, planned_s=None, output_tokens=5)
        assert seen.success and seen.ttft_s == times[0] + 1 and seen.e2el_s == times[4] + 1


@pytest.mark.parametrize(("raw", "error"), [
    (framed(b'data: {"choices": [{"text": "a"}]}\n\n', b"data: [DONE]\n\n")[:-5], "framing has no end"),
    (HEAD + b"zz\r\n", "no event"), (b"", "no HTTP answer"), (b"\x16\x03\x01 TLS", "no HTTP answer"),
    (b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}", "HTTP 404"),
])
def test_broken_answers(raw, error):
    seen = read_result([(0.0, raw)] if raw else [], index=0, label="", sent_s=0.0, started_s=0.0, planned_s=None,
                       output_tokens=1)
    assert not seen.success and error in seen.error


def test_two_tokens_in_a_chunk_are_told():
    events = [b'data: {"choices": [{"text": "ab"}]}\n\n', b'data: {"choices": [{"text": "c"}]}\n\n',
              b'data: {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 3}}\n\n', b"data: [DONE]\n\n"]
    parts = [HEAD, *(framed(event)[len(HEAD):-5] for event in events)]
    pieces = [(float(number), data) for number, data in enumerate(parts)]
    seen = read_result([*pieces, (9.0, b"0\r\n\r\n")], index=0, label="", sent_s=0.0, started_s=0.0, planned_s=None,
                       output_tokens=3)
    assert seen.success and not seen.one_token_a_chunk and seen.tpot_s == 0.5 and seen.gaps_s == (1.0,)
    assert summarize([seen], wall_s=2.0, lag_p99_s=0.0)["gaps_are_of"] == "chunks"


def test_nearest_rank():
    assert spread([float(v) for v in range(1, 101)]) == {
        "n": 100, "mean": 50.5, "p10": 10.0, "p50": 50.0, "p90": 90.0, "p99": 99.0}


def test_lag_is_the_99th_percentile():
    load = load_client.Load(answers=[], started_s=0, ended_s=1, loop_lag_s=[0.0] * 98 + [0.5, 0.9], cpu_s=0)
    assert load.lag_p99_s == 0.5
