"""Transfers: printed times, a pipeline played layer by layer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import transfer

times = st.floats(0, 10)


def test_printed_times():
    """Interview questions 11 and 18: 35.6 us; 15.6 and 0.3 ms. Extra question 49: 140 GB over four stores."""
    assert 1e6 * transfer.transfer_time_s(num_bytes=1777664, bytes_per_s=50e9) == pytest.approx(35.6, abs=0.05)
    assert 1e3 * transfer.transfer_time_s(num_bytes=1e9, bytes_per_s=64e9) == pytest.approx(15.6, abs=0.05)
    loads = [transfer.transfer_time_s(num_bytes=140e9, bytes_per_s=b * 1e9) for b in (2, 7, 50, 56)]
    assert loads == pytest.approx([70, 20, 2.8, 2.5])


def test_printed_pipeline():
    """Interview question 6: 61 layers of 4 ms and 2 ms take 366 and 246 ms."""
    found = transfer.layerwise_time_s(num_layers=61, compute_s=0.004, transfer_s=0.002)
    assert 1e3 * found["one_by_one_s"] == pytest.approx(366) and 1e3 * found["overlapped_s"] == pytest.approx(246)


def test_printed_links():
    """Extra question 33: 450, 50 and 63.0 GB/s."""
    assert transfer.one_direction_bytes_per_s(bidirectional_bytes_per_s=900e9) == 450e9
    assert transfer.bits_to_bytes_per_s(bits_per_s=400e9) == 50e9
    pcie = transfer.bits_to_bytes_per_s(bits_per_s=32e9, lanes=16, efficiency=128 / 130)
    assert pcie / 1e9 == pytest.approx(63.0, abs=0.05)


@pytest.mark.parametrize(
    ("tokens", "compute", "bulk", "streamed"), [(8192, 5e-3, 316.53, 305.21), (64, 1e-5, 0.72, 1.32)]
)
def test_printed_streaming(tokens, compute, bulk, streamed):
    """Extra question 56: streaming wins for a long prompt and loses for a tiny one."""
    found = transfer.bulk_or_streamed_s(
        num_layers=61, compute_s=compute, num_bytes=tokens * 70272, bytes_per_s=50e9, latency_s=20e-6)
    assert [1e3 * found["bulk_s"], 1e3 * found["streamed_s"]] == pytest.approx([bulk, streamed], abs=0.005)


@given(layers=st.integers(1, 60), compute=times, move=times)
def test_overlap_by_playing_it(layers, compute, move):
    """Slow version: the link takes the next layer when that is computed and the link is free."""
    free = 0.0
    for layer in range(1, layers + 1):
        free = max(free, layer * compute) + move
    found = transfer.layerwise_time_s(num_layers=layers, compute_s=compute, transfer_s=move)
    assert found["overlapped_s"] == pytest.approx(free)
    assert found["overlapped_s"] <= found["one_by_one_s"] * (1 + 1e-12)


@given(size=st.floats(0, 1e12), rate=st.floats(1, 1e12), factor=st.floats(1, 100))
def test_scaling(size, rate, factor):
    one = transfer.transfer_time_s(num_bytes=size, bytes_per_s=rate)
    assert transfer.transfer_time_s(num_bytes=size * factor, bytes_per_s=rate * factor) == pytest.approx(one)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: transfer.transfer_time_s(num_bytes=-1, bytes_per_s=1), "num_bytes=-1"),
        (lambda: transfer.transfer_time_s(num_bytes=1, bytes_per_s=0), "bytes_per_s=0"),
        (lambda: transfer.layerwise_time_s(num_layers=0, compute_s=1, transfer_s=1), "num_layers=0"),
        (lambda: transfer.bits_to_bytes_per_s(bits_per_s=1, efficiency=1.5), "efficiency=1.5"),
        (lambda: transfer.bits_to_bytes_per_s(bits_per_s=1, efficiency=0), "efficiency=0"),
        (lambda: transfer.one_direction_bytes_per_s(bidirectional_bytes_per_s=0), "bidirectional_bytes_per_s=0"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
