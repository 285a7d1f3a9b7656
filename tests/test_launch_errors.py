"""Who failed first: hand-written evidence, and the answer a person gives."""

import json
import os

import pytest

from labkit.launch.errors import LogTail, WorkerError, failure_table, first_failure, one_line, read_error_file

PEER = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:36509."


def tail_of(text):
    tail = LogTail()
    for line in text.splitlines():
        tail.add(line)
    return tail


def test_lines_are_kept_apart_by_rank_even_when_glued():
    tail = tail_of("start\n[rank1]:a[rank0]:b\n[rank0]:c\n[rank10]:d\n\n[rank1]:  \n")
    assert {rank: list(lines) for rank, lines in tail.lines.items()} == {
        None: ["start", ""], 1: ["a", "  "], 0: ["b", "c"], 10: ["d"]}
    assert [tail.last_line(rank) for rank in (0, 1, 10, 7, None)] == ["c", "a", "d", "", "start"]


def test_the_prefix_that_torch_adds_itself_is_taken_off():
    tail = tail_of("[rank1]:[rank1]: Traceback (most recent call last):\n[rank1]:[rank1]:   File \"a\", line 1\n"
                   "[rank1]:[rank1]: ValueError: boom\n")
    assert list(tail.lines[1]) == ["Traceback (most recent call last):", '  File "a", line 1', "ValueError: boom"]
    assert tail.last_exception(1)[0] == "ValueError: boom"


def test_the_last_exception_of_a_chain_counts_and_prose_does_not():
    tail = tail_of("""\
Traceback (most recent call last):
  File "a", line 1, in f
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a", line 3, in g
package.CustomThing: second
after
  Traceback in prose
""")
    error, text = tail.last_exception(None)
    assert error == "package.CustomThing: second"
    assert text == 'Traceback (most recent call last):\n  File "a", line 3, in g\npackage.CustomThing: second'
    assert tail_of("no traceback").last_exception(None) == ("", "")


def test_the_tail_is_bounded():
    tail = LogTail(max_lines=3)
    for i in range(10):
        tail.add(f"[rank0]:{i}")
    assert list(tail.lines[0]) == ["7", "8", "9"]


TABLE = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
worker FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-29_18:13:45
  host      : box
  rank      : 8 (local_rank: 0)
  exitcode  : -15 (pid: 3258)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 3258
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_18:13:43
  host      : box
  rank      : 9 (local_rank: 1)
  exitcode  : 1 (pid: 3259)
  error_file: /tmp/x/attempt_0/1/error.json
  traceback : Traceback (most recent call last):
"""


def test_the_table_of_torchrun_gives_global_ranks_and_exit_codes():
    entries = failure_table(tail_of(TABLE))
    assert [(e.rank, e.exitcode) for e in entries] == [(8, -15), (9, 1)]
    assert entries[0].time_s - entries[1].time_s == 2
    assert failure_table(tail_of("  rank      : x\n  exitcode  : 1\n[rank0]:  rank      : 5 (local_rank: 5)")) == []


def test_both_layouts_of_the_error_file(tmp_path):
    path = tmp_path / "error.json"
    nested = {"message": "ValueError: boom\nmore", "extraInfo": {"py_callstack": "Traceback ...", "timestamp": "17"}}
    path.write_text(json.dumps({"message": nested}))
    os.utime(path, ns=(0, 1_500_000_000))
    assert read_error_file(path, rank=3) == WorkerError(
        rank=3, error="ValueError: boom", traceback="Traceback ...", time_s=1.5)
    path.write_text(json.dumps({"message": "flat", "timestamp": 17}))
    assert read_error_file(path, rank=None).error == "flat"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"message": 3}', '{"message": null}', "\udcff"])
def test_an_unusable_error_file_is_none(tmp_path, text):
    (tmp_path / "e.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert read_error_file(tmp_path / "e.json", rank=0) is None
    assert read_error_file(tmp_path / "absent.json", rank=0) is None


CASES = {
    "earlier of two errors": ([(0, 1, "ValueError: a", 2.0), (1, 1, "KeyError: b", 1.0)], 1),
    "own error before an earlier complaint": ([(0, 1, PEER, 1.0), (1, 1, "ValueError: boom", 1.1)], 1),
    "signal from outside before a complaint": ([(0, 1, PEER, 1.0), (1, -9, "", 2.0)], 1),
    "segfault before a complaint": ([(0, 1, PEER, 1.0), (1, -11, "", 2.0)], 1),
    "stopped ranks are victims": ([(0, -15, "", 1.0), (1, 3, "", 2.0), (2, -15, "", 1.0)], 1),
    "a complaint before a stopped rank": ([(0, -15, "", 1.0), (1, 1, PEER, 2.0)], 1),
    "NCCL's watchdog aborts the ranks that wait": ([(0, -6, "", 1.0), (1, 1, "OSError: disk", 2.0)], 1),
    "NCCL names the peer": (
        [(0, 1, "torch.distributed.DistBackendError: NCCL error in: x", 1.0), (1, 1, "AssertionError: y", 9.0)], 1),
    "only complaints: the first": ([(0, 1, PEER, 2.0), (1, 1, PEER, 1.0)], 1),
    "a stop with a traceback of its own is no victim": ([(0, 1, PEER, 1.0), (1, -15, "ValueError: late", 2.0)], 1),
}


@pytest.mark.parametrize("entries, rank", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("order", [1, -1])
def test_blame(entries, rank, order):
    errors = [WorkerError(rank=r, exitcode=code, error=text, time_s=at, traceback="Traceback" if text else "")
              for r, code, text, at in entries][::order]
    assert first_failure(errors, LogTail()).rank == rank


def test_what_two_sources_know_of_a_rank_is_put_together():
    file = WorkerError(rank=1, error="ValueError: boom", traceback="T", time_s=5.25)
    table = WorkerError(rank=1, exitcode=1, time_s=5.0)
    assert first_failure([file, table], LogTail()) == WorkerError(
        rank=1, exitcode=1, error="ValueError: boom", traceback="T", time_s=5.25)


def test_a_rank_stopped_while_it_ends_of_its_own_error_has_no_exit_code():
    file = WorkerError(rank=1, error="ValueError: boom", traceback="T", time_s=5.25)
    table = WorkerError(rank=1, exitcode=-15, time_s=5.0)
    other = WorkerError(rank=0, exitcode=1, error=PEER, traceback="T", time_s=5.1)
    assert first_failure([file, other, table], LogTail()) == WorkerError(
        rank=1, exitcode=None, error="ValueError: boom", traceback="T", time_s=5.25)


def test_without_an_error_file_the_output_of_that_rank_tells():
    tail = tail_of("[rank0]:fine\n[rank1]:Traceback (most recent call last):\n[rank1]:ImportError: no x\n[rank1]:bye")
    assert first_failure([WorkerError(rank=1, exitcode=1)], tail).error == "ImportError: no x"
    assert first_failure([WorkerError(rank=0, exitcode=2)], tail).error == "fine"
    assert first_failure([WorkerError(rank=5, exitcode=2)], tail).error == "no output"
    assert first_failure([WorkerError(rank=0, exitcode=-9)], tail).error == "killed by signal 9 (out of memory?)"


def test_a_message_becomes_one_bounded_line():
    assert one_line("\n\n a \n b") == "a" and one_line("") == ""
    assert len(one_line("x" * 1000)) == 300
