"""Bucket prediction: hand numbers first, then torch's own assignment function and a live reducer as oracles."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.calc import ddp
from labkit.calc.tinygpt import tinygpt_parameters

MIB = 2**20
# Elements of one bucket-filling float32 parameter of that many MiB.
mib = lambda n: [n * MIB // 4]  # noqa: E731


def test_hand_example():
    # Ready order is d, c, b, a. Cap 4: d (1) + c (2) stay open at 3; b (30) goes in whole: 33. Then a alone.
    parameters = [["a", mib(1)], ["b", mib(30)], ["c", mib(2)], ["d", mib(1)]]
    buckets = ddp.rebuilt_buckets(parameters=parameters, bucket_cap_mib=4)
    assert [b["names"] for b in buckets] == [["d", "c", "b"], ["a"]]
    assert [b["bytes"] for b in buckets] == [33 * MIB, MIB]


def test_a_bucket_closes_at_exactly_the_cap_and_not_one_element_before():
    at = [["a", mib(1)], ["b", mib(1)]]
    below = [["a", mib(1)], ["b", [MIB // 4 - 1]]]
    assert ddp.bucket_sizes_bytes(parameters=at, bucket_cap_mib=1) == [MIB, MIB]
    assert ddp.bucket_sizes_bytes(parameters=below, bucket_cap_mib=1) == [2 * MIB - 4]


def test_the_default_has_a_small_first_bucket_and_an_explicit_25_has_not():
    parameters = [[f"p{i}", mib(1)] for i in range(30)]
    assert ddp.bucket_sizes_bytes(parameters=parameters) == [MIB, 25 * MIB, 4 * MIB]
    assert ddp.bucket_sizes_bytes(parameters=parameters, bucket_cap_mib=25) == [25 * MIB, 5 * MIB]


def test_each_dtype_has_its_own_buckets():
    # Ready order: c (f32), b (f64), a (f32). f32 closes at c + a; f64 is left over.
    parameters = [["a", mib(2)], ["b", [MIB // 8], "float64"], ["c", mib(2)]]
    buckets = ddp.rebuilt_buckets(parameters=parameters, bucket_cap_mib=4)
    assert [(b["names"], b["bytes"]) for b in buckets] == [(["c", "a"], 4 * MIB), (["b"], MIB)]
    initial = ddp.initial_buckets(parameters=parameters, bucket_cap_mib=4)
    assert [b["names"] for b in initial] == [["b"], ["a", "c"]]
    assert {b["limit_bytes"] for b in initial} == {None}


def test_before_the_rebuild_the_cap_is_ignored_unless_unused_parameters_are_looked_for():
    parameters = [["a", mib(1)], ["b", mib(30)], ["c", mib(2)]]
    one = ddp.initial_buckets(parameters=parameters, bucket_cap_mib=1)
    assert [b["bytes"] for b in one] == [33 * MIB]
    searched = ddp.initial_buckets(parameters=parameters, bucket_cap_mib=1, find_unused_parameters=True)
    assert [b["names"] for b in searched] == [["c"], ["b"], ["a"]]
    static = ddp.initial_buckets(
        parameters=parameters, bucket_cap_mib=1, find_unused_parameters=True, static_graph=True
    )
    assert len(static) == 1


@pytest.mark.parametrize(
    ("shape", "counts", "largest_at_100"),
    [
        ({}, [50, 37, 13, 4], 108.0469),
        ({"tied": False}, [51, 38, 14, 5], 108.0469),
        ({"linear_bias": True}, [50, 37, 13, 4], 108.1523),
    ],
)
def test_report_table(shape, counts, largest_at_100):
    """Report section 3.4 and erratum E14; the full lists were also compared with a live reducer at this size."""
    assert list(ddp.tinygpt_bucket_counts(**shape).values()) == counts
    largest = list(ddp.tinygpt_largest_bucket_mib(**shape).values())
    assert largest[0] == 93.75 == 32000 * 768 * 4 / MIB
    assert largest[3] == pytest.approx(largest_at_100, abs=5e-5)


def test_report_largest_buckets():
    # 93.75 (token table) + 1.5 (512 positions) + 2 LayerNorm vectors of 768 floats.
    expected = 93.75 + 1.5 + 2 * 768 * 4 / MIB
    largest = ddp.tinygpt_largest_bucket_mib()
    assert largest["4 MiB"] == largest["25 MiB"] == expected == pytest.approx(95.2559, abs=5e-5)


def test_erratum_e14_variants():
    assert ddp.tinygpt_largest_bucket_mib(layernorm_bias=False)["25 MiB"] == pytest.approx(95.25, abs=0.005)
    assert ddp.tinygpt_bucket_counts(num_positions=256)["1 MiB"] == 49
    default = ddp.bucket_sizes_bytes(parameters=tinygpt_parameters())
    assert (len(default), round(max(default) / MIB, 2)) == (13, 113.26)
    assert [round(b / MIB, 1) for b in ddp.bucket_sizes_bytes(parameters=tinygpt_parameters(), stage="initial")] == [
        419.4
    ]


def test_tinygpt_counts_by_hand():
    # 12 d^2 per block, 4 LayerNorm vectors per block, two tables, the final LayerNorm.
    d = 768
    assert ddp.num_parameters(parameters=tinygpt_parameters()) == 12 * (12 * d * d + 4 * d) + (32000 + 512) * d + 2 * d
    assert ddp.gradient_bytes(parameters=tinygpt_parameters()) == 439_769_088
    assert len(tinygpt_parameters(num_layers=1, linear_bias=True, tied=False)) == 2 + 4 * 2 + 4 + 2 + 1


def test_report_collectives():
    """Report section 3.5: 13, 13 and 104; and `no_sync` around backward only changes nothing."""
    calls = lambda scope, m: ddp.collectives_per_step(num_buckets=13, num_micro_steps=m, no_sync_scope=scope)  # noqa: E731
    assert [calls("none", 1), calls("both", 8), calls("none", 8), calls("backward", 8)] == [13, 13, 104, 104]
    assert calls("forward", 8) == 13


def test_ring_bytes_step_by_step():
    # Slow version: n - 1 reduce-scatter steps and n - 1 all-gather steps, each sending one n-th of the bucket.
    sizes, n = [4096, 1024], 8
    sent = sum(size / n for size in sizes for _ in range(2 * (n - 1)))
    assert ddp.wire_bytes_per_rank(sizes_bytes=sizes, world_size=n, num_synchronised=3) == 3 * sent
    assert ddp.wire_bytes_per_rank(sizes_bytes=sizes, world_size=1) == 0


dtypes = st.sampled_from(["float32", "float64", "bfloat16"])
shapes = st.lists(st.tuples(st.integers(0, 3000), dtypes), min_size=1, max_size=25)


@given(shapes=shapes, cap_kib=st.integers(1, 40), searched=st.booleans(), implicit=st.booleans())
@settings(max_examples=150, deadline=None)
def test_matches_torch_assignment(shapes, cap_kib, searched, implicit):
    """Oracle: the C++ function that DDP itself calls, on the same tensors, in both orders."""
    torch = pytest.importorskip("torch")
    dist = pytest.importorskip("torch.distributed")
    parameters = [[f"p{i}", [n], dtype] for i, (n, dtype) in enumerate(shapes)]
    tensors = [torch.empty(n, dtype=getattr(torch, dtype)) for n, dtype in shapes]
    first, cap = (ddp.DEFAULT_FIRST_BUCKET_BYTES, ddp.DEFAULT_CAP_BYTES) if implicit else (cap_kib * 1024,) * 2
    cap_mib = None if implicit else cap_kib / 1024

    limits = [first, cap] if searched else [ddp.NO_LIMIT]
    indices, _ = dist._compute_bucket_assignment_by_size(tensors, limits, [False] * len(tensors))
    seen = ddp.initial_buckets(parameters=parameters, bucket_cap_mib=cap_mib, find_unused_parameters=searched)
    assert [b["names"] for b in seen] == [[f"p{i}" for i in bucket] for bucket in reversed(indices)]

    order = list(range(len(tensors)))[::-1]
    indices, _ = dist._compute_bucket_assignment_by_size(
        [tensors[i] for i in order], [first, cap], [False] * len(tensors), order
    )
    seen = ddp.rebuilt_buckets(parameters=parameters, bucket_cap_mib=cap_mib)
    # Full buckets come in the order in which they close; torch leaves the order of the unfilled last ones open.
    names = [[f"p{i}" for i in bucket] for bucket in indices]
    num_full = sum(b["bytes"] >= b["limit_bytes"] for b in seen)
    assert [b["names"] for b in seen[:num_full]] == names[:num_full]
    assert sorted(b["names"] for b in seen) == sorted(names)


@given(shapes=shapes, cap_kib=st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_invariants(shapes, cap_kib):
    """Nothing is lost or cut; only a dtype's last bucket is below the cap; a larger cap never gives more buckets."""
    parameters = [[f"p{i}", [n], dtype] for i, (n, dtype) in enumerate(shapes)]
    buckets = ddp.rebuilt_buckets(parameters=parameters, bucket_cap_mib=cap_kib / 1024)
    names = [name for bucket in buckets for name in bucket["names"]]
    assert sorted(names) == sorted(name for name, _, _ in parameters)
    assert sum(b["bytes"] for b in buckets) == ddp.gradient_bytes(parameters=parameters)
    below = [b for b in buckets if b["bytes"] < cap_kib * 1024]
    assert len(below) <= len({dtype for _, dtype in shapes})
    twice = ddp.rebuilt_buckets(parameters=parameters, bucket_cap_mib=2 * cap_kib / 1024)
    assert len(twice) <= len(buckets)


@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}, {"static_graph": True}])
@pytest.mark.parametrize("cap_mib", [None, 1, 0.5])
def test_matches_a_live_reducer(options, cap_mib):
    """Oracle: the log of a real DDP on one gloo rank, for a model registered out of the order of use, two dtypes."""
    torch = pytest.importorskip("torch")
    dist = pytest.importorskip("torch.distributed")

    class Crossed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.last = torch.nn.Linear(512, 512)
            self.first = torch.nn.Linear(512, 512)
            self.middle = torch.nn.Linear(512, 512, dtype=torch.float64)

        def forward(self, x):
            return self.last(self.middle(self.first(x).double()).float())

    order: list[str] = []
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = torch.nn.parallel.DistributedDataParallel(Crossed(), bucket_cap_mb=cap_mib, **options)
        parameters = [
            [name, list(p.shape), str(p.dtype).removeprefix("torch.")] for name, p in model.module.named_parameters()
        ]
        for name, parameter in model.module.named_parameters():
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))
        # The log is refreshed in forward: rebuilt sizes appear in the third step, with a static graph in the fourth.
        for _ in range(4):
            order.clear()
            model(torch.ones(2, 512)).sum().backward()
        log = model._get_ddp_logging_data()
    finally:
        dist.destroy_process_group()
    sizes = lambda key: [int(size) for size in log[key].split(", ")] if log.get(key) else None  # noqa: E731
    initial = ddp.initial_buckets(parameters=parameters, bucket_cap_mib=cap_mib, **options)
    assert sizes("bucket_sizes") == [b["bytes"] for b in initial]
    if options.get("find_unused_parameters"):
        assert sizes("rebuilt_bucket_sizes") is None
    else:
        rebuilt = ddp.rebuilt_buckets(parameters=parameters, bucket_cap_mib=cap_mib, ready_order=order)
        assert sizes("rebuilt_bucket_sizes") == [b["bytes"] for b in rebuilt]


def test_sparse_gradients_are_alone():
    parameters = [["table", [8]], ["a", [8]], ["b", [8]]]
    buckets = ddp.rebuilt_buckets(parameters=parameters, bucket_cap_mib=1, sparse=["table"])
    assert [b["names"] for b in buckets] == [["table"], ["b", "a"]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ddp.bucket_sizes_bytes(parameters=[]), "parameters"),
        (lambda: ddp.bucket_sizes_bytes(parameters=[["a", [1]], ["a", [1]]]), "'a' appears twice"),
        (lambda: ddp.bucket_sizes_bytes(parameters=[["a", [1], "float12"]]), "float12"),
        (lambda: ddp.bucket_sizes_bytes(parameters=[["a", [-1]]]), "shape of a=-1"),
        (lambda: ddp.bucket_sizes_bytes(parameters=["ab"]), "parameters"),
        (lambda: ddp.bucket_sizes_bytes(parameters=[["a", [1]]], bucket_cap_mib=0), "bucket_cap_mib=0"),
        (lambda: ddp.bucket_sizes_bytes(parameters=[["a", [1]]], bucket_cap_mib=float("nan")), "bucket_cap_mib=nan"),
        (lambda: ddp.bucket_sizes_bytes(parameters=[["a", [1]]], stage="later"), "stage='later'"),
        (lambda: ddp.rebuilt_buckets(parameters=[["a", [1]]], ready_order=["b"]), "ready_order"),
        (lambda: ddp.bucket_sizes_bytes(parameters=[["a", [1]]], stage="initial", ready_order=["a"]), "ready_order"),
        (lambda: ddp.collectives_per_step(num_buckets=0), "num_buckets=0"),
        (lambda: ddp.collectives_per_step(num_buckets=1, no_sync_scope="all"), "no_sync_scope='all'"),
        (lambda: ddp.wire_bytes_per_rank(sizes_bytes=[1], world_size=0), "world_size=0"),
        (lambda: ddp.wire_bytes_per_rank(sizes_bytes=[-1], world_size=2), "sizes_bytes=-1"),
        (lambda: tinygpt_parameters(hidden=0), "hidden=0"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
