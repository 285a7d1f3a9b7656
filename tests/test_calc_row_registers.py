"""What a row needs in registers: hand numbers, the report's cells, and two independent ways to occupancy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import row_registers as calc
from labkit.calc.occupancy import LIMITS, occupancy
from labkit.calc.occupancy_by_placing import allocate_blocks
from labkit.calc.resource_prediction import resource_prediction

REPORT = {  # (hidden, warps): registers, stack bytes; report section 14.2
    (4096, 1): (168, 0), (4096, 2): (99, 0), (4096, 4): (52, 0), (4096, 8): (32, 0), (8192, 1): (255, 384),
    (8192, 2): (172, 0), (8192, 4): (99, 0), (8192, 8): (54, 0),
}  # fmt: skip


def test_a_row_of_8192_fp16_by_hand():
    # 8,192 x 2 bytes = 16,384 bytes = 4,096 registers, over 32 threads a warp
    assert [calc.row_registers_per_thread(hidden=8192, num_warps=w) for w in (1, 2, 4, 8, 16)] == [128, 64, 32, 16, 8]
    assert calc.row_registers_per_thread(hidden=5000, num_warps=4) == 32, "padded to the next power of two"
    assert calc.row_registers_per_thread(hidden=8192, num_warps=1, bytes_per_element=4) == 256


@pytest.mark.parametrize(("cell", "seen"), REPORT.items(), ids=str)
def test_the_report_holds_its_rows(cell, seen):
    hidden, warps = cell
    registers, stack = seen
    assert registers + stack // 4 >= calc.row_registers_per_thread(hidden=hidden, num_warps=warps)
    guess = calc.register_estimate(hidden=hidden, num_warps=warps)
    assert abs(guess["registers"] - registers) <= 7, "the line was drawn through these points"
    assert (guess["stack_bytes"] > 0) == (stack > 0)


@pytest.mark.parametrize("cc", LIMITS)
@pytest.mark.parametrize("warps", [1, 2, 3, 4, 5, 8, 9, 12, 16, 17, 32])
def test_register_cap_is_the_last_that_launches(cc, warps):
    cap = calc.register_cap(num_warps=warps, compute_capability=cc)
    asked = {"threads_per_block": 32 * warps, "compute_capability": cc}
    largest = max(r for r in range(1, 256) if occupancy(registers_per_thread=r, **asked)["limits"]["registers"])
    assert cap == largest


def test_must_spill_by_hand():
    # 16,384 x 2 / (32 x 4) = 256 registers for the row, and a thread has 255; at 2 warps it is 128
    assert calc.must_spill(hidden=16384, num_warps=1) and not calc.must_spill(hidden=16384, num_warps=2)
    # 32 warps leave 64 registers a thread: 131,072 x 2 / (1,024 x 4) = 64, and nothing for an address
    assert calc.must_spill(hidden=131072, num_warps=32) and not calc.must_spill(hidden=65536, num_warps=32)


def test_spill_traffic_by_hand():
    # 8,192 rows x 64 threads x (12 + 20) bytes
    assert calc.spill_traffic_bytes(rows=8192, num_warps=2, spill_store_bytes=12, spill_load_bytes=20) == 16_777_216


def test_rows_in_flight_by_hand():
    assert calc.rows_in_flight_bytes(hidden=4096, blocks_per_sm=8) == 65536
    assert calc.rows_in_flight_bytes(hidden=4096, blocks_per_sm=8) == calc.rows_in_flight_bytes(
        hidden=8192, blocks_per_sm=4)


def test_latency_and_memory_meet_at_the_knee():
    """Little's law: at the knee both limits give one time; below it the blocks, above it the memory."""
    sizes = {"hidden": 4096, "bytes_per_s": 4.0e12, "num_sms": 100, "block_s": 2e-6}
    knee = calc.knee_blocks_per_sm(**sizes)
    assert knee == pytest.approx(4.0e12 / 100 * 2e-6 / (2 * 4096 * 2)) and 4 < knee < 5
    bytes_ = 10_000 * 2 * 4096 * 2
    times = {b: calc.latency_bound_time_s(num_bytes=bytes_, bytes_per_s=4.0e12, blocks=10_000, blocks_per_sm=b,
                                          num_sms=100, block_s=2e-6) for b in (1, 4, 5, 32)}  # fmt: skip
    assert times[1] == pytest.approx(100 * 2e-6) and times[4] == pytest.approx(25 * 2e-6)
    assert times[5] == times[32] == pytest.approx(bytes_ / 4.0e12)


@given(cc=st.sampled_from(list(LIMITS)), registers=st.integers(0, 255), threads=st.integers(1, 1024),
       shared=st.integers(0, 233_472))  # fmt: skip
def test_placing_blocks_gives_what_the_formula_gives(cc, registers, threads, shared):
    asked = {"registers_per_thread": registers, "threads_per_block": threads, "shared_bytes_per_block": shared,
             "compute_capability": cc}  # fmt: skip
    placed, formula = allocate_blocks(**asked), occupancy(**asked)
    assert placed["blocks_per_sm"] == formula["blocks_per_sm"]
    assert placed["stopped_by"] in formula["limited_by"]


def test_prediction_of_one_kernel():
    found = resource_prediction(hidden=8192, num_warps=1, compute_capabilities=("7.0", "9.0"))
    assert found["row_registers"] == 128 and found["registers"] == 255 and found["stack_bytes"] == 4 * (332 - 255)
    assert found["must_spill"] == {"7.0": False, "9.0": False} and found["occupancy_pct"]["9.0"] == 12.5
    assert resource_prediction(hidden=16384, num_warps=16, compute_capabilities=())["registers"] == 52


@pytest.mark.parametrize(("call", "name"), [
    (lambda: calc.row_registers_per_thread(hidden=0, num_warps=1), "hidden"),
    (lambda: calc.register_cap(num_warps=33), "num_warps"),
    (lambda: calc.register_cap(num_warps=1, compute_capability="6.1"), "compute_capability"),
    (lambda: allocate_blocks(registers_per_thread=8, threads_per_block=0), "threads_per_block"),
    (lambda: allocate_blocks(registers_per_thread=8, threads_per_block=1, compute_capability="x"), "compute_cap"),
    (lambda: calc.latency_bound_time_s(num_bytes=1, bytes_per_s=1, blocks=1, blocks_per_sm=0, num_sms=1, block_s=1),
     "blocks_per_sm"),
    (lambda: calc.spill_traffic_bytes(rows=1, num_warps=1, spill_store_bytes=-1, spill_load_bytes=0), "spill_store"),
])  # fmt: skip
def test_bad_input_names_the_argument(call, name):
    with pytest.raises(ValueError, match=name):
        call()
