"""Training steps: printed figures, minima searched for, identities."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import training

LAYER = dict(seq_tokens=4096, micro_batch=1, hidden=8192)
positive = st.floats(1e-3, 1e3)


def test_printed_synchronisation():
    """Extra questions 1, 2 and 3."""
    best = training.best_bucket_bytes(gradient_bytes=2e9, alpha_s=100e-6, bytes_per_s=100e9)
    assert best / 1e6 == pytest.approx(141.42, abs=0.005)
    assert training.no_sync_saved_share(num_micro_steps=8) == 0.875
    assert training.accumulated_loss(losses=[1.0, 3.0], num_tokens=[10, 990]) == pytest.approx(
        {"token_mean": 2.98, "mean_of_means": 2.0})


def test_printed_activations_and_traffic():
    """Extra questions 14 and 17: 6.0625, 1.0625 and 0.0625 GiB; 448 MiB a layer, 83.5 ms for 80 layers at 450 GB/s."""
    kept = [training.activation_bytes_per_layer(num_heads=64, recompute=r, **LAYER) / 2**30
            for r in ("none", "selective", "full")]
    assert kept == [6.0625, 1.0625, 0.0625]
    assert training.tensor_parallel_bytes(tensor_parallel=8, **LAYER) == 448 * 2**20
    many = training.tensor_parallel_bytes(tensor_parallel=8, num_layers=80, **LAYER)
    assert 1e3 * many / 450e9 == pytest.approx(83.5, abs=0.05)


def test_printed_utilisation():
    """Extra questions 15, 16 and 54: 42.4 and 49.0 %; recomputation adds a third; 6 loader workers."""
    run = dict(tokens_per_s=1000, num_parameters=70e9, peak_flop_per_s=989.5e12)
    found = [training.mfu(**run), training.mfu(num_layers=80, hidden=8192, seq_tokens=8192, **run)]
    assert [100 * x for x in found] == pytest.approx([42.4, 49.0], abs=0.05)
    assert training.mfu(recompute=True, **run) == pytest.approx(training.mfu(**run) * 4 / 3)
    assert training.loader_workers(batch=64, sample_s=0.02, step_s=0.25) == 6


@given(size=st.floats(1e3, 1e10), alpha=st.floats(1e-7, 1e-2), rate=st.floats(1e6, 1e12), factor=st.floats(0.05, 20))
def test_no_other_bucket_exposes_less(size, alpha, rate, factor):
    args = dict(gradient_bytes=size, alpha_s=alpha, bytes_per_s=rate)
    best = training.best_bucket_bytes(**args)
    exposed = training.exposed_comm_s(bucket_bytes=best, **args)
    assert training.exposed_comm_s(bucket_bytes=factor * best, **args) >= exposed * (1 - 1e-12)


@given(k=st.integers(1, 10**4))
def test_saved_share_by_counting(k):
    """Slow version: of k micro-steps one reduces."""
    assert training.no_sync_saved_share(num_micro_steps=k) == pytest.approx(1 - 1 / k)


@given(rows=st.lists(st.tuples(st.floats(0, 10), st.integers(1, 50)), min_size=1, max_size=8))
def test_token_mean_by_writing_out_every_token(rows):
    losses, tokens = zip(*rows)
    every = [loss for loss, n in rows for _ in range(n)]
    found = training.accumulated_loss(losses=losses, num_tokens=tokens)
    assert found["token_mean"] == pytest.approx(sum(every) / len(every))
    equal = training.accumulated_loss(losses=losses, num_tokens=[7] * len(losses))
    assert equal["token_mean"] == pytest.approx(equal["mean_of_means"])


@given(s=st.integers(1, 8192), h=st.integers(1, 8192), a=st.integers(1, 128), t=st.integers(1, 16))
def test_recomputing_more_keeps_less(s, h, a, t):
    kept = [training.activation_bytes_per_layer(
        seq_tokens=s, micro_batch=2, hidden=h, num_heads=a, recompute=r, tensor_parallel=t)
        for r in ("none", "selective", "full")]
    assert kept[0] > kept[1] > kept[2] > 0
    assert training.tensor_parallel_bytes(seq_tokens=s, micro_batch=1, hidden=h, tensor_parallel=1) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: training.exposed_comm_s(gradient_bytes=1, bucket_bytes=0, alpha_s=1, bytes_per_s=1), "bucket_bytes=0"),
        (lambda: training.best_bucket_bytes(gradient_bytes=-1, alpha_s=1, bytes_per_s=1), "gradient_bytes=-1"),
        (lambda: training.no_sync_saved_share(num_micro_steps=0), "num_micro_steps=0"),
        (lambda: training.accumulated_loss(losses=[1.0], num_tokens=[0]), "num_tokens="),
        (lambda: training.accumulated_loss(losses=[1.0], num_tokens=[1, 2]), "one for each of losses"),
        (lambda: training.activation_bytes_per_layer(num_heads=1, recompute="some", **LAYER), "recompute='some'"),
        (lambda: training.flop_per_token(num_parameters=0), "num_parameters=0"),
        (lambda: training.mfu(tokens_per_s=1, num_parameters=1, peak_flop_per_s=0), "peak_flop_per_s=0"),
        (lambda: training.tensor_parallel_bytes(tensor_parallel=0, **LAYER), "world_size=0"),
        (lambda: training.loader_workers(batch=1, sample_s=1, step_s=0), "step_s=0"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
