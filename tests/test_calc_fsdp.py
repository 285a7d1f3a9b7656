"""FSDP's closed forms against hand numbers, a slow simulation, ZeRO's formulas and each other."""

import random

import pytest

from labkit.calc.fsdp import (
    collective_counts,
    fsdp_case,
    in_order,
    message_elements,
    shard_elements,
    step_calls,
    unit_bytes,
    units_alive,
    wrap_units,
)
from labkit.calc.fsdp_prediction import exposed_by_case, exposed_time_s, fsdp_prediction
from labkit.calc.sharding import model_state_bytes, step_traffic_bytes
from labkit.calc.tinygpt import tinygpt_parameters

FSDP1 = ("root+PRE", "block+PRE", "block+POST", "block+NONE", "block+PRE+no-limiter")
FSDP2 = ("fsdp2 root+PRE", "fsdp2 block+PRE", "fsdp2 block+POST", "fsdp2 block+NONE", "fsdp2 block+PRE+kept",
         "fsdp2 block+PRE+forward")


def test_the_reports_counts():
    assert collective_counts(case="root+PRE") == {"ag": 1, "rs": 1, "forward_ag": 1, "backward_ag": 0}
    for case in FSDP1[1:]:
        assert collective_counts(case=case) == {"ag": 25, "rs": 13, "forward_ag": 13, "backward_ag": 12}
    assert collective_counts(case="fsdp2 block+PRE+kept") == {"ag": 13, "rs": 13, "forward_ag": 13, "backward_ag": 0}


@pytest.mark.parametrize("case", [*FSDP1, *FSDP2])
@pytest.mark.parametrize("num_layers", [1, 2, 5])
def test_every_unit_is_gathered_before_use_and_scattered_once(case, num_layers):
    calls = step_calls(case=case, num_layers=num_layers)
    units = list(wrap_units(parameters=tinygpt_parameters(num_layers=num_layers), wrap=fsdp_case(name=case)["wrap"]))
    assert sorted(call[2] for call in calls if call[1] == "reduce_scatter") == sorted(units)
    assert {call[2] for call in calls if call[:2] == ["forward", "all_gather"]} == set(units)
    at = [call[3] for call in calls]
    assert at == sorted(at), "calls are in the order of computation"
    assert calls[-1][2] == "root" and calls[-1][3] == 4 * num_layers + 1 + 2 + 8 * num_layers
    if not fsdp_case(name=case)["keeps_parameters"] and len(units) > 1:
        for i in range(num_layers):
            again = [n for n, call in enumerate(calls) if call[:3] == ["backward", "all_gather", f"blocks.{i}"]]
            gone = [n for n, call in enumerate(calls) if call[:3] == ["backward", "reduce_scatter", f"blocks.{i}"]]
            assert len(again) == len(gone) == 1 and again < gone


def test_prefetch_moves_a_gather_across_one_blocks_products():
    """Two blocks by hand: 4 + 4 + 1 forward, 2 for the head backward, then 8 for each block."""
    when = {case: [call[3] for call in step_calls(case=f"block+{case}", num_layers=2)
                   if call[:2] == ["backward", "all_gather"]] for case in ("PRE", "POST", "NONE")}
    assert when == {"PRE": [9, 11], "POST": [11, 19], "NONE": [11, 19]}
    order = {case: [call[1] for call in step_calls(case=f"block+{case}", num_layers=2)[4:]]
             for case in ("POST", "NONE")}
    assert order["POST"] == ["all_gather", "reduce_scatter", "reduce_scatter", "reduce_scatter"]
    assert order["NONE"] == ["reduce_scatter", "all_gather", "reduce_scatter", "reduce_scatter"]
    ahead = [call[3] for call in step_calls(case="fsdp2 block+PRE+forward", num_layers=3) if call[0] == "forward"]
    assert ahead == [0, 0, 0, 4]


def flat_owner(parameters, num_ranks, element_bytes):
    """FSDP1's flat parameter written out element by element: (length, real elements of each rank)."""
    flat = []
    for shape in parameters:
        while len(flat) * element_bytes % 16:
            flat.append(0)
        size = 1
        for length in shape:
            size *= length
        flat += [1] * size
    while len(flat) % num_ranks:
        flat.append(0)
    chunk = len(flat) // num_ranks
    return len(flat), [sum(flat[r * chunk:(r + 1) * chunk]) for r in range(num_ranks)]


def row_owner(parameters, num_ranks):
    """FSDP2's rows dealt out like torch.chunk, each rank's share padded to the largest."""
    total, kept = 0, [0] * num_ranks
    for rows, *rest in parameters:
        width = rest[0] if rest else 1
        share = -(-rows // num_ranks)
        total += share * num_ranks * width
        for row in range(rows):
            kept[row // share] += width
    return total, kept


@pytest.mark.parametrize("seed", range(40))
def test_messages_and_shards_equal_the_written_out_ones(seed):
    draw = random.Random(seed)
    shapes = [[draw.randint(1, 40)] + ([draw.randint(1, 9)] if draw.random() < 0.7 else []) for _ in
              range(draw.randint(1, 6))]
    n, element_bytes = draw.randint(1, 9), draw.choice([2, 4])
    named = [[f"p{i}", shape] for i, shape in enumerate(shapes)]
    for api, expected in (("fsdp1", flat_owner(shapes, n, element_bytes)), ("fsdp2", row_owner(shapes, n))):
        of = dict(parameters=named, num_ranks=n, api=api, element_bytes=element_bytes)
        assert (message_elements(**of), shard_elements(**of)) == expected
        assert sum(shard_elements(**of)) == sum(s[0] * (s[1] if len(s) > 1 else 1) for s in shapes)


@pytest.mark.parametrize("seed", range(25))
def test_exposed_time_equals_a_walk_in_small_steps(seed):
    """Whole milliseconds, one at a time: communication is one queue, computation waits for what it needs."""
    draw = random.Random(seed)
    layers, case = draw.randint(1, 4), draw.choice([*FSDP1, *FSDP2])
    calls = step_calls(case=case, num_layers=layers)
    comm = {unit: float(draw.randint(1, 6)) for _, _, unit, _ in calls}
    block, head = draw.randint(0, 5), draw.randint(0, 5)
    found = exposed_time_s(calls=calls, comm_s=comm, block_s=block, head_s=head, num_layers=layers)
    work = [(4 * i, f"blocks.{i}", block) for i in range(layers)] + [(4 * layers, "root", head)]
    work += [(4 * layers + 1, "root", 2 * head)]
    work += [(4 * layers + 3 + 8 * k, f"blocks.{layers - 1 - k}", 2 * block) for k in range(layers)]
    has_blocks = fsdp_case(name=case)["wrap"] == "block"
    queue, whole, active, left, computed, exposed, busy, t = [], set(), None, 0.0, 0, 0, 0, 0
    todo, current, remaining = list(calls), None, 0
    while True:
        if current is None and work:
            before, _, remaining = work[0]
            while todo and todo[0][3] <= before:
                queue.append(todo.pop(0))
                if queue[-1][1] == "all_gather":
                    whole.discard(queue[-1][2])
            current = work.pop(0)
        if current is None and not work:
            queue += todo
            todo = []
        if active is None and queue:
            active = queue.pop(0)
            left = comm[active[2]]
        ready = current is not None and {"root", current[1] if has_blocks else "root"} <= whole
        if current is not None and ready and remaining == 0:
            current = None
            continue
        if current is None and active is None and not queue and not todo and not work:
            break
        computed, busy = computed + ready, busy + (active is not None)
        exposed += active is not None and not ready
        t += 1
        if ready:
            remaining -= 1
        if active is not None:
            left -= 1
            if left == 0:
                whole |= {active[2]} if active[1] == "all_gather" else set()
                active = None
        if current is not None and ready and remaining == 0:
            current = None
    assert found == {"comm_s": busy, "exposed_s": exposed, "step_s": t}


def test_pre_hides_gathers_and_none_hides_nothing():
    """One block's computation is as long as its gather: PRE can hide it, POST and NONE ask too late."""
    parameters = tinygpt_parameters(num_layers=4)
    times = exposed_by_case(cases=FSDP1, parameters=parameters, num_ranks=2, element_bytes=2, busbw_bytes_per_s=1e11,
                            block_s=1e-3, head_s=1e-3, num_layers=4)
    exposed, comm = times["exposed_floor_ms"], times["comm_floor_ms"]
    assert exposed["block+PRE"] < exposed["block+POST"] <= exposed["block+NONE"] == pytest.approx(comm["block+NONE"])
    assert exposed["root+PRE"] == pytest.approx(comm["root+PRE"]) and comm["root+PRE"] < comm["block+PRE"]


def test_state_is_zero_stage_3_and_traffic_is_three_passes_less_the_root():
    found = fsdp_prediction(cases=["root+PRE", "block+PRE", "fsdp2 block+PRE+kept"], num_ranks=8, element_bytes=2)
    psi = found["num_parameters"]
    state = found["state_bytes"]["block+PRE"]
    assert [sum(of_rank) for of_rank in zip(*state.values())] == [
        model_state_bytes(num_parameters=psi, num_ranks=8, stage=3, parameter_bytes=4, gradient_bytes=4,
                          optimizer_bytes=8)] * 8
    root = unit_bytes(parameters=tinygpt_parameters(num_positions=256), case="block+PRE", num_ranks=8,
                      element_bytes=2)["root"]
    three = step_traffic_bytes(num_parameters=psi, stage=3, num_ranks=8)
    assert found["wire_bytes_per_rank"]["block+PRE"] == pytest.approx(three - root * 7 / 8)
    two = step_traffic_bytes(num_parameters=psi, stage=0, num_ranks=8)
    assert found["wire_bytes_per_rank"]["root+PRE"] == found["wire_bytes_per_rank"]["fsdp2 block+PRE+kept"] == two


def test_the_reports_ratio_of_bytes():
    """The audit's 1.387 = bytes under block / bytes under root."""
    found = fsdp_prediction(cases=["root+PRE", "block+PRE"], num_ranks=8, element_bytes=2)
    ratio = found["wire_bytes_per_rank"]["block+PRE"] / found["wire_bytes_per_rank"]["root+PRE"]
    assert round(ratio, 3) in (1.387, 1.388) and found["units"] == {"root": 1, "block": 13}
    assert found["gathered_bytes"]["root+PRE"] == 2 * found["num_parameters"]
    assert found["loopback_floor_bytes"]["root+PRE"] == pytest.approx(1.5 * found["wire_bytes_per_rank"]["root+PRE"])


def test_whole_units():
    assert units_alive(case="block+NONE") == {"root": 1, "blocks": 1}
    assert units_alive(case="block+PRE", num_layers=1) == {"root": 1, "blocks": 1}
    assert units_alive(case="root+PRE") == {"root": 1, "blocks": 0}


def test_order_of_cases():
    assert in_order(cases=sorted([*FSDP1, *FSDP2, "alone"])) == [
        "root+PRE", "block+PRE", "block+PRE+no-limiter", "block+POST", "block+NONE", "fsdp2 root+PRE",
        "fsdp2 block+PRE", "fsdp2 block+PRE+forward", "fsdp2 block+PRE+kept", "fsdp2 block+POST", "fsdp2 block+NONE",
        "alone"]


@pytest.mark.parametrize(("call", "message"), [
    (lambda: fsdp_case(name="block"), r"name='block': expected \[fsdp2 \]root\|block\+PRE"),
    (lambda: fsdp_case(name="fsdp2 block+PRE+no-limiter"), "for fsdp2 at most one of \\+kept"),
    (lambda: fsdp_case(name="block+PRE+kept"), "for fsdp1 at most one of \\+no-limiter"),
    (lambda: step_calls(case="block+PRE", num_layers=0), "num_layers=0: expected an integer, 1 or more"),
    (lambda: wrap_units(parameters=[], wrap="all"), "wrap='all': expected root or block"),
    (lambda: message_elements(parameters=[], num_ranks=0, api="fsdp1"), "num_ranks=0"),
    (lambda: message_elements(parameters=[], num_ranks=1, api="fsdp3"), "api='fsdp3': expected fsdp1 or fsdp2"),
    (lambda: fsdp_prediction(cases=[], num_ranks=2, element_bytes=3), "element_bytes=3: expected 2 or 4"),
])
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
