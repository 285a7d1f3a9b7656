"""Matrix products: printed figures, a counted product, and M* put back into the intensity."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import gemm

RIDGE = 989.5 / 3.35
size = st.integers(1, 400)


def counted(m, n, k):
    """Slow version: multiply and count every scalar operation and every element touched."""
    flop, read, written = 0, set(), set()
    for i, j, x in itertools.product(range(m), range(n), range(k)):
        flop += 2
        read |= {("a", i, x), ("b", x, j)}
        written.add((i, j))
    return flop, 2 * (len(read) + len(written))


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 4), (5, 1, 7), (6, 6, 6)])
def test_matches_counting(shape):
    m, n, k = shape
    assert (gemm.gemm_flop(m=m, n=n, k=k), gemm.gemm_bytes(m=m, n=n, k=k)) == counted(m, n, k)


def test_printed_critical_rows():
    """Interview question 1: gate + up, down, and FP8 operands with a BF16 result."""
    assert gemm.critical_rows(k=7168, n=4096, ridge_flop_per_byte=RIDGE) == pytest.approx(333.1224998, abs=5e-8)
    assert gemm.critical_rows(k=2048, n=7168, ridge_flop_per_byte=RIDGE) == pytest.approx(362.613388, abs=5e-7)
    fp8 = gemm.critical_rows(k=7168, n=4096, ridge_flop_per_byte=1979 / 3.35, bytes_a=1, bytes_b=1, bytes_c=2)
    assert fp8 == pytest.approx(349.3584308, abs=5e-8)


def test_small_weights_never_reach_the_ridge():
    """Interview question 1: K = N must exceed 2R; 512 x 512 saturates at 256 FLOP/B."""
    assert gemm.critical_rows(k=512, n=512, ridge_flop_per_byte=RIDGE) is None
    assert gemm.critical_rows(k=591, n=591, ridge_flop_per_byte=RIDGE) is not None
    assert gemm.critical_rows(k=590, n=590, ridge_flop_per_byte=RIDGE) is None
    assert gemm.gemm_intensity_flop_per_byte(m=10**9, n=512, k=512) == pytest.approx(256, rel=1e-5)


@given(n=st.integers(1, 20000), k=st.integers(1, 20000), ridge=st.floats(1, 2000))
def test_critical_rows_give_the_ridge_back(n, k, ridge):
    """Identity: at floor(M*) the product is left of the ridge or on it, at ceil(M*) right of it or on it."""
    rows = gemm.critical_rows(n=n, k=k, ridge_flop_per_byte=ridge)
    if rows is None:
        assert gemm.gemm_intensity_flop_per_byte(m=10**12, n=n, k=k) <= ridge * (1 + 1e-6)
    elif 1 <= rows < 1e9:
        below, above = int(rows), int(rows) + 1
        assert gemm.gemm_intensity_flop_per_byte(m=below, n=n, k=k) <= ridge * (1 + 1e-9)
        assert gemm.gemm_intensity_flop_per_byte(m=above, n=n, k=k) >= ridge * (1 - 1e-9)


@given(m=size, n=size, k=size)
def test_intensity_limits(m, n, k):
    """For 16-bit operands it is the harmonic combination of the sizes: below each of them, symmetric."""
    value = gemm.gemm_intensity_flop_per_byte(m=m, n=n, k=k)
    assert value == pytest.approx(1 / (1 / m + 1 / n + 1 / k))
    assert value < min(m, n, k)
    assert value == pytest.approx(gemm.gemm_intensity_flop_per_byte(m=n, n=k, k=m))


def test_printed_waves():
    """Interview question 15: 133, 264 and 216 equal blocks on 132 SMs."""
    waves = [100 * gemm.wave_efficiency(num_tiles=n, num_sms=132) for n in (133, 264, 216)]
    assert waves == pytest.approx([50.37878788, 100.0, 81.81818182], abs=5e-8)


@given(num_tiles=st.integers(1, 3000), num_sms=st.integers(1, 150), tiles_per_sm=st.integers(1, 4))
def test_waves_by_placing_tiles(num_tiles, num_sms, tiles_per_sm):
    """Slow version: hand out tiles wave by wave."""
    left, waves = num_tiles, 0
    while left > 0:
        left -= num_sms * tiles_per_sm
        waves += 1
    expected = num_tiles / (waves * num_sms * tiles_per_sm)
    found = gemm.wave_efficiency(num_tiles=num_tiles, num_sms=num_sms, tiles_per_sm=tiles_per_sm)
    assert found == pytest.approx(expected)
    assert 0 < found <= 1


def test_tiles_by_hand():
    # 257 x 256 in 128 x 128 tiles: 3 x 2 tiles, of which 65,792 of 98,304 elements are wanted.
    found = gemm.tile_quantisation(m=257, n=256, tile_m=128, tile_n=128)
    assert found == {"num_tiles": 6, "efficiency": 257 * 256 / (6 * 128 * 128)}
    assert gemm.tile_quantisation(m=256, n=256, tile_m=128, tile_n=128)["efficiency"] == 1.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gemm.gemm_flop(m=0, n=1, k=1), "m=0"),
        (lambda: gemm.gemm_flop(m=1.5, n=1, k=1), "m=1.5"),
        (lambda: gemm.gemm_bytes(m=1, n=1, k=1, bytes_c=0), "bytes_c=0"),
        (lambda: gemm.critical_rows(n=1, k=1, ridge_flop_per_byte=-1), "ridge_flop_per_byte=-1"),
        (lambda: gemm.wave_efficiency(num_tiles=0, num_sms=1), "num_tiles=0"),
        (lambda: gemm.wave_efficiency(num_tiles=1, num_sms=0), "num_sms=0"),
        (lambda: gemm.tile_quantisation(m=1, n=1, tile_m=0, tile_n=1), "tile_m=0"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
