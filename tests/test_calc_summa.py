"""SUMMA: printed units of N and N^2, a simulated product, bounds put back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import summa


def test_printed_memory_and_panels():
    """Interview question 12: 3/4 resident, 1/4 free; panels of N/4, double-buffered N/8 with nothing to spare (E12)."""
    assert (summa.resident_elements(), summa.spare_elements()) == (0.75, 0.25)
    assert (summa.panel_width(), summa.panel_width(num_buffers=2)) == (0.25, 0.125)
    assert [summa.microsteps(panel_width=w) for w in (0.25, 0.125)] == [4, 8]
    assert summa.spare_elements(panel_width=0.125, num_buffers=2) == 0
    assert summa.spare_elements(panel_width=0.0625, num_buffers=2) == 0.125


def test_printed_work():
    assert summa.server_work() == {"multiply_adds": 0.25, "flop": 0.5, "received_elements": 0.5}
    assert summa.total_storage(num_servers=4, memory_elements=0.125) == {"elements": 0.5, "fits": False}


def test_printed_out_of_core():
    """Interview question 12: tiles of 0.204 and 0.158 N; N/8 uses 5/64; 64, 16, 8 tiles; 4 N^2 loaded, 8x (E13)."""
    assert [summa.tile_side(num_tiles=k) for k in (3, 5)] == pytest.approx([0.204, 0.158], abs=5e-4)
    found = summa.tiled_schedule()
    assert (found["used_elements"], found["fits"]) == (5 / 64, True)
    assert (found["tiles"], found["tiles_per_server"], found["products_per_tile"]) == (64, 16, 8)
    assert (found["loaded_elements"], found["times_in_memory"]) == (4, 8)
    assert not summa.tiled_schedule(tiles_per_side=6)["fits"]
    assert summa.least_traffic_elements(multiply_adds=0.25, memory_elements=0.125) == pytest.approx(1.41, abs=0.005)


@pytest.mark.parametrize(("side", "width", "grid"), [(8, 2, 2), (8, 4, 2), (6, 1, 3), (4, 4, 1)])
def test_simulated_product_moves_what_the_formula_says(side, width, grid):
    found = summa.simulate(side=side, panel_width=width, grid=grid)
    assert found["matches"]
    work = summa.server_work(side=side, grid=grid)
    assert found["received_elements"] == [pytest.approx(work["received_elements"])] * grid**2
    assert found["microsteps"] == summa.microsteps(panel_width=width, side=side)
    assert work["multiply_adds"] * grid**2 == pytest.approx(side**3)


@given(side=st.floats(1, 1e5), grid=st.integers(2, 16), buffers=st.integers(1, 4))
def test_the_widest_panel_uses_the_slack_up(side, grid, buffers):
    width = summa.panel_width(side=side, grid=grid, num_buffers=buffers)
    left = summa.spare_elements(side=side, grid=grid, panel_width=width, num_buffers=buffers)
    assert left >= -1e-9 * side**2
    assert width == pytest.approx(side / grid) or left == pytest.approx(0, abs=1e-9 * side**2)


@given(memory=st.floats(1e-3, 10), tiles=st.integers(1, 8))
def test_tiles_fill_the_memory(memory, tiles):
    assert tiles * summa.tile_side(memory_elements=memory, num_tiles=tiles) ** 2 == pytest.approx(memory)


@given(tiles=st.integers(1, 12))
def test_no_schedule_beats_the_bound(tiles):
    """Three tiles in memory: the simple schedule loads at least what the bound allows."""
    found = summa.tiled_schedule(tiles_per_side=2 * tiles, tiles_in_memory=3)
    bound = summa.least_traffic_elements(multiply_adds=0.25, memory_elements=found["used_elements"])
    assert found["loaded_elements"] + 0.25 >= bound * 0.99


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: summa.resident_elements(side=0), "side=0"),
        (lambda: summa.spare_elements(panel_width=0.6), "panel_width=0.6: expected at most side / grid = 0.5"),
        (lambda: summa.panel_width(memory_elements=0.5), "memory_elements=0.5: expected at least the blocks"),
        (lambda: summa.panel_width(num_buffers=0), "num_buffers=0"),
        (lambda: summa.microsteps(panel_width=2), "panel_width=2"),
        (lambda: summa.server_work(grid=0), "grid=0"),
        (lambda: summa.simulate(side=9), "side=9"),
        (lambda: summa.simulate(side=8, panel_width=3), "panel_width=3"),
        (lambda: summa.tile_side(num_tiles=0), "num_tiles=0"),
        (lambda: summa.tiled_schedule(tiles_per_side=7), "tiles_per_side=7"),
        (lambda: summa.total_storage(num_servers=0, memory_elements=1), "num_servers=0"),
        (lambda: summa.least_traffic_elements(multiply_adds=1, memory_elements=0), "memory_elements=0"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
