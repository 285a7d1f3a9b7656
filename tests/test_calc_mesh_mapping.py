"""Groups of a mesh and the placement search, against bits of the rank and a search without any symmetry."""

import itertools
import math

import pytest

from labkit.calc.mesh_mapping import (
    bit_topology,
    group_link,
    mesh_groups,
    phase_time_s,
    rank_mappings,
    step_times,
)
from labkit.calc.mesh_prediction import pair_values, report_members, report_step_ms, search_summary, wire_floor_ms

LINKS = {"PIX": {"bytes_per_s": 10.0}, "PHB": {"bytes_per_s": 4.0}, "SYS": {"bytes_per_s": 3.0}}
AXES = [["TP", 2], ["PP", 2], ["DP", 2]]


def test_report_groups_by_bits_of_the_rank():
    """Members of a pair differ in one bit: TP in bit 0, PP in bit 1, DP in bit 2; the other mapping in 2, 0, 1."""
    for axes, bits in ((AXES, {"TP": 1, "PP": 2, "DP": 4}),
                       ([["PP", 2], ["DP", 2], ["TP", 2]], {"TP": 4, "PP": 1, "DP": 2})):
        found = mesh_groups(axes=axes)
        for axis, bit in bits.items():
            assert found[axis] == [[rank, rank ^ bit] for rank in range(8) if not rank & bit]
    assert mesh_groups(axes=AXES)["DP"] == [[0, 4], [1, 5], [2, 6], [3, 7]]


@pytest.mark.parametrize("degrees", [(3, 2), (2, 3, 2), (1, 4), (4, 1, 2)])
def test_every_axis_splits_the_ranks(degrees):
    found = mesh_groups(axes=[[f"a{i}", degree] for i, degree in enumerate(degrees)])
    for groups, degree in zip(found.values(), degrees, strict=True):
        assert sorted(rank for group in groups for rank in group) == list(range(math.prod(degrees)))
        assert all(len(group) == degree for group in groups)
    for one, other in itertools.combinations(found.values(), 2):  # two axes share one rank at most
        assert all(len(set(a) & set(b)) <= 1 for a in one for b in other)


def test_the_machine_of_the_report():
    top = bit_topology(links=["PIX", "PHB", "SYS"])
    assert (top[0][1], top[2][3], top[0][2], top[1][3], top[0][4], top[3][7], top[5][5]) == (
        "PIX", "PIX", "PHB", "PHB", "SYS", "SYS", "X")
    assert (top[0][3], top[1][2], top[0][7], top[3][4], top[2][7]) == ("PHB", "PHB", "SYS", "SYS", "SYS")
    assert group_link(group=[0, 1, 2, 3], topology=top, links=LINKS) == "PHB"


def test_time_by_hand():
    """Two bytes each way over the slowest pair; four ranks send 2 * 3/4 S; a shared class divides its total."""
    top = bit_topology(links=["PIX", "PHB", "SYS"])
    for groups in ([[0, 1], [2, 4]], [[2, 4], [0, 1]]):  # the slowest one counts, wherever it stands
        assert phase_time_s(groups=groups, topology=top, links=LINKS, size_bytes=30) == 10
    assert phase_time_s(groups=[[0, 1, 2, 3]], topology=top, links=LINKS, size_bytes=40) == 15
    shared = {"SYS": {"bytes_per_s": 3.0, "shared_bytes_per_s": 4.0, "latency_s": 0.5}}
    pairs = [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert phase_time_s(groups=pairs, topology=top, links=shared, size_bytes=8) == 2 * 0.5 + 8 / 1.0
    assert phase_time_s(groups=[[0], [1]], topology=top, links={}, size_bytes=8) == 0
    times = step_times(groups={"TP": [[0, 1]], "DP": [[0, 4]]}, calls={"TP": 4, "DP": 1}, topology=top, links=LINKS,
                       size_bytes=30)
    assert times == {"phases": {"TP": 12.0, "DP": 10.0}, "serial": 22.0, "concurrent_least": 10.0,
                     "concurrent_most": 13.0}


def slow_search(axes, calls, topology, links, size):
    """Every placement, one by one: the sorted step times of placements with different groups."""
    logical, seen = mesh_groups(axes=axes), {}
    for placement in itertools.permutations(range(len(topology))):
        placed = {a: [[placement[r] for r in g] for g in found] for a, found in logical.items()}
        key = tuple(frozenset(frozenset(g) for g in found) for found in placed.values())
        seen[key] = step_times(groups=placed, calls=calls, topology=topology, links=links, size_bytes=size)["serial"]
    return sorted(seen.values())


@pytest.mark.parametrize("case", ["halves", "one odd device", "all alike"])
def test_search_finds_every_time_and_no_more(case):
    topology = {"halves": bit_topology(links=["PIX", "SYS"]), "all alike": bit_topology(links=["PIX", "PIX"]),
                "one odd device": [["X", "PIX", "PHB", "SYS"], ["PIX", "X", "PHB", "SYS"], ["PHB", "PHB", "X", "SYS"],
                                   ["SYS", "SYS", "SYS", "X"]]}[case]
    axes, calls = [["TP", 2], ["DP", 2]], {"TP": 4, "DP": 1}
    found = rank_mappings(axes=axes, calls=calls, topology=topology, links=LINKS, size_bytes=7)
    slow = slow_search(axes, calls, topology, LINKS, 7)
    assert found["num_distinct"] == len(slow) == sum(entry["num_distinct"] for entry in found["ranking"])
    repeated = sorted(e["serial_s"] for e in found["ranking"] for _ in range(e["num_distinct"]))
    assert repeated == pytest.approx(slow)
    assert [e["serial_s"] for e in found["ranking"]] == sorted(e["serial_s"] for e in found["ranking"])


def test_search_on_the_reports_machine():
    """TP stays on PIX, and no placement keeps both other axes off SYS: the mesh would fall apart."""
    found = search_summary(calls={"TP": 4, "PP": 1, "DP": 1}, links=LINKS)
    assert (found["num_placements"], found["num_distinct"]) == (math.factorial(8), math.factorial(8) // 2**3)
    best = found["shown"][0]["links"]
    assert best["TP"] == {"PIX": 4} and {"SYS"} <= {name for links in best.values() for name in links}
    assert found["num_best"] == 2 and len(found["all_serial_ms"]) == found["num_alike"]
    equal = search_summary(calls={"TP": 1, "PP": 1, "DP": 1}, links=LINKS)
    local = report_step_ms(innermost_first=["TP", "PP", "DP"], links=LINKS)
    assert equal["num_best"] >= 6 and local["serial"] > equal["all_serial_ms"][0] - 1e-9


def test_a_search_of_nine_ranks_is_refused():
    with pytest.raises(ValueError, match=r"axes=.*at most 8"):
        rank_mappings(axes=[["TP", 3], ["DP", 3]], calls={}, topology=[["X"] * 9] * 9, links=LINKS, size_bytes=1)
    with pytest.raises(ValueError, match="links: no rate for SYS"):
        group_link(group=[0, 7], topology=bit_topology(links=["PIX", "PHB", "SYS"]), links={"PIX": LINKS["PIX"]})
    with pytest.raises(ValueError, match="each name once"):
        mesh_groups(axes=[["TP", 2], ["TP", 2]])


def test_report_step_from_its_own_rates():
    """64 MiB over 11.785, 3.3025 GB/s by hand, PHB from 17.54 ms: within 11 % of what section 12.2 prints."""
    links = {"PIX": {"bytes_per_s": 47.14e9 / 4}, "PHB": {"bytes_per_s": 2**26 / 17.54e-3},
             "SYS": {"bytes_per_s": 13.21e9 / 4}}
    local = report_step_ms(innermost_first=["TP", "PP", "DP"], links=links)
    cross = report_step_ms(innermost_first=["PP", "DP", "TP"], links=links)
    assert local["tp_phase"] == pytest.approx(4 * 67.108864 / 11.785)
    assert cross["tp_phase"] == pytest.approx(4 * 67.108864 / 3.3025)
    for found, printed in ((local, (25.55, 17.54, 20.18)), (cross, (77.92, 6.39, 17.93))):
        for phase, value in zip(("tp_phase", "pp_phase", "dp_phase"), printed, strict=True):
            assert found[phase] == pytest.approx(value, rel=0.11)
    assert cross["concurrent_most"] == pytest.approx(local["concurrent_most"])


def test_wire_and_pair_and_names():
    groups = mesh_groups(axes=AXES)
    assert wire_floor_ms(groups=groups, calls={"TP": 4, "PP": 1, "DP": 1}, payload_bytes=100, bytes_per_s=1000,
                         burst_bytes=50) == {"DP": 350.0}
    assert pair_values()["ordered"] == {"A": [2001, 2001], "B": [4001, 4001]}
    assert list(report_members())[:5] == ["TP0", "TP1", "TP2", "TP3", "PP0"]
