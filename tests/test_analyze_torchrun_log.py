"""torchrun logs: the root cause is the rank that failed first by itself."""

from __future__ import annotations

import json

import pytest

from labkit.analyze.kinds import UnreadableInput
from labkit.analyze.torchrun_error_file import parse_error_file
from labkit.analyze.torchrun_log import parse_log

HINT = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
STOPPED = "Signal 15 (SIGTERM) received by PID 100"


def block(rank, *, code=1, pid=100, time="2026-11-29_18:13:45", text=HINT, file="<N/A>", local=None):
    signal = {-15: " (SIGTERM)", -9: " (SIGKILL)", -11: " (SIGSEGV)"}.get(code, "")
    body = text.replace("\n", "\n  ")
    local = rank if local is None else local
    return (
        f"[{rank}]:\n  time      : {time}\n  host      : localhost\n  rank      : {rank} (local_rank: {local})\n"
        f"  exitcode  : {code} (pid: {pid}) {signal}\n  error_file: {file}\n  traceback : {body}"
    )


def report(root, *others):
    rule = "-" * 60
    return "\n".join(["=" * 60, "train.py FAILED", rule, "Failures:", *(others or ["  <NO_OTHER_FAILURES>"]), rule,
                      "Root Cause (first observed failure):", root, "=" * 60, ""])  # fmt: skip


def trace(error, *, cause=None):
    frames = 'Traceback (most recent call last):\n  File "train.py", line 6, in main\n    step()\n'
    before = (
        f"{frames}{cause}\n\nDuring handling of the above exception, another exception occurred:\n\n" if cause else ""
    )
    return f"{before}{frames}{error}\n"


def closing(pid):
    return f"W1129 18:13:43.01 3202 torch/distributed/api.py:900] Sending process {pid} closing signal SIGTERM\n"


def agent(code, local, pid):
    return (
        f"E1129 18:13:45.02 3202 api.py:874] failed (exitcode: {code}) local_rank: {local} (pid: {pid}) of binary: p\n"
    )


def test_named_root_with_a_traceback_from_the_error_file():
    answer = parse_log(
        report(block(1, text=trace("KeyError: 'x: y'", cause="ZeroDivisionError: 1"), file="/t/error.json"))
    )
    root = answer["root_cause"]
    assert (root["rank"], root["error"], root["error_file"]) == (1, "KeyError: 'x: y'", "/t/error.json")
    assert answer["failed"] and answer["other_failures"] == [] and answer["root_cause_by"] == "named by torchrun"


def test_error_file_unset_the_teed_traceback_of_that_rank_is_used():
    out = "".join(f"[default1]:{line}\n" for line in trace("ValueError: boom").splitlines())
    answer = parse_log(out + report(block(1), block(0, code=-15, text=STOPPED)))
    assert answer["root_cause"]["error"] == "ValueError: boom"
    assert answer["errors_by_rank"] == {"default1": "ValueError: boom"}


def test_prefix_of_the_process_group_names_the_global_rank():
    out = "".join(f"[rank5]: {line}\n" for line in trace("RuntimeError: x").splitlines())
    answer = parse_log(out + report(block(5, local=1)))
    assert answer["root_cause"]["error"] == "RuntimeError: x" and answer["root_cause"]["local_rank"] == 1


def test_nested_prefixes_are_no_glued_line():
    out = "".join(f"[default1]:[rank1]: {line}\n" for line in trace("RuntimeError: x").splitlines())
    answer = parse_log(out)
    assert answer["glued_lines"] == 0
    assert answer["root_cause"]["error"] == "RuntimeError: x" and answer["root_cause"]["rank"] == 1


def test_glued_lines_are_counted_and_split():
    out = "[default0]:step 1[default1]:step 1\n[default1]:Traceback (most recent call last):[default0]:step 2\n"
    out += '[default1]:  File "t.py", line 1\n[default0]:step 3[default1]:OSError: gone\n[default0]: log [x1]: y\n'
    answer = parse_log(out + report(block(1)))
    assert answer["glued_lines"] == 3
    assert answer["root_cause"]["error"] == "OSError: gone"


@pytest.mark.parametrize(
    ("code", "signal"), [(-9, "SIGKILL"), (-11, "SIGSEGV"), (-15, "SIGTERM"), (-6, "SIGABRT"), (-250, "signal 250")]
)
def test_signals_have_names(code, signal):
    answer = parse_log(report(block(0, code=code, text=f"Signal {-code} received")))
    assert (answer["root_cause"]["exitcode"], answer["root_cause"]["signal"]) == (code, signal)


def test_a_process_that_the_agent_stopped_is_a_victim_even_if_torchrun_names_it():
    victim = block(0, code=-15, pid=100, text=STOPPED)
    cause = block(3, code=1, pid=103, text=trace("ValueError: real"))
    answer = parse_log(closing(100) + report(victim, cause))
    assert answer["root_cause"]["rank"] == 3
    assert answer["root_cause_by"] == "not rank 0, which was stopped by the agent"
    assert [failure["rank"] for failure in answer["other_failures"]] == [0]


def test_a_rank_that_lost_its_peer_is_a_victim():
    victim = block(
        2, text=trace("RuntimeError: [gloo] Connection closed by peer [127.0.0.1]:3"), time="2026-11-29_18:13:44"
    )
    answer = parse_log(report(victim, block(1, text=trace("ValueError: real"), time="2026-11-29_18:13:45")))
    assert answer["root_cause"]["rank"] == 1


def test_if_all_are_victims_torchrun_is_believed():
    answer = parse_log(
        closing(100) + report(block(0, code=-15, text=STOPPED), block(1, code=-15, pid=101, text=STOPPED))
    )
    assert answer["root_cause"]["rank"] == 0 and answer["root_cause_by"] == "named by torchrun"


def test_several_nodes_earliest_report_wins_and_their_prefixes_go():
    late = report(block(9, time="2026-11-29_18:13:50", text=trace("ValueError: late")))
    early = report(block(2, time="2026-11-29_18:13:41", text=trace("ValueError: early")))
    merged = "".join(f"{node}: {line}\n" for node, part in ((1, late), (0, early)) for line in part.splitlines())
    answer = parse_log(merged)
    assert answer["root_cause"]["error"] == "ValueError: early" and answer["root_cause"]["rank"] == 2
    assert [failure["rank"] for failure in answer["other_failures"]] == [9]


def test_a_log_cut_before_the_report_still_has_what_the_agent_saw():
    out = "".join(f"[default2]:{line}\n" for line in trace("ValueError: boom").splitlines())
    answer = parse_log(out + closing(100) + agent(1, 2, 102) + "Traceback (most")
    root = answer["root_cause"]
    assert (root["rank"], root["local_rank"], root["exitcode"], root["error"]) == (None, 2, 1, "ValueError: boom")
    assert answer["closing_signals"] == [{"pid": 100, "signal": "SIGTERM"}]


def test_old_report_layout():
    text = (
        "*****\n  train.py FAILED\n=====\nRoot Cause:\n[0]:\n  time: 2021-07-01_10:00:00\n  rank: 1 (local_rank: 1)\n"
        '  exitcode: 3 (pid: 12)\n  error_file: <N/A>\n  msg: "Process failed with exitcode 3"\n=========\n'
        "Other Failures:\n  <NO_OTHER_FAILURES>\n*********\n"
    )
    root = parse_log(text)["root_cause"]
    assert (root["rank"], root["exitcode"], root["pid"], root["error"]) == (1, 3, 12, None)


def test_launcher_errors():
    line = "torch.distributed.DistNetworkError: The server socket has failed to listen. port: 29500"
    answer = parse_log(f'Traceback (most recent call last):\n  File "run.py", line 1\n{line}\n')
    assert answer["failed"] and answer["root_cause"]["error"] == line and answer["root_cause_by"] == "launcher error"
    signal = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 12 got signal: 15"
    assert parse_log(signal)["root_cause"]["error"] == signal


def test_a_good_run():
    answer = parse_log("[default0]:step 1\n[default1]:step 1\n[default0]:done\n")
    assert (answer["failed"], answer["root_cause"], answer["other_failures"]) == (False, None, [])


def test_colours_and_windows_line_ends():
    text = "\x1b[31m[default1]:boom\x1b[0m\r\n" + report(block(1, code=7)).replace("\n", "\r\n")
    assert parse_log(text)["root_cause"]["exitcode"] == 7


@pytest.mark.parametrize("text", ["", " \n", "<!DOCTYPE html><html></html>", "\n<html>"])
def test_no_log_at_all(text):
    with pytest.raises(UnreadableInput):
        parse_log(text)


def test_error_file_variants():
    nested = {
        "message": {
            "message": "ValueError: x",
            "extraInfo": {"py_callstack": "T", "timestamp": "1795976023"},
            "errorCode": 3,
        }
    }
    assert parse_error_file(json.dumps(nested)) == {
        "error": "ValueError: x",
        "error_type": "ValueError",
        "timestamp": 1795976023,
        "traceback": "T",
        "exitcode": 3,
    }
    flat = parse_error_file('{"message": "segfault", "errorCode": -11, "extraInfo": {"timestamp": 17}}')
    assert (flat["error"], flat["timestamp"], flat["exitcode"], flat["traceback"]) == ("segfault", 17, -11, None)
    deep = parse_error_file(json.dumps({"message": nested}))
    assert deep["error"] == "ValueError: x" and deep["timestamp"] == 1795976023
    assert parse_error_file('{"message": "a", "extraInfo": {"timestamp": "soon"}}')["timestamp"] is None


@pytest.mark.parametrize(
    "text", ["", "{", '{"message"', "[]", "17", '{"msg": "x"}', '{"message": {}}', '{"message": [1]}', '"x"']
)
def test_error_file_that_is_none(text):
    with pytest.raises(UnreadableInput, match=r"error\.json"):
        parse_error_file(text)


def test_the_only_untagged_traceback_is_the_root_causes():
    log = trace("ValueError: boom", cause="KeyError: 'a'") + agent(1, 1, 100) + report(block(1), block(0, code=-15))
    root = parse_log(log)["root_cause"]
    assert root["error"] == "ValueError: boom" and "KeyError" in root["traceback"]
    two = parse_log(trace("ValueError: a") + trace("TypeError: b") + report(block(1)))
    assert two["root_cause"]["error"] is None and two["unnamed_errors"] == ["ValueError: a", "TypeError: b"]
    lost = parse_log(trace("RuntimeError: Connection closed by peer") + trace("ValueError: a") + report(block(1)))
    assert lost["root_cause"]["error"] == "ValueError: a"
    assert parse_log(trace("ValueError: handled") + report(block(1, code=3)))["root_cause"]["error"] is None
    missing = "python: can't open file 'x.py': [Errno 2] No such file or directory"
    assert parse_log(f"{missing}\n{missing}\n" + report(block(0, code=2)))["root_cause"]["error"] == missing


def test_tracebacks_of_two_ranks_that_cross_are_one_error():
    lines = [line for line in trace("ValueError: boom").splitlines() for _ in range(2)]
    log = "\n".join(lines) + "\n" + report(block(0), block(1))
    assert parse_log(log)["root_cause"]["error"] == "ValueError: boom"


def test_a_log_that_ends_in_a_traceback_failed():
    answer = parse_log("step 1\n" + trace("ValueError: boom"))
    assert answer["failed"] and answer["root_cause"]["error"] == "ValueError: boom"
    assert answer["root_cause"]["rank"] is None and "unnamed" in answer["root_cause_by"]
    assert parse_log("^C" + trace("KeyboardInterrupt"))["root_cause"]["error"] == "KeyboardInterrupt"
    went_on = parse_log(trace("ValueError: retried") + "step\n" * 9)
    assert not went_on["failed"] and went_on["unnamed_errors"] == ["ValueError: retried"]
    assert parse_log("torchrun: error: unrecognized arguments: --x\n")["root_cause_by"] == "launcher error"


def test_a_restarted_attempt_is_no_failed_job():
    first = trace("ValueError: first") + agent(1, 1, 100)
    unknown = parse_log(first + "step 1\nstep 2\n")
    assert unknown["failed"] is None and unknown["root_cause"]["error"] == "ValueError: first"
    good = parse_log(first + "INFO: [default] worker group successfully finished. Waiting for other agents\n")
    assert (good["failed"], good["root_cause"]) == (False, None)
    again = parse_log(first + trace("ValueError: second") + agent(1, 0, 102) + report(block(0, pid=102)))
    assert again["failed"] and again["root_cause"]["error"] == "ValueError: second"


@pytest.mark.parametrize("prefix", [
    "> ", "2026-11-29T18:13:45.123456789Z ", "[pod/train-0/pytorch] ", "(Trainer pid=31, ip=10.0.0.2) ", "worker-0  | ",
    "  3: ", "[prterun-node-1@1,0]<stderr>: ", "node-07: ", "10.0.0.2: ", "2026-11-29 18:13:45,123 [pod/a-0/b] "])
def test_what_carried_the_log_is_taken_off(prefix):
    log = trace("ValueError: boom") + agent(1, 1, 100) + report(block(1), block(0, code=-15))
    answer = parse_log("".join(f"{prefix}{line}".rstrip() + "\n" for line in log.splitlines()))
    assert (answer["root_cause"]["rank"], answer["root_cause"]["error"]) == (1, "ValueError: boom")
    assert len(answer["other_failures"]) == 1


def test_a_group_of_exceptions_has_its_line():
    lines = ["  + Exception Group Traceback (most recent call last):", '  |   File "t.py", line 1, in <module>',
             "  | ExceptionGroup: many (2 sub-exceptions)", "  +-+---------------- 1 ----------------"]
    tagged = "".join(f"[default1]:{line}\n" for line in lines) + report(block(1))
    assert parse_log(tagged)["root_cause"]["error"] == "ExceptionGroup: many (2 sub-exceptions)"


@pytest.mark.parametrize("line", [
    "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM Killed.",
    "slurmstepd: error: *** JOB 12 ON node1 CANCELLED AT 2026-11-29T00:00:00 DUE TO TIME LIMIT ***",
    "run.sh: line 3: 123 Segmentation fault      (core dumped) torchrun t.py", "Killed",
    "srun: error: node1: task 0: Exited with exit code 1",
    "[2026-11-29 00:00:00,000] [ERROR] [launch.py:325:sigkill_handler] ['python', 't.py'] exits with return code = -9",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ==== t.py FAILED Root Cause: [0]: rank : 3"])
def test_a_failure_told_only_from_outside_the_ranks(line):
    answer = parse_log(f"step 1\n{line}\n")
    assert answer["failed"] and answer["root_cause"]["error"] == line and answer["root_cause"]["rank"] is None
    named = parse_log(f"{report(block(1, code=-9, text='Signal 9 (SIGKILL) received by PID 100'))}\n{line}\n")
    assert named["root_cause"]["rank"] == 1 and named["root_cause_by"] == "named by torchrun"


def test_the_first_launcher_only_repeats_that_a_rank_failed():
    launcher = "subprocess.CalledProcessError: Command '['python', 't.py']' returned non-zero exit status 7.\n"
    frames = 'Traceback (most recent call last):\n  File "launch.py", line 261, in <module>\n'
    root = parse_log(trace("ValueError: boom") + frames + launcher)["root_cause"]
    assert (root["error"], root["exitcode"]) == ("ValueError: boom", 7)
    assert parse_log(frames + launcher)["root_cause"]["error"] == launcher.strip()


def test_lines_that_a_terminal_ran_together():
    answer = parse_log("    ".join((closing(100) + closing(101) + agent(-9, 4, 104)).splitlines()))
    assert [one["pid"] for one in answer["closing_signals"]] == [100, 101]
    assert (answer["root_cause"]["local_rank"], answer["root_cause"]["signal"]) == (4, "SIGKILL")
