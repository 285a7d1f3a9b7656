"""Requests held and released together, against a small server that holds its answers while it is paused."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from labkit.launch.load_plan import Request
from labkit.launch.observed_round import observe
from labkit.launch.release import HELD, send_together
from labkit.launch.supervise import LaunchError

TOKEN = b'data: {"choices": [{"index": 0, "text": "a", "token_ids": [7]}]}\n\n'
END = b'data: {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 1}}\n\ndata: [DONE]\n\n'


class Held:
    """Behaves like a server whose scheduler can be paused; with what it lacks told by `lacks`."""

    model = "lab"

    def __init__(self, tmp_path, lacks=()):
        self.lacks, self.log, self.seen = lacks, tmp_path / "log.txt", []
        self.go, self.finished, self.is_dead = threading.Event(), 0, False
        self.lines, self.num_lines = [], 0
        self.go.set()
        self.lock = threading.Lock()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args):
                pass

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.path.startswith(("/pause", "/resume")):
                    return self.control(self.path)
                with owner.lock:
                    owner.seen.append(("asked", time.perf_counter()))
                    delay = 0.15 * len(owner.seen) if "hurry" in owner.lacks else 0.0
                time.sleep(delay)
                if "headers" in owner.lacks:
                    owner.go.wait(10)
                with owner.lock:
                    owner.seen.append(("begun", time.perf_counter()))
                self.send_response(200)
                self.end_headers()
                self.wfile.flush()
                owner.go.wait(10)
                self.wfile.write(TOKEN + END)
                with owner.lock:
                    owner.finished += 1
                    owner.lines.append("marker\n" if json.loads(body)["prompt"] == [9] else "line\n")

            def control(self, path):
                name = "pause" if path.startswith("/pause") else "resume"
                with owner.lock:
                    owner.seen.append((path, time.perf_counter()))
                if name not in owner.lacks:
                    (owner.go.clear if name == "pause" else owner.go.set)()
                self.send_response(404 if name in owner.lacks else 200)
                self.end_headers()

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host, self.port = self.http.server_address[:2]
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def post(self, path):
        import http.client

        connection = http.client.HTTPConnection(self.host, self.port, timeout=10)
        connection.request("POST", path)
        return connection.getresponse().status

    def raise_if_dead(self):
        if self.is_dead:
            raise LaunchError("died: planted", log_path=self.log)

    def scrape(self):
        return f"{self.finished}"

    def log_text(self):
        """The log lags: it grows by one line a look."""
        self.num_lines = min(self.num_lines + 1, len(self.lines))
        return "".join(self.lines[: self.num_lines])


@pytest.fixture
def make(tmp_path):
    made = []

    def start(**options):
        made.append(Held(tmp_path, **options))
        return made[-1]

    yield start
    for server in made:
        server.go.set()
        server.http.shutdown()
        server.http.server_close()


PLAN = [Request(prompt_ids=(5, 6), output_tokens=1) for _ in range(6)]
LOOSE = {"timeout_s": 20, "max_lag_p99_s": 9.0}


def test_nothing_starts_before_the_release(make):
    server = make()
    seen = send_together(server, PLAN, concurrency=4, settle_s=0.1, **LOOSE)
    assert seen.how == HELD and len(seen.load.answers) == 6
    (paused,) = [t for name, t in server.seen if name == "/pause?mode=keep"]
    (resumed,) = [t for name, t in server.seen if name == "/resume"]
    asked = sorted(t for name, t in server.seen if name == "asked")
    assert paused < asked[0] and asked[3] + 0.05 < resumed < asked[4], "four are there, the fifth waits for an end"
    assert asked[3] < seen.released_s < resumed
    tokens = [t for a in seen.load.answers for t, data in a.pieces if b"data:" in data]
    assert min(tokens) > seen.released_s


def test_the_release_waits_for_the_last_answer_to_begin(make):
    server = make(lacks=("hurry",))
    send_together(server, PLAN[:3], concurrency=3, settle_s=0.0, **LOOSE)
    (resumed,) = [t for name, t in server.seen if name == "/resume"]
    begun = [t for name, t in server.seen if name == "begun"]
    assert len(begun) == 3 and max(begun) < resumed and max(begun) - min(begun) > 0.1


def test_a_server_without_the_endpoint_is_not_held(make):
    server = make(lacks=("pause",))
    seen = send_together(server, PLAN, concurrency=3, **LOOSE)
    assert seen.how == "sent at once: /pause answered 404" and len(seen.load.answers) == 6
    assert not [name for name, _ in server.seen if name == "/resume"]


def test_answers_that_begin_late_are_told(make):
    server = make(lacks=("headers",))
    seen = send_together(server, PLAN, concurrency=3, settle_s=0.0, header_timeout_s=0.3, **LOOSE)
    assert seen.how.startswith(HELD) and "before every answer had begun" in seen.how


def test_a_server_that_does_not_go_on_is_a_failure(make):
    server = make(lacks=("resume",))
    with pytest.raises(LaunchError, match="/resume answered 404"):
        send_together(server, PLAN, concurrency=3, settle_s=0.0, **LOOSE)


def test_the_wish_to_stop_ends_the_wait_and_still_resumes(make):
    server = make(lacks=("headers",))
    begun = time.perf_counter()
    seen = send_together(server, PLAN, concurrency=3, settle_s=0.0, should_stop=lambda: True, **LOOSE)
    assert time.perf_counter() - begun < 5 and {answer.error for answer in seen.load.answers} <= {"stopped"}
    assert [name for name, _ in server.seen if name == "/resume"]


def watch(server, plan, **changes):
    options = {"concurrency": 3, "held": True, "read_sample": lambda text: {"finished": int(text)},
               "num_finished": int, "marker": Request(prompt_ids=(9,), output_tokens=1), "period_s": 0.05,
               "find_marker": lambda text: text.find("marker"),
               "timeout_s": 20, "max_lag_p99_s": 9.0, **changes}
    return observe(server, plan, **options)


def test_a_load_is_seen_from_all_sides(make):
    server, heard = make(), []
    first = watch(server, PLAN, on_sample=heard.append)
    second = watch(server, PLAN[:2], held=False, concurrency=2)
    assert (first.before, first.after, second.before, second.after) == ("0", "6", "7", "9"), "markers are not counted"
    assert (first.log_text, second.log_text) == ("line\n" * 6, "line\n" * 2), "each its own piece of a log that lags"
    assert first.samples and heard and {"t_s", "finished"} <= first.samples[0].keys()
    assert second.release.how == "each as it came" and second.release.released_s == second.release.load.started_s


def test_a_page_that_never_counts_is_taken_in_the_end(make):
    seen = watch(make(), PLAN[:2], num_finished=lambda text: 0, settle_s=0.3, concurrency=2)
    assert seen.after == "2"
    seen = watch(make(), PLAN[:2], find_marker=lambda text: -1, settle_s=0.9, concurrency=2)
    assert seen.log_text.endswith("marker\n"), "a log without the marker's step is taken as it is"


def test_a_dead_server_and_the_wish_to_stop_are_failures(make):
    server = make()
    server.is_dead = True
    with pytest.raises(LaunchError, match="planted"):
        watch(server, PLAN)
    with pytest.raises(LaunchError, match="stopped"):
        watch(make(), PLAN, should_stop=lambda: True)
    with pytest.raises(ValueError, match="held"):
        watch(make(), PLAN, concurrency=None)


def test_a_client_that_is_too_late_is_a_failure(make):
    for held in (True, False):
        with pytest.raises(LaunchError, match="woke"):
            watch(make(), PLAN, held=held, max_lag_p99_s=-1.0)
