"""Fits, held-out sizes, crossovers and the model curves, against hand numbers and slow searches."""

import math

import pytest

from labkit.calc.collective_fit import (
    crossover_bytes,
    fit_relative,
    hold_out,
    label_bytes,
    model_time_s,
    size_grid,
    size_label,
    total_wire_bytes,
)
from labkit.calc.collective_plan import forced_env, parse_pairs, plan_cells
from labkit.calc.collectives import busbw_factor


def line(sizes, alpha, rate):
    return [alpha + size / rate for size in sizes]


def test_an_exact_line_is_found_from_half_of_the_sizes():
    sizes = size_grid(min_bytes=1024, max_bytes=2**28)
    found = hold_out(sizes_bytes=sizes, times_s=line(sizes, 20e-6, 5e9))
    assert found["alpha_s"] == pytest.approx(20e-6) and found["bytes_per_s"] == pytest.approx(5e9)
    assert found["fitted_bytes"] == sizes[::2] and found["held_out_bytes"] == sizes[1::2]
    assert found["worst_held_out_pct"] < 1e-6


def test_a_size_that_is_held_out_cannot_move_the_fit():
    sizes = [1, 2, 4, 8, 16, 32]
    times = line(sizes, 3.0, 2.0)
    odd = [time * (10 if i % 2 else 1) for i, time in enumerate(times)]
    found, clean = hold_out(sizes_bytes=sizes, times_s=odd), hold_out(sizes_bytes=sizes, times_s=times)
    assert found["alpha_s"] == clean["alpha_s"] and found["bytes_per_s"] == clean["bytes_per_s"]
    assert found["worst_held_out_pct"] == pytest.approx(900)


def test_the_relative_fit_is_the_least_relative_error():
    """A slow search around the answer finds nothing better."""
    sizes, times = [1e3, 1e4, 1e6, 1e8], [11e-6, 12e-6, 130e-6, 9e-3]
    found = fit_relative(sizes_bytes=sizes, times_s=times)
    loss = lambda alpha, rate: sum(((alpha + s / rate) / t - 1) ** 2 for s, t in zip(sizes, times))  # noqa: E731
    best = loss(found["alpha_s"], found["bytes_per_s"])
    for a in (0.97, 0.99, 1.0, 1.01, 1.03):
        for b in (0.97, 0.99, 1.0, 1.01, 1.03):
            assert loss(found["alpha_s"] * a, found["bytes_per_s"] * b) >= best - 1e-12


def test_small_messages_count_as_much_as_large_ones():
    sizes = size_grid(min_bytes=1024, max_bytes=2**28)
    times = line(sizes, 20e-6, 5e9)
    times[-1] *= 1.3  # plain least squares would give all weight to this one
    assert fit_relative(sizes_bytes=sizes, times_s=times)["alpha_s"] == pytest.approx(20e-6, rel=0.1)


def test_latency_is_never_negative():
    found = fit_relative(sizes_bytes=[1, 10], times_s=[0.5, 10.0])
    assert found["alpha_s"] == 0 and found["bytes_per_s"] > 0


@pytest.mark.parametrize(("sizes", "times", "word"), [
    ([1, 2], [1.0], "times_s"), ([1, 1], [1.0, 2.0], "sizes_bytes"), ([1, 2], [0.0, 1.0], "times_s"),
    ([1, 2], [2.0, 1.0], "slope")])
def test_what_cannot_be_fitted_is_refused(sizes, times, word):
    with pytest.raises(ValueError, match=word):
        fit_relative(sizes_bytes=sizes, times_s=times)


def test_lines_cross_where_a_search_says():
    first, second = {"alpha_s": 5e-6, "bytes_per_s": 2e9}, {"alpha_s": 15e-6, "bytes_per_s": 8e9}
    size = crossover_bytes(first=first, second=second)
    at = lambda fit, s: fit["alpha_s"] + s / fit["bytes_per_s"]  # noqa: E731
    assert at(first, size * 0.99) < at(second, size * 0.99) and at(first, size * 1.01) > at(second, size * 1.01)
    assert crossover_bytes(first=second, second=first) == pytest.approx(size)
    assert crossover_bytes(first=first, second={"alpha_s": 6e-6, "bytes_per_s": 1e9}) is None
    assert crossover_bytes(first=first, second=first) is None


def test_labels_and_sizes():
    assert size_grid(min_bytes=1024, max_bytes=2**28) == [1024 * 4**i for i in range(10)]
    for size in (8, 1024, 1536, 2**20, 2**32, 1001):
        assert label_bytes(size_label(size)) == size
    with pytest.raises(ValueError, match="label"):
        label_bytes("all of it")


def ring_all_reduce_bytes(num_ranks, chunk_bytes):
    """Play a ring: reduce-scatter, then all-gather; count what each hop sends."""
    sent = 0
    for _pass in range(2):
        for _step in range(num_ranks - 1):
            sent += num_ranks * chunk_bytes
    return sent


@pytest.mark.parametrize("n", [2, 3, 8])
def test_fewest_bytes_on_the_wire(n):
    size = 120 * n
    assert total_wire_bytes("all_reduce", size_bytes=size, world_size=n) == ring_all_reduce_bytes(n, size // n)
    for collective in ("all_gather", "reduce_scatter", "all_to_all"):
        pieces = n * (n - 1)  # each rank has a piece of size/n for each other rank
        assert total_wire_bytes(collective, size_bytes=size, world_size=n) == pieces * size / n
    for collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"):
        per_rank = total_wire_bytes(collective, size_bytes=size, world_size=n) / n
        assert per_rank == pytest.approx(size * busbw_factor(collective, world_size=n))


def test_model_protocols_trade_latency_for_rate():
    at = lambda protocol, size, ratio: model_time_s(  # noqa: E731
        "Ring", protocol, size_bytes=size, world_size=4, alpha_s=1e-6, bytes_per_s=1e9, latency_ratio=ratio)
    assert at("LL", 0, 1) == pytest.approx(6e-6) and at("Simple", 0, 4) == pytest.approx(24e-6)
    assert at("LL", 1e9, 1) == pytest.approx(3.0 + 6e-6) and at("Simple", 1e9, 4) == pytest.approx(1.5 + 24e-6)
    assert at("LL128", 1e9, 2) == pytest.approx(1.5 * 128 / 120 + 12e-6)
    tree = model_time_s("Tree", "Simple", size_bytes=1e9, world_size=4, alpha_s=1e-6, bytes_per_s=1e9)
    assert tree == pytest.approx(2 * math.log2(4) * 1e-6 + 2.0)
    two = [model_time_s(name, "LL", size_bytes=1e9, world_size=2, alpha_s=1e-6, bytes_per_s=1e9)
           for name in ("Ring", "Tree")]
    assert two[0] == two[1] == pytest.approx(2.0 + 2e-6)  # half of the bytes are flags
    with pytest.raises(ValueError, match="algorithm"):
        model_time_s("ring", "LL", size_bytes=1, world_size=2, alpha_s=0, bytes_per_s=1)


PLAN = dict(world_size=2, sizes_bytes=[1024, 4096], collectives=["all_reduce", "broadcast"], large_bytes=[2**30],
            combos=["Ring+LL", "Tree+Simple"], channels=[1, 4], pair_sets=["0-1 2-3"], with_directions=True,
            with_logs=True, num_processes=3, env={"NCCL_NVLS_ENABLE": "0"})


def test_every_case_is_in_every_process_once():
    cells = plan_cells(**PLAN)
    cases = ["auto", "Ring+LL", "Tree+Simple", "ch1", "ch4", "pairs0", "directions"]
    for process in range(3):
        own = [cell["name"] for cell in cells if cell["name"].startswith(f"p{process}-")]
        assert sorted(name.removeprefix(f"p{process}-") for name in own) == sorted(cases)
    assert [cell["name"] for cell in cells[-3:]] == ["log-auto", "log-Ring+LL", "log-Tree+Simple"]
    assert len({cell["name"] for cell in cells}) == len(cells) == 24
    assert [cells[0]["name"], cells[7]["name"], cells[14]["name"]] == ["p0-auto", "p1-Ring+LL", "p2-Tree+Simple"]
    assert cells[0]["sizes"] == {"all_reduce": [1024, 4096, 2**30], "broadcast": [1024, 4096]}


def test_graphs_are_logged_while_they_are_timed_once():
    cells = plan_cells(**PLAN, timing="both")
    assert [cell["name"] for cell in cells if cell["name"].startswith("log-")] == ["log-auto"]
    logging = [cell["name"] for cell in cells if "TUNING" in cell["env"].get("NCCL_DEBUG_SUBSYS", "")]
    assert logging == ["p0-Ring+LL", "p0-Tree+Simple", *(f"p{p}-ch{n}" for p in range(3) for n in (1, 4)), "log-auto"]


def test_other_collectives_take_every_second_of_dense_sizes():
    sizes = [1024, 2048, 4096, 8192]
    plan = lambda factor: plan_cells(  # noqa: E731
        world_size=2, sizes_bytes=sizes, collectives=["all_reduce", "broadcast"], factor=factor)
    (dense,), (coarse,) = plan(2), plan(4)
    assert dense["sizes"] == {"all_reduce": sizes, "broadcast": [1024, 4096]}
    assert coarse["sizes"] == {"all_reduce": sizes, "broadcast": sizes}


def test_only_forced_cells_force_and_only_all_reduce():
    for cell in plan_cells(**PLAN):
        assert cell["forced"] == ("NCCL_ALGO" in cell["env"]) and cell["env"]["NCCL_NVLS_ENABLE"] == "0"
        assert not cell["forced"] or list(cell["sizes"]) == ["all_reduce"]
    channel = next(cell for cell in plan_cells(**PLAN) if cell["name"] == "p0-ch4")
    limits = ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS")
    assert [channel["env"][name] for name in limits] == ["4"] * 4
    assert "TUNING" in channel["env"]["NCCL_DEBUG_SUBSYS"]
    log = next(cell for cell in plan_cells(**PLAN) if cell["name"] == "log-Ring+LL")
    assert log["num_samples"] == 0 and log["env"]["NCCL_ALGO"] == "Ring" and log["env"]["NCCL_DEBUG"] == "INFO"


@pytest.mark.parametrize(("call", "word"), [
    (lambda: forced_env("Ring"), "combos='Ring'"), (lambda: forced_env("ring+LL"), "Ring\\+LL128"),
    (lambda: parse_pairs("0-1 1-2"), "disjoint"), (lambda: parse_pairs("0,1"), "pair_sets"),
    (lambda: parse_pairs(""), "pair_sets"), (lambda: parse_pairs("0-1-2"), "pair_sets")])
def test_plans_refuse_by_name(call, word):
    with pytest.raises(ValueError, match=word):
        call()
