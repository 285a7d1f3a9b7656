"""What is made of a sweep's cells: slowest rank, bandwidths, winners, pairs in time, and oracles that can fail."""

import json

import pytest

from labkit.analyze.collective_files import Cell, pack, read_cells
from labkit.analyze.collective_oracles import sweep_oracles
from labkit.analyze.collective_pairs import inside, overlap_share, pair_results
from labkit.analyze.collective_results import (
    channel_results,
    crossovers,
    fits,
    gather_times,
    logged,
    sweep_results,
    values_checked,
    winners,
)
from labkit.analyze.kinds import UnreadableInput
from labkit.analyze.nccl_log import parse_log

SIZE = 2**20


def row(times_us, *, collective="all_reduce", size=SIZE, wrong=0, num_calls=1, loopback=None, starts=None):
    return {"collective": collective, "size_bytes": size, "times_us": times_us, "num_calls": num_calls,
            "timing": "eager", "graph_error": None, "loopback_bytes": loopback, "num_wrong": wrong,
            "starts_s": starts or [float(i) for i in range(len(times_us))]}


def cell(name, rows=(), *, status="measured", reason=None, **more):
    return Cell(name=name, status=status, reason=reason, wall_s=1.0, times=list(rows), **more)


def by_name(*cells):
    return {found.name: found for found in cells}


def write_ranks(folder, name, ranks, *, status="measured", log=None):
    where = folder / "cells" / name
    where.mkdir(parents=True)
    for rank, rows in enumerate(ranks):
        lines = [{"kind": "setup", "rank": rank, "num_ranks": len(ranks)}, *rows, {"kind": "end", "rank": rank}]
        (where / f"rank{rank}.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    if log:
        (where / "nccl_rank0.log").write_text(log)
    with open(folder / "cells.jsonl", "a") as stream:
        stream.write(json.dumps({"name": name, "status": status, "reason": None, "wall_s": 1.0}) + "\n")


def test_the_slowest_rank_of_each_sample_counts(tmp_path):
    write_ranks(tmp_path, "p0-auto", [[{"kind": "times", "rank": 0, **row([10.0, 30.0], wrong=1)}],
                                      [{"kind": "times", "rank": 1, **row([20.0, 5.0], wrong=2)}]])
    (found,) = read_cells(tmp_path)["p0-auto"].times
    assert found["times_us"] == [20.0, 30.0] and found["num_wrong"] == 3


@pytest.mark.parametrize(("spoil", "word"), [
    (lambda folder: (folder / "cells/p0-auto/rank1.jsonl").unlink(), "1 rank files, expected 2"),
    (lambda folder: (folder / "cells/p0-auto/rank1.jsonl").write_text('{"kind": "setup"}\n'), "no end"),
    (lambda folder: (folder / "cells/p0-auto/rank0.jsonl").write_text('{"kind"'), "rank0.jsonl"),
    (lambda folder: (folder / "cells.jsonl").write_text(""), "no cell"),
    (lambda folder: (folder / "cells.jsonl").unlink(), "cells.jsonl"),
])
def test_files_that_cannot_be_used_are_refused(tmp_path, spoil, word):
    write_ranks(tmp_path, "p0-auto", [[{"kind": "times", "rank": rank, **row([1.0])}] for rank in range(2)])
    spoil(tmp_path)
    with pytest.raises(UnreadableInput, match=word):
        read_cells(tmp_path)


def test_ranks_that_measured_different_things_are_refused(tmp_path):
    rows = [[{"kind": "times", "rank": rank, **row([1.0], size=8 + rank)}] for rank in range(2)]
    write_ranks(tmp_path, "p0-auto", rows)
    with pytest.raises(UnreadableInput, match="size_bytes"):
        read_cells(tmp_path)


def test_packed_files_name_no_host_and_keep_every_row(tmp_path):
    log = "secret-host:123:456 [0] NCCL INFO NCCL_DEBUG_FILE set by environment to /srv/x/y.log\n" \
          "secret-host:123:456 [0] NCCL INFO AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}\n"
    write_ranks(tmp_path, "log-auto", [[{"kind": "times", "rank": rank, **row([])}] for rank in range(2)], log=log)
    assert read_cells(tmp_path)["log-auto"].log["chosen"] == {"all_reduce": {"8": "Ring+LL"}}
    pack(tmp_path)
    text = (tmp_path / "nccl_log.txt").read_text()
    assert "secret-host" not in text and "/root" not in text and "Algo RING" in text
    rows = [json.loads(line) for line in (tmp_path / "ranks.jsonl").read_text().splitlines()]
    assert len(rows) == 6 and {found["cell"] for found in rows} == {"log-auto"}
    assert not (tmp_path / "cells").exists()


def test_bandwidths_by_hand():
    """1 MiB in 100 us on 8 ranks: algbw 10.486 GB/s, busbw times 1.75; all-gather times 7/8."""
    times = gather_times(by_name(cell("p0-auto", [row([100.0]), row([100.0], collective="all_gather")])))
    found = sweep_results(times, world_size=8)
    assert found["algbw_gb_per_s"]["auto"]["1 MiB"] == pytest.approx(10.48576, rel=1e-5)
    assert found["busbw_gb_per_s"]["auto"]["1 MiB"]["value"] == pytest.approx(18.35008, rel=1e-5)
    assert found["busbw_gb_per_s"]["all_gather"]["1 MiB"]["value"] == pytest.approx(9.17504, rel=1e-5)


def test_processes_are_kept_apart_and_logs_are_no_measurement():
    cells = by_name(cell("p0-auto", [row([1.0, 2.0])]), cell("p1-auto", [row([3.0])]), cell("log-auto", [row([])]),
                    cell("p2-auto", status="refused", reason="x"), cell("p3-auto", [row([9.0], size=2**30)]))
    times = gather_times(cells)
    assert times["auto"]["all_reduce"] == {SIZE: [[1.0, 2.0], [3.0]], 2**30: [[9.0]]}
    quantity = sweep_results(times, world_size=2)["time_us"]["auto"]["1 MiB"]
    assert quantity["n"] == 3 and quantity["num_processes"] == 2


def test_a_winner_is_clear_only_beyond_the_spread():
    times = gather_times(by_name(cell("p0-Ring+LL", [row([10.0, 11.0, 12.0]), row([50.0], size=2**22)]),
                                 cell("p0-Tree+LL", [row([11.0, 12.0, 13.0]), row([90.0], size=2**22)])))
    found = winners(sweep_results(times, world_size=2)["time_us"], ["Ring+LL", "Tree+LL", "Ring+Simple"])
    assert found["best_combo"] == {"1 MiB": "Ring+LL", "4 MiB": "Ring+LL"}
    assert found["best_is_clear"] == {"1 MiB": False, "4 MiB": True}
    assert winners({}, ["Ring+LL"])["best_combo"] == {}


def test_fits_and_crossovers_in_the_tables_units():
    def rows(alpha_us, gb_per_s):
        return [row([alpha_us + size / gb_per_s / 1e3], size=size) for size in (2**10, 2**14, 2**18, 2**22, 2**26)]
    fitted = fits(gather_times(by_name(cell("p0-Ring+LL", rows(10, 40)), cell("p0-Ring+Simple", rows(30, 200)))))
    assert fitted["Ring+LL"]["alpha_us"] == pytest.approx(10) and fitted["Ring+LL"]["held_out"] == ["16 KiB", "4 MiB"]
    assert fitted["Ring+Simple"]["algbw_gb_per_s"] == pytest.approx(200)
    # 20 us more to start, and 1/40 - 1/200 = 0.02 us less for each kB: equal at a million bytes.
    assert crossovers(fitted)["Ring+LL / Ring+Simple"] == pytest.approx(1e6, rel=1e-6)


def test_channels_by_number():
    cells = by_name(*(cell(f"p0-ch{n}", [row([1000.0 / n])]) for n in (16, 2)))
    found = channel_results(gather_times(cells), world_size=2)["channel_busbw"]
    assert list(found) == ["2", "16"] and found["2"]["value"] == pytest.approx(SIZE / 500 / 1e3)


LINE = "n:1:2 [0] NCCL INFO AllReduce: {} Bytes -> Algo {} proto {} channel{{Lo..Hi}}={{0..{}}}"


def log_of(*choices):
    lines = ["n:1:2 [0] NCCL INFO comm Init COMPLETE", "n:1:2 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1"]
    return parse_log("\n".join([*lines, *(LINE.format(*choice) for choice in choices)]))


def test_the_log_says_what_was_chosen():
    cells = by_name(cell("log-auto", log=log_of((1024, "TREE", "LL", 0), (SIZE, "RING", "SIMPLE", 15))),
                    cell("log-Ring+LL", log=log_of((1024, "RING", "LL", 0), (SIZE, "RING", "LL", 3))),
                    cell("p0-ch4", log=log_of((SIZE, "RING", "SIMPLE", 3))))
    found = logged(cells)
    assert found["chosen"] == {"1 KiB": "Tree+LL", "1 MiB": "Ring+Simple"} and found["debug_env"] is True
    assert found["forced_pairs_in_log"] == {"Ring+LL": ["Ring+LL"]} and found["channels_in_log"] == {"4": [4]}
    assert logged({})["debug_env"] is None and logged({})["chosen"] == {}


def pair(name, phase, start, times, *, collective="all_reduce"):
    starts = [start + sum(times[:i]) / 1e6 for i in range(len(times))]
    return {**row(times, collective=collective, starts=starts), "phase": phase, "pair": name, "pair_wrong": 0}


def pairs_cell(*, second_alone_at=1.0, second_together_at=2.0):
    return Cell(name="p0-pairs0", status="measured", reason=None, wall_s=1.0, pairs=[
        pair("0-1", "alone 0", 0.0, [1e5] * 4), pair("2-3", "alone 1", second_alone_at, [1e5] * 4),
        pair("0-1", "together", 2.0, [2e5] * 4), pair("2-3", "together", second_together_at, [2e5] * 4)])


def test_pairs_together_by_hand():
    found = pair_results(by_name(pairs_cell()), families={"pairs0": "SYS"})
    one = SIZE / 1e5 / 1e3
    assert found["pair_alone"]["SYS"]["value"] == pytest.approx(2 * one)
    assert found["pair_together"]["SYS"]["value"] == pytest.approx(one)
    assert found["pair_slowdown_max"]["SYS"] == pytest.approx(2) and found["pair_procedure"] is True
    assert found["topo_matrix_limit"] is True
    assert pair_results(by_name(pairs_cell()), families={"pairs0": "0-1 2-3"})["topo_matrix_limit"] is None


@pytest.mark.parametrize("moved", [{"second_alone_at": 0.2}, {"second_together_at": 2.6}])
def test_pairs_that_did_not_run_as_said_are_noticed(moved):
    assert pair_results(by_name(pairs_cell(**moved)), families={"pairs0": "SYS"})["pair_procedure"] is False


def test_samples_outside_the_common_time_do_not_count():
    found = pair("0-1", "together", 2.0, [1e5, 2e5, 2e5, 1e5])
    assert inside(found, (2.05, 2.55)) == [2e5, 2e5] and inside(found, (9.0, 9.1)) == [1e5, 2e5, 2e5, 1e5]
    assert overlap_share([(0.0, 1.0), (0.5, 3.0)]) == pytest.approx(0.5)


def plan(name, *, forced=False, sizes=(SIZE,), kind="times"):
    return {"name": name, "forced": forced, "kind": kind, "devices": [0, 1],
            "sizes": {"all_reduce": list(sizes)}}


def failed(cells, planned, *, link=None, **more):
    results = {**sweep_results(gather_times(cells), world_size=2), **logged(cells), **values_checked(cells),
               **pair_results(cells, families={"pairs0": "SYS"}), **more}
    oracles = sweep_oracles(cells, planned=planned, results=results, world_size=2, link_gb_per_s=link)
    return [oracle.name for oracle in oracles if not oracle.passed], len(oracles)


GOOD = row([100.0, 110.0], loopback=4 * SIZE + 1000)
"""Two samples of one call: 2 S each on the loopback interface, and some headers."""


def test_a_good_sweep_passes_every_oracle():
    cells = by_name(cell("p0-auto", [GOOD]), cell("log-auto", [row([])], log=log_of((SIZE, "RING", "LL", 0))),
                    cell("p0-Tree+LL", status="refused", reason="no algorithm/protocol available"),
                    cell("log-Ring+LL", [row([])], log=log_of((SIZE, "RING", "LL", 0))),
                    cell("p0-ch1", [row([100.0])], log=log_of((SIZE, "RING", "SIMPLE", 0))), pairs_cell())
    planned = [plan("p0-auto"), plan("log-auto"), plan("p0-Tree+LL", forced=True), plan("log-Ring+LL", forced=True),
               plan("p0-ch1", forced=True), plan("p0-pairs0", kind="pairs")]
    assert failed(cells, planned, link=450) == ([], 8)


@pytest.mark.parametrize(("cells", "planned", "noticed"), [
    ([cell("p0-auto", [{**GOOD, "num_wrong": 1}])], [plan("p0-auto")], "data equal"),
    ([cell("p0-auto", [{**GOOD, "loopback_bytes": 4 * SIZE - 8}])], [plan("p0-auto")], "loopback"),
    ([cell("p0-auto", [GOOD])], [plan("p0-auto"), plan("p1-auto")], "every cell"),
    ([cell("p0-auto", status="refused", reason="x"), cell("p1-auto", [GOOD])], [plan("p0-auto"), plan("p1-auto")],
     "every cell"),
    ([cell("p0-Ring+LL", status="refused"), cell("p0-auto", [GOOD])], [plan("p0-Ring+LL", forced=True)], "every cell"),
    ([cell("p0-auto", [GOOD])], [plan("p0-auto", sizes=(SIZE, 4 * SIZE))], "sizes"),
    ([cell("p0-auto", [GOOD]), cell("log-Ring+LL", log=log_of((8, "RING", "LL", 0), (SIZE, "RING", "SIMPLE", 0)))],
     [plan("p0-auto")], "forced pair"),
    ([cell("p0-auto", [GOOD]), cell("p0-ch4", [row([1e3])], log=log_of((SIZE, "RING", "SIMPLE", 1)))],
     [plan("p0-auto")], "number of channels"),
    ([cell("p0-auto", [GOOD]), pairs_cell(second_together_at=9.0)], [plan("p0-auto")], "pairs ran"),
    ([cell("p0-auto", [row([2.0])])], [plan("p0-auto")], "link"),
], ids=["wrong data", "too few bytes", "a cell is missing", "not forced, refused", "refused without a word",
        "a size is missing", "another pair ran", "other channels", "pairs apart", "faster than the link"])
def test_each_oracle_can_fail(cells, planned, noticed):
    names, _ = failed(by_name(*cells), planned, link=450)
    assert len(names) == 1 and noticed in names[0]


def test_nothing_checked_is_no_pass():
    names, _ = failed(by_name(cell("p0-auto", [])), [plan("p0-auto", sizes=())], busbw_gb_per_s={"auto": {}})
    assert "data equal" in names[0]
