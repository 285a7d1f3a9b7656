"""The warp sweep's own logic on a CPU: kernels, driver and clocks are stand-ins, outputs are real and are checked."""

import json
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from labkit.workers import rmsnorm_timing, warp_sweep  # noqa: E402
from labkit.workers.cuda_driver import DriverError  # noqa: E402
from labkit.workers.json_lines import JsonLines  # noqa: E402

LIMITS = {"shared_memory_per_sm_bytes": 233472, "reserved_shared_memory_bytes": 1024, "cc_major": 9, "cc_minor": 0,
          "shared_memory_per_block_bytes": 232448, "max_threads_per_sm": 2048}  # fmt: skip
PARAMS = {"rows": 6, "hidden": [64, 128], "num_warps": [1, 2], "dial_warps": [2], "dial_blocks": [1, 4, 40],
          "eps": 1e-6, "seed": 0, "process": 0, "rounds": 3}  # fmt: skip


def norm(x, w, out, eps=1e-6):
    x32 = x.float()
    out.copy_((x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps) * w.float()).half())


class FakeDriver:
    """Room for 32 blocks, or what shared memory leaves; a launch computes the rows that its pointers name."""

    known: dict = {}  # noqa: RUF012
    fail = False

    def use_device(self, index=0):
        return 0

    def device_attributes(self, device):
        return dict(LIMITS)

    def load(self, image):
        return image

    def function(self, module, name):
        return name

    def function_attributes(self, function):
        return {"registers": 40, "local_bytes": 0}

    def allow_shared(self, function, dynamic_bytes, *, carveout=False):
        assert dynamic_bytes == 232448 and carveout

    def max_blocks(self, function, *, threads, dynamic_bytes):
        return min(32, 233472 // (-(-(dynamic_bytes + 1024) // 128) * 128)), 0

    def launch(self, function, *, blocks, threads, dynamic_bytes, stream, args):
        if self.fail:
            raise DriverError("cuLaunchKernel: CUDA_ERROR_INVALID_VALUE (1)")
        x, w, y = (self.known[value.value] for value in args[1][:3])
        assert blocks == x.shape[0] and [v.value for v in args[1][3:6]] == [x.stride(0), y.stride(0), x.shape[1]]
        norm(x, w, y)


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run the sweep with stand-ins; returns its answer and its lines."""
    monkeypatch.setattr(warp_sweep, "Driver", FakeDriver)
    monkeypatch.setattr(rmsnorm_timing, "DEVICE", "cpu")
    monkeypatch.setattr(FakeDriver, "fail", False)
    cuda = warp_sweep.torch.cuda
    for name in ("set_device", "synchronize", "empty_cache"):
        monkeypatch.setattr(cuda, name, lambda *_: None)
    monkeypatch.setattr(cuda, "get_device_properties", lambda _: SimpleNamespace(name="fake", L2_cache_size=2048))
    monkeypatch.setattr(cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(rmsnorm_timing, "Flush", lambda _: "a flush")
    monkeypatch.setattr(rmsnorm_timing, "spin_up", lambda: None)
    monkeypatch.setattr("labkit.workers.rmsnorm_check.stores_round_to_nearest", lambda *_: True)

    def samples(calls, *, rounds, **_):
        for call in calls.values():
            call(1)
        return {name: [0.001 * (i + 1) for i in range(rounds)] for name in calls}

    monkeypatch.setattr(rmsnorm_timing, "stream_samples", samples)
    monkeypatch.setattr(rmsnorm_timing, "cold_samples", samples)

    def launch(self, num_warps, index):
        x, out = self.xs[index % len(self.xs)], self.targets[index % len(self.xs)].out
        FakeDriver.known |= {t.data_ptr(): t for t in (x, self.w, out)}
        FakeDriver.known |= {t.data_ptr(): t for t in (*self.xs, *[target.out for target in self.targets])}
        norm(x, self.w, out)
        if num_warps == broken["num_warps"]:
            out[3, 5] += 1
        return SimpleNamespace(asm={"cubin": b""}, metadata=SimpleNamespace(shared=16, name="k"), n_regs=40, n_spills=0)

    broken = {"num_warps": None}
    monkeypatch.setattr(warp_sweep.Sweep, "launch", launch)

    def go(**changes):
        broken["num_warps"] = changes.pop("broken", None)
        with open(tmp_path / "rank0.jsonl", "w") as stream:
            lines = JsonLines(stream)
            whole = warp_sweep.run({**PARAMS, **changes}, lines)
        return whole, lines.failed, [json.loads(text) for text in (tmp_path / "rank0.jsonl").read_text().splitlines()]

    return go


def of(lines, kind):
    return [line for line in lines if line["kind"] == kind]


def test_both_experiments_for_every_row_length(run):
    whole, failed, lines = run()
    assert whole and not failed and not of(lines, "refusal")
    assert [(k["hidden"], k["num_warps"], k["blocks_per_sm"]) for k in of(lines, "kernel")] == [
        (h, w, 32) for h in (64, 128) for w in (1, 2)]
    dials = [(d["name"], d["driver_blocks"], d["shared_bytes"]) for d in of(lines, "dial") if d["hidden"] == 64]
    assert dials == [("w2 b1", 1, 232448), ("w2 b4", 4, 57344), ("w2 b32", 32, 16)], "40 blocks never fit"
    names = {mode: [line["name"] for line in of(lines, "timing") if line["hidden"] == 64 and line["mode"] == mode]
             for mode in ("stream", "cold")}  # fmt: skip
    assert names["stream"] == ["w1", "w2", "copy", "copy_again", "w2 b1", "w2 b4", "w2 b32", "copy_dial"]
    assert names["cold"] == names["stream"][:4]
    assert all(len(line["ms"]) == 3 for line in of(lines, "timing"))
    assert len(of(lines, "check")) == 2 * 5 and all(line["passed"] for line in of(lines, "check"))


def test_a_dial_that_cannot_launch_costs_only_the_dial(run, monkeypatch):
    monkeypatch.setattr(FakeDriver, "fail", True)
    whole, failed, lines = run()
    assert not whole and not failed
    (refusal,) = of(lines, "refusal")
    assert refusal["what"] == "dial" and "INVALID_VALUE" in refusal["error"]
    assert {line["name"] for line in of(lines, "timing")} == {"w1", "w2", "copy", "copy_again"}


def test_a_wrong_output_is_remembered(run):
    _, failed, lines = run(broken=1)
    assert len(failed) == 2 and "num_bad" in failed[0]
    assert [line["what"] for line in of(lines, "check") if not line["passed"]] == ["w1", "w1"]


def test_without_a_dial(run):
    whole, failed, lines = run(dial_warps=[])
    assert whole and not failed and not of(lines, "dial")
