"""The DDP worker in this process, alone in its group: real reducers, planted faults, and clocks that wait."""

import io
import json
import random
import time
from dataclasses import asdict
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch import distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

from labkit.analyze.ddp_oracles import ddp_oracles, rounding_bound  # noqa: E402
from labkit.analyze.ddp_results import read_process  # noqa: E402
from labkit.calc.ddp import rebuilt_buckets  # noqa: E402
from labkit.calc.ddp_prediction import ddp_prediction  # noqa: E402
from labkit.calc.tinygpt import tinygpt_parameters  # noqa: E402
from labkit.experiments.ddp_buckets import Params  # noqa: E402
from labkit.workers import ddp_steps, gradients  # noqa: E402
from labkit.workers.ddp_trainer import make_trainer, reducer_log, wrap  # noqa: E402
from labkit.workers.session import Session  # noqa: E402
from labkit.workers.tinygpt import build_tinygpt  # noqa: E402

TINY = dict(num_layers=1, hidden=16, num_heads=2, vocab_size=64, num_positions=8, seq_tokens=4, samples_per_rank=4,
            bucket_caps_mib=(0.001, 0.01), accum_cap_mib=0.01, straggler_sleep_ms=0.0)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def solo(tmp_path_factory):
    """A group of one rank, without torchrun."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny tensors: a second thread would only spin
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield Session(rank=0, world_size=1, device=CPU, run_dir=tmp_path_factory.mktemp("solo"), stream=io.StringIO())
    dist.destroy_process_group()
    torch.set_num_threads(num_threads)


def worker_params(**changes):
    params = Params(**{**TINY, "world_size": 1, "optimizer": "none", **changes})
    plain = json.loads(json.dumps(asdict(params)))
    return params, {**plain, "is_checked": True, "bucket_order_mib": list(params.bucket_caps_mib)}


def run_worker(session, tmp_path, **changes):
    """(what the worker left, what was predicted, the bound) of a whole run in this process."""
    params, plain = worker_params(**changes)
    with open(tmp_path / "rank0.jsonl", "w") as stream:
        here = Session(rank=0, world_size=1, device=CPU, run_dir=tmp_path, stream=stream)
        ddp_steps.run_all(here, plain)
    model = {name: getattr(params, name) for name in
             ("num_layers", "hidden", "vocab_size", "num_positions", "tied", "linear_bias")}
    predicted = ddp_prediction(caps_mib=params.bucket_caps_mib, accum_cap_mib=params.accum_cap_mib, world_size=1,
                               samples_per_rank=params.samples_per_rank, **model)
    bound = rounding_bound(num_layers=1, hidden=16, vocab_size=64, num_tokens=16)
    return read_process(tmp_path), predicted, bound


def failed(process, predicted, bound):
    oracles = ddp_oracles(process, predicted=predicted, world_size=1, bound=bound, loopback_bytes={})
    assert len(oracles) >= 11
    return [oracle.name for oracle in oracles if not oracle.passed]


@pytest.mark.parametrize("changes", [
    {}, {"tied": False, "linear_bias": True}, {"optimizer": "adamw", "num_timed_steps": 2, "num_warmup_steps": 1},
], ids=["plain", "untied with biases", "with AdamW"])
def test_a_run_of_one_rank_passes_every_oracle(solo, tmp_path, changes):
    assert failed(*run_worker(solo, tmp_path, **changes)) == []


def break_loss_scale(monkeypatch):
    """The loss of a micro-step is not divided by their number: undo it by scaling the backward pass."""
    scaler = SimpleNamespace(scale=lambda loss: loss * 4)
    monkeypatch.setattr("labkit.workers.ddp_trainer.no_scaler", lambda device: scaler)


def break_zero_grad(monkeypatch):
    monkeypatch.setattr(nn.Module, "zero_grad", lambda self, set_to_none=True: None)


def break_samples(monkeypatch):
    """Every micro-step sees the first sample."""
    chunk = torch.Tensor.chunk
    monkeypatch.setattr(torch.Tensor, "chunk", lambda self, n: [chunk(self, n)[0]] * n)


def break_no_sync(monkeypatch):
    """no_sync does nothing, as when it covers only the backward pass."""
    from contextlib import nullcontext

    monkeypatch.setattr("torch.nn.parallel.DistributedDataParallel.no_sync", lambda self: nullcontext())


@pytest.mark.parametrize(("breaking", "noticed"), [
    (break_loss_scale, ["gradients equal one process on the whole batch"]),
    (break_zero_grad, ["gradients equal one process on the whole batch"]),
    (break_samples, ["gradients equal one process on the whole batch", "loss equals one process on the whole batch"]),
    (break_no_sync, ["all-reduces in the trace equal buckets in the reducer's log",
                     "no_sync around one half of a micro-step"]),
], ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_training_loop_fails_an_oracle(solo, tmp_path, monkeypatch, breaking, noticed):
    breaking(monkeypatch)
    assert set(noticed) <= set(failed(*run_worker(solo, tmp_path)))


@pytest.mark.parametrize("seed", range(30))
def test_prediction_equals_a_live_reducer_on_random_models(solo, seed):
    draw = random.Random(seed)
    num_heads = draw.choice([1, 2])
    model = dict(num_layers=draw.randint(1, 3), hidden=8 * num_heads * draw.randint(1, 6),
                 vocab_size=draw.randint(10, 900), num_positions=draw.randint(4, 40), tied=draw.random() < 0.5,
                 linear_bias=draw.random() < 0.5)
    cap = draw.choice([0.0005, 0.003, 0.01, 0.05, 0.3])
    _, plain = worker_params(**model, num_heads=num_heads, bucket_caps_mib=(cap,), accum_cap_mib=cap)
    trainer = make_trainer(solo, plain, learning_rate=0.0)
    ddp = wrap(trainer, cap)
    for _ in range(3):
        trainer.step(ddp, trainer.samples([0]))
    log = reducer_log(ddp)
    predicted = ddp_prediction(caps_mib=(cap,), accum_cap_mib=cap, world_size=1, **model)
    case = f"{cap:g} MiB"
    assert log["rebuilt_bucket_sizes_bytes"] == predicted["bucket_sizes_bytes"][case]
    assert log["initial_bucket_sizes_bytes"] == predicted["initial_bucket_sizes_bytes"][case]
    assert log["ready_order"] == predicted["ready_order"]


def test_prediction_holds_for_mixed_dtypes(solo):
    """A model whose layers alternate between float32 and float64: one list of buckets for each."""
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(32, 32, bias=False).to([torch.float32, torch.float64][i % 2])
                                        for i in range(9))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x.to(layer.weight.dtype))
            return x

    model = Mixed()
    ddp = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01, gradient_as_bucket_view=True)
    for _ in range(3):
        ddp(torch.randn(2, 32)).sum().backward()
        model.zero_grad(set_to_none=True)
    parameters = [[name, list(p.shape), str(p.dtype).removeprefix("torch.")] for name, p in model.named_parameters()]
    predicted = [bucket["bytes"] for bucket in rebuilt_buckets(parameters=parameters, bucket_cap_mib=0.01)]
    # torch leaves the order of the dtypes' last, unfilled buckets open.
    assert sorted(reducer_log(ddp)["rebuilt_bucket_sizes_bytes"]) == sorted(predicted)
    assert len(predicted) > 2


def test_the_model_has_the_calculators_parameters():
    for tied, bias in ((True, False), (False, True)):
        sizes = dict(num_layers=2, hidden=16, vocab_size=50, num_positions=8, tied=tied, linear_bias=bias)
        model = build_tinygpt(seed=3, device=CPU, num_heads=2, **sizes)
        assert [[n, list(p.shape)] for n, p in model.named_parameters()] == tinygpt_parameters(**sizes)
        assert not list(model.buffers()), "a buffer would be broadcast in every step"
        assert (model.head.weight is model.tok.weight) == tied
        again = build_tinygpt(seed=3, device=CPU, num_heads=2, **sizes)
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
        assert all(torch.isfinite(p).all() for p in model.parameters())
        assert float(model.blocks[0].fc1.weight.detach().std()) == pytest.approx(0.02, rel=0.1)


def test_attention_is_causal():
    """Changing the last token must not change the logits before it."""
    model = build_tinygpt(seed=0, device=CPU, num_layers=2, hidden=16, num_heads=2, vocab_size=50, num_positions=8)
    a, b = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[1, 2, 3, 9]])
    assert torch.equal(model(a)[:, :3], model(b)[:, :3]) and not torch.equal(model(a)[:, 3], model(b)[:, 3])


def test_the_loss_predicts_the_next_token(solo):
    """A model that always names the token after the one it sees has no loss on 0, 1, 2, ...; one that copies has."""
    _, plain = worker_params()
    trainer = make_trainer(solo, plain, learning_rate=0.0)
    rows = torch.arange(5).expand(2, 5)
    sure = lambda ids, shift: 50.0 * nn.functional.one_hot(ids + shift, num_classes=64).float()  # noqa: E731
    assert float(trainer.loss(lambda ids: sure(ids, 1), rows)) < 1e-6
    assert float(trainer.loss(lambda ids: sure(ids, 0), rows)) > 10


def test_ranks_get_disjoint_slices_of_one_batch(solo):
    _, plain = worker_params()
    trainer = make_trainer(solo, plain, learning_rate=0.0)
    seen = []
    for step in (0, 1):
        for rank in range(3):
            trainer.session = SimpleNamespace(rank=rank, world_size=3, device=CPU)
            seen += trainer.batch_ids(step, samples_per_rank=4)
    assert seen == list(range(24))
    assert torch.equal(trainer.samples([7, 3])[1], trainer.samples([3])[0])


def test_a_timed_step_waits_for_the_device(solo):
    """A device that works for 60 ms after the step has returned: the clock must stop after it, not before."""
    session = FakeSession(busy_s=0.06)
    trainer = SimpleNamespace(session=session, samples=lambda ids: ids, batch_ids=lambda step, samples_per_rank: [step])
    ddp_steps.timed_steps(trainer, "25 MiB", 2, session.start_work, samples_per_rank=1)
    rows = [values for kind, values in session.written if kind == "step"]
    assert [row["index"] for row in rows] == [0, 1]
    assert all(0.06 <= row["time_s"] < 1.0 for row in rows)
    assert session.events[:4] == ["barrier", "step [1]", "synchronize", "barrier"], "a common start, and fresh data"


class FakeSession:
    """A rank whose device finishes its work only when it is waited for."""

    rank, world_size, device, is_cuda = 0, 1, CPU, False

    def __init__(self, busy_s):
        self.busy_s, self.events, self.written = busy_s, [], []

    def start_work(self, rows):
        self.events.append(f"step {rows}")
        return torch.zeros(())

    def synchronize(self):
        self.events.append("synchronize")
        time.sleep(self.busy_s)

    def barrier(self):
        self.events.append("barrier")

    def write(self, kind, **values):
        self.written.append((kind, values))


def test_a_private_api_that_is_gone_stops_the_run_with_one_line():
    with pytest.raises(RuntimeError, match=r"_get_ddp_logging_data\(\) is gone or no longer gives bucket_sizes"):
        reducer_log(SimpleNamespace())
    with pytest.raises(RuntimeError, match="not guessed from the cap"):
        reducer_log(SimpleNamespace(_get_ddp_logging_data=lambda: {"rebuilt_bucket_sizes": "1, 2"}))
    log = reducer_log(SimpleNamespace(_get_ddp_logging_data=lambda: {"bucket_sizes": "12"}))
    assert log == {"initial_bucket_sizes_bytes": [12], "rebuilt_bucket_sizes_bytes": [], "ready_order": []}


def test_names_differing_sees_one_changed_bit_on_one_rank():
    mine = [("a", torch.tensor([1.0, 2.0])), ("b", torch.tensor([3.0]))]
    changed = [("a", torch.tensor([1.0, 2.0000002])), ("b", torch.tensor([3.0]))]
    mine, others = gradients.tensor_digests(mine), gradients.tensor_digests(changed)
    assert gradients.names_differing(mine, lambda own: [own, others]) == ["a"]
    assert gradients.names_differing(mine, lambda own: [own, own]) == []
    assert gradients.names_differing(mine, lambda own: [own, {"b": own["b"]}]) == ["a"], "missing on one rank"


def test_difference_by_hand():
    seen = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([1.0])}
    found = gradients.difference(seen, {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([2.0])})
    assert found["rel_diff"] == pytest.approx((1 / 29) ** 0.5) and found["worst_rel_diff"] == 0.5
    assert found["worst_name"] == "b" and not found["is_bitwise_equal"]
    assert gradients.difference(seen, seen)["is_bitwise_equal"]
    with pytest.raises(RuntimeError, match="differ by name"):
        gradients.difference(seen, {"a": seen["a"]})
    with pytest.raises(RuntimeError, match="expected finite"):
        gradients.difference({"a": torch.tensor([float("nan")])}, {"a": torch.tensor([1.0])})


def test_a_missing_gradient_is_no_pass():
    with pytest.raises(RuntimeError, match=r"no gradient for weight \(1 parameters\)"):
        gradients.named_gradients(nn.Linear(2, 2, bias=False))
