"""The FSDP workers in this process: real FSDP2 hooks in a group of eight ranks that exist on paper, and alone."""

import io
import json
import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.testing._internal.distributed.fake_pg")

from torch import distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from labkit.calc.fsdp import fsdp_case  # noqa: E402
from labkit.calc.fsdp_prediction import fsdp_prediction  # noqa: E402
from labkit.workers import fsdp_cases, fsdp_steps, group_exit  # noqa: E402
from labkit.workers.ddp_trainer import Trainer  # noqa: E402
from labkit.workers.session import Session  # noqa: E402
from labkit.workers.tinygpt import build_tinygpt  # noqa: E402

CPU = torch.device("cpu")
CASES = ("fsdp2 root+PRE", "fsdp2 block+PRE", "fsdp2 block+POST", "fsdp2 block+NONE", "fsdp2 block+PRE+kept",
         "fsdp2 block+PRE+forward")
TINY = dict(num_layers=2, hidden=16, num_heads=2, vocab_size=64, num_positions=8)
PARAMS = dict(**TINY, tied=True, linear_bias=False, seq_tokens=4, microbatch=1, precision="fp32", learning_rate=1e-3,
              num_check_steps=3, num_warmup_steps=1, num_timed_steps=2, seed=1, is_checked=True)


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny tensors: a second thread would only spin."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def session_of(tmp_path, *, rank=0, world_size=1):
    return Session(rank=rank, world_size=world_size, device=CPU, run_dir=tmp_path, stream=io.StringIO())


@pytest.fixture
def paper_group(tmp_path):
    """One rank of a group whose collectives are asked for and do nothing: order and sizes without other ranks."""
    def join(rank, world_size):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
        return session_of(tmp_path, rank=rank, world_size=world_size)

    yield join
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def solo(tmp_path):
    """A gloo group of one rank, without torchrun."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield session_of(tmp_path)
    dist.destroy_process_group()


def rows(session):
    return [json.loads(line) for line in session.stream.getvalue().splitlines()]


def one_step(session, case, *, sizes, seq_tokens=4):
    """(units, calls of a step after another one, bytes of state) of a case."""
    template = build_tinygpt(seed=1, device=CPU, **sizes)
    module = fsdp_cases.shard(template, fsdp_case(name=case), session, dtype=torch.float32)
    trainer = fsdp_steps.make_trainer(session, {**PARAMS, **sizes}, module, learning_rate=1e-3)
    tokens = torch.randint(sizes["vocab_size"], (1, seq_tokens + 1), generator=torch.Generator().manual_seed(1))
    fsdp_steps.step(trainer, tokens)
    calls = fsdp_steps.logged_calls(trainer, tokens)
    return fsdp_cases.num_units(module), calls, fsdp_cases.state_bytes(module, trainer.optimizer)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("rank", "world_size"), [(0, 2), (1, 2), (2, 3), (7, 8)])
def test_every_call_and_every_byte_is_predicted(paper_group, case, rank, world_size):
    session = paper_group(rank, world_size)
    units, calls, state = one_step(session, case, sizes=TINY)
    names = ("num_layers", "hidden", "vocab_size", "num_positions")
    found = fsdp_prediction(cases=[case], num_ranks=world_size, **{name: TINY[name] for name in names})
    assert calls == found["calls"][case]
    assert state == {kind: of_ranks[rank] for kind, of_ranks in found["state_bytes"][case].items()}
    assert units == (1 if "root+" in case else 3)


@pytest.mark.parametrize("seed", range(12))
def test_prediction_holds_for_random_models(paper_group, seed):
    draw = random.Random(seed)
    heads, world_size = draw.choice([1, 2]), draw.choice([2, 3, 5, 8])
    sizes = dict(num_layers=draw.randint(1, 4), hidden=8 * heads * draw.randint(1, 3), num_heads=heads,
                 vocab_size=draw.randint(10, 99), num_positions=draw.randint(5, 40))
    rank, case = draw.randrange(world_size), draw.choice(CASES)
    _, calls, state = one_step(paper_group(rank, world_size), case, sizes=sizes)
    found = fsdp_prediction(cases=[case], num_ranks=world_size, **{k: v for k, v in sizes.items() if k != "num_heads"})
    assert calls == found["calls"][case]
    assert state == {kind: of_ranks[rank] for kind, of_ranks in found["state_bytes"][case].items()}


def checked(session, case="fsdp2 block+POST"):
    """The check row of one case beside its reference."""
    template = build_tinygpt(seed=1, device=CPU, **TINY)
    reference = fsdp_steps.make_reference(session, PARAMS, template)
    fsdp_steps.check_case(session, PARAMS, fsdp_case(name=case), template, reference)
    return rows(session)[-1]


@pytest.mark.parametrize("case", CASES)
def test_a_sharded_model_trains_as_an_unsharded_one(solo, case):
    row = checked(solo, case)
    assert row["num_compared"] == len(list(build_tinygpt(seed=1, device=CPU, **TINY).parameters())) == 20
    assert row["gradients"]["worst_rel_diff"] < 1e-5 and row["parameters"]["worst_rel_diff"] < 1e-3
    assert row["losses"] == pytest.approx(row["reference_losses"], rel=1e-5) and len(set(row["losses"])) == 3


def test_gradients_are_of_this_step_alone(solo):
    """Gradients that are not cleared add up: the second step's are then larger than a fresh model's."""
    module = fsdp_cases.shard(build_tinygpt(seed=1, device=CPU, **TINY), fsdp_case(name="fsdp2 block+PRE"), solo,
                              dtype=torch.float32)
    trainer = fsdp_steps.make_trainer(solo, PARAMS, module, learning_rate=1e-12)
    sizes = []
    for _ in range(2):
        fsdp_steps.step(trainer, torch.tensor([[1, 2, 3, 4, 5]]))
        with fsdp_cases.whole(module) as tensors:
            sizes.append(sum(float(gradient.norm()) for _, gradient in tensors.values()))
    assert sizes[0] == pytest.approx(sizes[1], rel=1e-4) and sizes[0] > 0


def test_the_reference_takes_the_whole_batch(solo):
    """On paper there are two ranks: the reference of rank 0 takes both ranks' samples, each step new ones."""
    taken = []
    pair = Session(rank=0, world_size=2, device=CPU, run_dir=solo.run_dir, stream=io.StringIO())
    with pytest.MonkeyPatch.context() as patch:
        kept = Trainer.samples
        patch.setattr(Trainer, "samples", lambda self, ids: taken.append(list(ids)) or kept(self, ids))
        reference = fsdp_steps.make_reference(pair, PARAMS, build_tinygpt(seed=1, device=CPU, **TINY))
    assert taken == [[0, 1], [2, 3], [4, 5]] and len(reference.losses) == 3
    other = Session(rank=1, world_size=2, device=CPU, run_dir=solo.run_dir, stream=io.StringIO())
    assert fsdp_steps.make_reference(other, PARAMS, build_tinygpt(seed=1, device=CPU, **TINY)) is None


def test_the_log_sees_matmuls_and_phases_and_changes_nothing():
    layer, data = nn.Linear(4, 4, bias=False), torch.randn(1, 3, 4)
    expected = layer(data).sum()
    with fsdp_cases.CallLog() as log:
        loss = layer(data).sum()
        assert log.num_matmuls == 1
        loss.backward()
    assert torch.equal(loss, expected) and log.num_matmuls == 2 and log.calls == []


def test_fsdp1_says_no_to_a_cpu(solo):
    if torch.accelerator.is_available():
        pytest.skip("needs a machine without an accelerator")
    assert "non-CPU accelerator" in fsdp_cases.fsdp1_refusal()


def test_the_baseline_is_not_sharded(solo):
    template = build_tinygpt(seed=1, device=CPU, **TINY)
    module = fsdp_cases.shard(template, {"name": "alone", "api": "alone"}, solo, dtype=torch.float32)
    assert fsdp_cases.num_units(module) == 0 and module is not template
    assert next(module.parameters()).data_ptr() != next(template.parameters()).data_ptr()


@pytest.mark.parametrize(("how", "kinds", "is_left"), [
    ("ordered", ["result", "gathered"], True), ("no_barrier", ["result"], True), ("no_destroy", ["result", "gathered"],
                                                                                  False), ("early", ["result"], False)])
def test_ways_to_leave(tmp_path, how, kinds, is_left):
    """One rank is the last one too; what differs is how far it goes and whether it takes the group down."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    session = session_of(tmp_path)
    try:
        group_exit.leave(session, how, 8)
        assert [row["kind"] for row in rows(session)] == kinds
        assert dist.is_initialized() != is_left
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def test_the_right_order_waits_for_peers_before_it_destroys(solo, monkeypatch):
    done = []
    monkeypatch.setattr(Session, "barrier", lambda self: done.append("barrier"))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: done.append("destroy"))
    group_exit.leave(solo, "ordered", 8)
    monkeypatch.undo()
    assert done == ["barrier", "destroy"]
