"""The workers of triton_resources without a GPU: the ELF reader, the cross-compiler's parts, the random kernels."""

import random
import re
import struct
import subprocess

import pytest

from labkit.analyze.ptxas import parse_verbose
from labkit.calc.occupancy import occupancy
from labkit.workers import cuda_driver, random_kernels, triton_compile
from labkit.workers.cubin_elf import NotACubin, read_cubin


def elf(attributes: bytes, names: tuple[str, ...] = ("first", "second")) -> bytes:
    """A minimal 64-bit ELF file with .nv.info, .symtab, .strtab and .shstrtab, laid out by hand."""
    strtab = b"\0" + b"".join(name.encode() + b"\0" for name in names)
    at = [1 + sum(len(n) + 1 for n in names[:i]) for i in range(len(names))]
    symtab = b"\0" * 24 + b"".join(struct.pack("<IBBHQQ", offset, 18, 0, 1, 0, 0) for offset in at)
    titles = [b"", b".nv.info", b".symtab", b".strtab", b".shstrtab"]
    shstr = b"\0".join(titles) + b"\0"
    name_at = [shstr.index(title + b"\0") if title else 0 for title in titles]
    body, table, offset = b"", b"", 64
    for title, content in zip(name_at, (b"", attributes, symtab, strtab, shstr)):
        table += struct.pack("<IIQQQQIIQQ", title, 1, 0, 0, offset, len(content), 0, 0, 1, 0)
        body, offset = body + content, offset + len(content)
    fixed = struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, offset, 0, 64, 0, 0, 64, 5, 4)
    return b"\x7fELF\x02\x01\x01" + bytes(9) + fixed + body + table


def sized(kind: int, *values: int) -> bytes:
    return struct.pack(f"<BBH{len(values)}I", 4, kind, 4 * len(values), *values)


def test_elf_attributes_by_hand():
    other = struct.pack("<BBH", 3, 0x1B, 0xFF)  # a kind whose value is in its header
    data = elf(sized(0x2F, 1, 40) + other + sized(0x12, 1, 99) + sized(0x11, 1, 384) + sized(0x2F, 2, 255))
    assert read_cubin(data) == {"first": {"registers": 40, "stack_bytes": 384}, "second": {"registers": 255}}


@pytest.mark.parametrize("data", [b"", b"\x7fELF\x01\x01", elf(sized(0x2F, 9, 1)), elf(b"")[:150],
                                  b"\x7fELF\x02\x01" + bytes(100)])  # fmt: skip
def test_what_is_no_cubin_is_refused(data):
    with pytest.raises(NotACubin) as told:
        read_cubin(data)
    assert "\n" not in str(told.value)


def test_widths_and_local_instructions():
    ptx = ("ld.global.b16 %rs1, [%rd1];\n@%p1 ld.global.L1::evict_last.v2.b32 {%r1,%r2}, [%rd2];\n"
           "st.global.v4.b32 [%rd3],x;")  # fmt: skip
    assert triton_compile.widest(ptx, "ld") == 8 and triton_compile.widest(ptx, "st") == 16
    assert triton_compile.widest("ld.shared.v4.b32 x;", "ld") == 0
    sass = "/*0a*/ STL [R1+0x10], R4 ;\n STL.128 [R1], R8 ;\n @!P1 LDL.LU R3, [R1+0x4] ;\n LDL.64 R2, [R1] ;\n LDLX R1;"
    assert triton_compile.local_instructions(sass) == {"store": 20, "load": 12}


def test_messages_of_compilers_are_one_line_without_paths():
    error = RuntimeError("PTXAS error\n`ptxas` stderr:\nptxas fatal   : Value 'sm_71a' is not defined (/usr/lib/y.ptx)")
    told = triton_compile.one_line(error)
    assert "\n" not in told and "/usr" not in told and len(told) <= 300
    assert triton_compile.one_line(ValueError()) == "ValueError: no message"


def test_a_process_that_died_refuses_the_rest(tmp_path):
    cells = [{"target": 20, "hidden": 64, "num_warps": w, "hints": True} for w in (1, 2)]
    path = tmp_path / "20.jsonl"
    path.write_text('{"kind": "kernel", "num_warps": 1}\n{"kind": "ker')
    lines = triton_compile.read_group(cells, path, -6)
    assert [line["kind"] for line in lines] == ["kernel", "refusal"] and "SIGABRT" in lines[1]["error"]
    assert lines[1]["num_warps"] == 2
    lines = triton_compile.read_group(cells, tmp_path / "none", 3)
    assert len(lines) == 2 and "exit code 3" in lines[0]["error"]


@pytest.fixture(scope="module")
def compiled_random():
    """48 random kernels through ptxas of Triton's package, for sm_90."""
    pytest.importorskip("triton")
    rng = random.Random(5)
    kernels = [random_kernels.draw(i, rng) for i in range(48)]
    text = random_kernels.HEADER + "".join(map(random_kernels.ptx_of, kernels))
    try:
        path = triton_compile.tool("ptxas", 80)
        done = subprocess.run([path, "-v", "--gpu-name=sm_90", "-", "-o", "/dev/null"], input=text, text=True,
                              capture_output=True, timeout=60)  # fmt: skip
    except OSError as error:
        pytest.skip(f"ptxas: {error}")
    assert done.returncode == 0, done.stderr[:300]
    return kernels, parse_verbose(done.stderr)["functions"]


def test_random_kernels_hold_what_they_say(compiled_random):
    kernels, found = compiled_random
    for kernel in kernels:
        seen = found[kernel.name]
        assert seen["registers"] + seen["spill_store_bytes"] // 4 >= kernel.live, kernel
        assert seen["shared_bytes"] == kernel.static_shared_bytes
        assert kernel.max_registers is None or seen["registers"] <= kernel.max_registers
        if kernel.max_registers is None:  # a limit of registers is obeyed even where the block then cannot be launched
            asked = {"registers_per_thread": seen["registers"], "threads_per_block": kernel.max_threads}
            assert occupancy(**asked)["limits"]["registers"] >= 1


def test_random_kernels_differ(compiled_random):
    kernels, found = compiled_random
    registers = {found[kernel.name]["registers"] for kernel in kernels}
    assert len(registers) >= 15 and min(registers) <= 32 and max(registers) >= 120
    assert any(found[kernel.name]["spill_store_bytes"] for kernel in kernels)
    assert {kernel.static_shared_bytes > 0 for kernel in kernels} == {True, False}


def test_random_launches_stay_within_the_block():
    rng = random.Random(1)
    for number in range(200):
        kernel = random_kernels.draw(number, rng)
        for threads, dynamic, _ in random_kernels.draw_launches(kernel, rng, count=5, most_shared_bytes=232_448):
            assert 1 <= threads <= kernel.max_threads
            assert 0 <= dynamic <= 232_448 - kernel.static_shared_bytes
    assert re.fullmatch(r"k\d+", kernel.name)


def test_no_driver_is_one_line(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(cuda_driver.ctypes, "CDLL", missing)
    with pytest.raises(cuda_driver.DriverError, match="no CUDA driver on this machine"):
        cuda_driver.Driver()


def test_kernel_arguments_point_at_their_values():
    import ctypes

    values = [ctypes.c_uint64(2**40), ctypes.c_int32(-7), ctypes.c_float(0.5)]
    array, kept = cuda_driver.pack(values)
    assert len(array) == 3 and kept is values
    assert ctypes.cast(array[0], ctypes.POINTER(ctypes.c_uint64))[0] == 2**40
    assert ctypes.cast(array[1], ctypes.POINTER(ctypes.c_int32))[0] == -7
    assert ctypes.cast(array[2], ctypes.POINTER(ctypes.c_float))[0] == 0.5
