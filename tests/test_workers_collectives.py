"""The collective worker: its data check against a played process group, its clocks, and how a cell may end."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from labkit.workers import collective_calls as calls  # noqa: E402
from labkit.workers import collective_timing as timing  # noqa: E402

CPU = torch.device("cpu")


class PlayedGroup:
    """Collectives of n ranks in one process: each call is noted, and carried out once all ranks have made theirs."""

    def __init__(self, num_ranks, spoil=None):
        self.num_ranks, self.spoil, self.noted = num_ranks, spoil, []
        self.isend, self.irecv = "send", "recv"

    def all_reduce(self, data, group=None):
        self.noted.append(("all_reduce", data, data))

    def broadcast(self, data, src, group=None):
        assert src == 0
        self.noted.append(("broadcast", data, data))

    def all_gather(self, out, own, group=None):
        self.noted.append(("all_gather", own, out))

    def reduce_scatter(self, out, own, group=None):
        self.noted.append(("reduce_scatter", own, out))

    def all_to_all_single(self, out, own, group=None):
        self.noted.append(("all_to_all", own, out))

    def P2POp(self, op, data, peer, group=None):
        return op, data, peer

    def batch_isend_irecv(self, wanted):
        self.noted.append(("p2p", wanted, None))
        return [SimpleNamespace(wait=lambda: None)]

    def carry_out(self):
        """Plainly, element by element where it is short enough to read."""
        n, kinds = self.num_ranks, {kind for kind, _, _ in self.noted}
        (kind,) = kinds
        inputs = [data.clone() if kind != "p2p" else data for _, data, _ in self.noted]
        for rank, (_, _, out) in enumerate(self.noted):
            if kind == "all_reduce":
                out.copy_(sum(inputs[1:], inputs[0].clone()))
            elif kind == "broadcast":
                out.copy_(inputs[0])
            elif kind == "all_gather":
                out.copy_(torch.cat(inputs))
            elif kind == "reduce_scatter":
                out.copy_(sum(inputs[1:], inputs[0].clone()).chunk(n)[rank])
            elif kind == "all_to_all":
                out.copy_(torch.cat([data.chunk(n)[rank] for data in inputs]))
            else:
                sent = {(r, peer): data for r, wanted in enumerate(inputs) for op, data, peer in wanted if op == "send"}
                for op, data, peer in inputs[rank]:
                    if op == "recv":
                        data.copy_(sent[peer, rank])
            if self.spoil is not None and out is not None:
                self.spoil(rank, out)


def play(monkeypatch, collective, num_ranks, *, size_bytes=4800, spoil=None):
    """Wrong elements on each rank after one checked call."""
    group = PlayedGroup(num_ranks, spoil)
    monkeypatch.setattr(calls, "dist", group)
    monkeypatch.setattr(calls, "_all_gather", group.all_gather)
    monkeypatch.setattr(calls, "_reduce_scatter", group.reduce_scatter)
    ready = [calls.prepare(collective, size_bytes=size_bytes, rank=rank, num_ranks=num_ranks, device=CPU)
             for rank in range(num_ranks)]
    for call in ready:
        call.fill()
    for call in ready:
        call.run()
    group.carry_out()
    return [call.num_wrong() for call in ready]


COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv")


@pytest.mark.parametrize("num_ranks", [2, 3, 5])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_right_collective_has_no_wrong_element(monkeypatch, collective, num_ranks):
    assert play(monkeypatch, collective, num_ranks) == [0] * num_ranks


@pytest.mark.parametrize("collective", COLLECTIVES[:5])
def test_one_spoiled_element_is_one_wrong_element(monkeypatch, collective):
    def spoil(rank, out):
        if rank == 1:
            out[7] += 1
    assert play(monkeypatch, collective, 3, spoil=spoil) == [0, 1, 0]


@pytest.mark.parametrize("collective", ["all_gather", "all_to_all"])
def test_chunks_in_another_order_are_noticed(monkeypatch, collective):
    """The right numbers in the wrong place: a sum or a histogram would not see it."""
    found = play(monkeypatch, collective, 3, spoil=lambda rank, out: out.copy_(out.roll(out.numel() // 3)))
    assert min(found) > 300


@pytest.mark.parametrize("collective", [*COLLECTIVES[1:], "send_forward"])
def test_a_call_that_does_nothing_is_noticed(monkeypatch, collective):
    monkeypatch.setattr(PlayedGroup, "carry_out", lambda self: None)
    found = play(monkeypatch, collective, 2)
    assert found[1] == (600 if collective == "reduce_scatter" else 1200)


@pytest.mark.parametrize(("collective", "receiver"), [("send_forward", 1), ("send_backward", 0)])
def test_one_direction_reaches_one_rank(monkeypatch, collective, receiver):
    assert play(monkeypatch, collective, 2) == [0, 0]
    monkeypatch.setattr(PlayedGroup, "carry_out", lambda self: None)
    assert play(monkeypatch, collective, 2)[receiver] == 1200
    assert play(monkeypatch, collective, 2)[1 - receiver] == 0


def test_data_are_exact_and_differ_by_rank_and_place():
    rows = torch.stack([calls.pattern(rank, 0, 4000, CPU) for rank in range(8)])
    assert torch.equal(rows, rows.round()) and rows.min() == 0 and rows.max() == 250
    assert all((rows[a] == rows[b]).float().mean() < 0.1 for a in range(8) for b in range(a))
    assert torch.equal(calls.sum_pattern(8, 100, 4000, CPU), rows.sum(0)[100:])
    assert torch.equal(calls.pattern(3, 1000, 2000, CPU), rows[3][1000:2000])


def test_large_buffers_are_filled_and_compared_piece_by_piece(monkeypatch):
    monkeypatch.setattr(calls, "CHUNK", 100)
    for collective in COLLECTIVES:
        assert play(monkeypatch, collective, 3) == [0, 0, 0]
    assert play(monkeypatch, "all_reduce", 3, spoil=lambda rank, out: out[1199].add_(1)) == [1, 1, 1]


def test_sizes_are_rounded_down_to_whole_elements_of_each_rank(monkeypatch):
    ready = calls.prepare("all_gather", size_bytes=1030, rank=0, num_ranks=3, device=CPU)
    assert ready.size_bytes == 1020


def test_unknown_collectives_are_refused():
    with pytest.raises(ValueError, match="collective='gossip'"):
        calls.prepare("gossip", size_bytes=8, rank=0, num_ranks=2, device=CPU)


def test_the_clock_times_every_call_and_only_calls():
    order = []
    call = calls.Call(size_bytes=2**20, run=lambda: order.append("call"), fill=lambda: None, num_wrong=lambda: 0)
    found = timing.time_call(call, device=CPU, barrier=lambda: order.append("wait"), num_warmup=2, num_samples=3)
    per_sample = timing.calls_per_sample(2**20, is_cuda=False)
    assert order.count("call") == 2 + 3 * per_sample and len(found["times_us"]) == len(found["starts_s"]) == 3
    assert order[:2] == ["call", "call"] and order[-1] == "wait" and found["num_calls"] == per_sample
    assert found["timing"] == "eager" and found["graph_error"] is None


def test_small_messages_are_timed_in_rows():
    for is_cuda in (True, False):
        counts = [timing.calls_per_sample(2**power, is_cuda=is_cuda) for power in range(10, 33)]
        assert counts == sorted(counts, reverse=True) and counts[0] >= 10 and counts[-1] >= 1


ENDINGS = """
import json, multiprocessing, sys, time
from pathlib import Path
from labkit.workers import collective_cells as cells

def times(cell, rank, device, wait, write):
    if cell["name"] == "hangs" and rank == 1:
        time.sleep(60)
    if cell["name"] == "refused":
        Path(sys.argv[1], "cells", "refused", "nccl_rank0.log").write_text("n0:1:2 NCCL WARN no such pair\\n")
        raise RuntimeError("NCCL error: invalid usage")
    if cell["name"] == "broken" and rank == 1:
        raise TypeError("a mistake of ours")
    wait()
    write("times", collective="all_reduce", size_bytes=8, num_wrong=0, times_us=[])

cells._times = times
context = multiprocessing.get_context("fork")
for name in ("good", "hangs", "refused", "broken"):
    cell = {"name": name, "kind": "times", "devices": [0, 1], "env": {"NCCL_ALGO": name}, "forced": True,
            "timeout_s": 1.5 if name == "hangs" else 30}
    print(json.dumps(cells.run_cell(context, Path(sys.argv[1]), cell, device="cpu")))
"""


def test_a_cell_ends_measured_refused_late_or_broken(tmp_path):
    """Each in its own processes: the one that hangs is ended, the ones after it run."""
    done = subprocess.run([sys.executable, "-c", ENDINGS, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    good, hangs, refused, broken = map(json.loads, done.stdout.splitlines())
    assert good["status"] == "measured" and good["reason"] is None
    assert hangs["status"] == "timed_out" and 1.5 <= hangs["wall_s"] < 10 and "1.5 s" in hangs["reason"]
    assert refused["status"] == "refused" and refused["reason"] == "no such pair"
    assert broken["status"] == "failed" and "a mistake of ours" in broken["reason"]
    rows = [json.loads(line) for line in (tmp_path / "cells" / "good" / "rank1.jsonl").read_text().splitlines()]
    assert [row["kind"] for row in rows] == ["setup", "times", "end"] and rows[0]["backend"] == "gloo"
