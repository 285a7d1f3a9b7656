"""Occupancy against the CUDA driver's own answer, for compiled kernels. Needs a GPU."""

import ctypes

import pytest

from labkit.calc.occupancy import LIMITS, occupancy

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")


@triton.jit
def row_sum(x, y, hidden: tl.constexpr):
    """Sum of each row; the whole row is in registers, so registers follow hidden / threads."""
    row, lanes = tl.program_id(0), tl.arange(0, hidden)
    values = tl.load(x + row * hidden + lanes)
    total = tl.sum(values)
    tl.store(y + row * hidden + lanes, values / total)


@pytest.mark.parametrize("num_warps", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("hidden", [512, 4096, 8192])
def test_matches_the_driver(hidden, num_warps):
    """Oracle: cuOccupancyMaxActiveBlocksPerMultiprocessor, at several sizes of dynamic shared memory."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    cc = ".".join(map(str, torch.cuda.get_device_capability()))
    if cc not in LIMITS:
        pytest.skip(f"no limits for compute capability {cc}")
    x = torch.ones(4, hidden, device="cuda")
    kernel = row_sum[(4,)](x, torch.empty_like(x), hidden=hidden, num_warps=num_warps)
    torch.cuda.synchronize()
    driver = ctypes.CDLL("libcuda.so.1")
    for extra in (0, 1000, 30_000, 45_000):
        shared, blocks = kernel.metadata.shared + extra, ctypes.c_int()
        error = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
            ctypes.byref(blocks), ctypes.c_void_p(kernel.function), ctypes.c_int(32 * num_warps),
            ctypes.c_size_t(shared))
        assert error == 0
        found = occupancy(
            registers_per_thread=kernel.n_regs, threads_per_block=32 * num_warps, shared_bytes_per_block=shared,
            compute_capability=cc)
        assert found["blocks_per_sm"] == blocks.value, (kernel.n_regs, shared)


def test_random_kernels_match_the_driver():
    """Oracle: the driver, for kernels of random registers, block sizes, static and dynamic shared memory."""
    from labkit.analyze.resource_oracles import driver_results
    from labkit.workers.cuda_driver import Driver, DriverError
    from labkit.workers.occupancy_driver import ask

    try:
        driver = Driver()
    except DriverError as error:
        pytest.skip(str(error))
    limits, cases = ask(driver, num_kernels=224, launches=4, seed=20261129)
    lines = [{"kind": "device", "driver_cuda": driver.version(), **limits}, *({"kind": "case", **c} for c in cases)]
    results, judged = driver_results(lines)
    assert results["driver_kernels"] == 224 and results["driver_cases"] == 896
    assert results["driver_registers"]["different"] > 40, "the kernels are different"
    assert 0 < results["driver_zero"] < 448, "some launches are impossible, most are not"
    assert [oracle for oracle in judged if not oracle.passed] == []
    assert all(case["driver_static_shared_bytes"] == case["static_shared_bytes"] for case in cases)
