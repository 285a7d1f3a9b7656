"""cuobjdump and ptxas output in forms that the format cases do not hold; expected values are read off the text."""

import pytest

from labkit.analyze.cuobjdump import parse_resource_usage, static_shared_bytes
from labkit.analyze.kinds import KINDS, UnreadableInput
from labkit.analyze.ptxas import parse_verbose

ONE = """
Resource usage:
 Common:
  GLOBAL:0
 Function k:
  REG:16 STACK:8 SHARED:2048 LOCAL:4 CONSTANT[0]:548 CONSTANT[3]:8 TEXTURE:1 SURFACE:0 SAMPLER:0
"""
SEVERAL = """
Fatbin elf code:
================
arch = sm_80
code version = [1,8]
host = linux
compile_size = 64bit

Resource usage:
 Common:
  GLOBAL:0
 Function _Z1aPf:
  REG:20 STACK:0 SHARED:1024 LOCAL:0 CONSTANT[0]:360 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function only80:
  REG:8 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:360 TEXTURE:0 SURFACE:0 SAMPLER:0

Fatbin elf code:
================
arch = sm_90a
code version = [1,8]
host = linux
compile_size = 64bit

Resource usage:
 Common:
  GLOBAL:0
 Function _Z1aPf:
  REG:24 STACK:0 SHARED:2048 LOCAL:0 CONSTANT[0]:536 TEXTURE:0 SURFACE:0 SAMPLER:0

Fatbin ptx code:
================
arch = sm_90
code version = [9,0]
"""


def test_every_field_is_kept():
    entry = parse_resource_usage(ONE)["functions"]["k"]
    assert entry == {"arch": None, "registers": 16, "stack_bytes": 8, "shared_bytes": 2048, "local_bytes": 4,
                     "static_shared_bytes": None, "constant_bytes": {"0": 548, "3": 8},
                     "other": {"TEXTURE": 1, "SURFACE": 0, "SAMPLER": 0}}  # fmt: skip


def test_several_architectures():
    answer = parse_resource_usage(SEVERAL)
    assert answer["architectures"] == ["sm_80", "sm_90a", "sm_90"] and answer["complete"]
    found = {name: (e["arch"], e["registers"], e["static_shared_bytes"]) for name, e in answer["functions"].items()}
    assert found == {"_Z1aPf@sm_80": ("sm_80", 20, 1024), "only80": ("sm_80", 8, 0),
                     "_Z1aPf@sm_90a": ("sm_90a", 24, 1024)}  # fmt: skip


@pytest.mark.parametrize("line", [
    "LOCAL:4 SHARED:2048 SAMPLER:0 STACK:8 CONSTANT[0]:548 REG:16 BARRIER:1",
    "REG:16 STACK:8\n  SHARED:2048 LOCAL:4", "REG : 16  STACK: 8 SHARED:2048 LOCAL:4",
    "REG:16\tSTACK:8\tSHARED:2048\tLOCAL:4",
])  # fmt: skip
def test_order_extra_fields_and_line_breaks(line):
    entry = parse_resource_usage(f"Resource usage:\r\n Function k:\r\n  {line}\r\n")["functions"]["k"]
    assert (entry["registers"], entry["stack_bytes"], entry["shared_bytes"], entry["local_bytes"]) == (16, 8, 2048, 4)


def test_name_and_fields_on_one_line():
    entry = parse_resource_usage("Resource usage:\n Function k: REG:16 STACK:8 SHARED:2048 LOCAL:4\n")["functions"]["k"]
    assert (entry["registers"], entry["stack_bytes"], entry["shared_bytes"], entry["local_bytes"]) == (16, 8, 2048, 4)


@pytest.mark.parametrize("name", ["_ZN2ns3rmsILi256EEEvPKfPfi", "void ns::rms<256>(float const*, float*, int)",
                                  "operator()", "Function"])  # fmt: skip
def test_names_as_printed(name):
    text = ONE.replace("Function k:", f"Function {name}:")
    assert list(parse_resource_usage(text)["functions"]) == [name]
    log = f"ptxas info    : Compiling entry function '{name}' for 'sm_90'\nptxas info    : Used 7 registers\n"
    assert parse_verbose(log)["functions"][name]["registers"] == 7


@pytest.mark.parametrize(("cut", "registers", "shared"), [
    ("SHARED:2048", 16, None), ("SHARED:20", 16, None), ("REG:16", None, None), ("REG:", None, None),
    ("LOCAL", 16, 2048),
])  # fmt: skip
def test_a_cut_file_gives_no_half_numbers(cut, registers, shared):
    entry = (answer := parse_resource_usage(ONE[: ONE.index(cut) + len(cut)]))["functions"]["k"]
    assert not answer["complete"] and entry["registers"] == registers and entry["shared_bytes"] == shared


def test_cut_after_the_name_and_a_missing_last_line_break():
    answer = parse_resource_usage(ONE[: ONE.index("  REG")])
    assert answer["functions"]["k"]["registers"] is None and not answer["complete"]
    whole = parse_resource_usage(ONE.rstrip("\n"))
    assert whole["complete"] and whole["functions"]["k"]["other"]["SAMPLER"] == 0


def test_reserved_bytes():
    assert [static_shared_bytes(b, "sm_90") for b in (0, 1024, 3072, None)] == [0, 0, 2048, None]
    assert static_shared_bytes(1040, "sm_100a") == 16 and static_shared_bytes(1040, "sm_89") == 1040


def test_the_tool_had_nothing_to_say():
    answer = parse_resource_usage("cuobjdump info    : File 'a.out' does not contain device code\n")
    assert answer["functions"] == {} and "does not contain device code" in answer["error"] and not answer["complete"]
    assert parse_resource_usage("\nResource usage:\n Common:\n  GLOBAL:0\n")["functions"] == {}


PTXAS = """\
nvcc warning : Support for offline compilation for architectures prior to 'compute_75' will be removed
ptxas-blackwell info    : 11 bytes gmem, 8 bytes cmem[4]
ptxas-blackwell info    : Compiling entry function 'k' for 'sm_100a'
ptxas-blackwell info    : Function properties for k
    0 bytes spill loads, 4 bytes spill stores, 16 bytes stack frame
ptxas-blackwell info : Used 50 registers, 512+8 bytes smem, 16 bytes cumulative stack size, 2 barriers, 20 bytes cmem[2]
ptxas-blackwell info    : Function properties for _Z6helperf
    32 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
"""


def test_ptxas_of_blackwell_with_a_called_function():
    answer = parse_verbose(PTXAS)
    kernel, helper = answer["functions"]["k"], answer["functions"]["_Z6helperf"]
    assert (kernel["registers"], kernel["stack_bytes"], kernel["spill_store_bytes"], kernel["spill_load_bytes"],
            kernel["shared_bytes"], kernel["barriers"], kernel["constant_bytes"], kernel["cumulative_stack_bytes"]
            ) == (50, 16, 4, 0, 520, 2, {"2": 20}, 16)  # fmt: skip
    assert helper["registers"] is None and helper["stack_bytes"] == 32 and not helper["is_entry"]
    assert answer["spills_known"] and answer["complete"] and answer["architectures"] == ["sm_100a"]


def test_ptxas_two_architectures_old_and_linker_forms():
    log = "".join(f"ptxas info    : Compiling entry function 'k' for '{arch}'\nptxas info    : Used {used} registers, "
                  f"{used} bytes lmem\n" for arch, used in (("sm_70", 30), ("sm_90", 32)))
    found = parse_verbose("[3/9] building\n" + log)["functions"]
    assert found["k@sm_70"]["registers"] == 30 and found["k@sm_90"]["local_bytes"] == 32
    assert found["k@sm_70"]["spill_store_bytes"] is None and found["k@sm_70"]["shared_bytes"] == 0
    linked = parse_verbose("nvlink info    : Function properties for 'k':\n"
                           "nvlink info    : used 20 registers, 8 stack, 1024 bytes smem, 0 bytes lmem\n")
    assert linked["functions"]["k"]["registers"] == 20 and linked["functions"]["k"]["stack_bytes"] == 8
    assert not linked["spills_known"]
    windows = parse_verbose("ptxas : info : Compiling entry function 'k' for 'sm_90'\n"
                            "  ptxas : info : Used 9 registers\n")
    assert windows["functions"]["k"]["registers"] == 9


@pytest.mark.parametrize(("cut", "registers", "spills"), [
    ("Used 5", None, 4), ("4 bytes spill st", None, None), ("for 'sm_100a'", None, None)])
def test_ptxas_cut(cut, registers, spills):
    answer = parse_verbose(PTXAS[: PTXAS.index(cut) + len(cut)])
    entry = answer["functions"]["k"]
    assert not answer["complete"] and entry["registers"] == registers and entry["spill_store_bytes"] == spills


def test_ptxas_error_is_an_answer():
    answer = parse_verbose("ptxas fatal   : Value 'sm_71' is not defined for option 'gpu-name'\n")
    assert answer["functions"] == {} and answer["errors"] == ["Value 'sm_71' is not defined for option 'gpu-name'"]
    assert not answer["complete"] and not answer["spills_known"]


@pytest.mark.parametrize("kind", ["cuobjdump_resource_usage", "ptxas_verbose"])
@pytest.mark.parametrize("content", [b"", b"\n\n", b"<html><body>404 Not Found</body></html>", b"REG: none\n",
                                     b"\0\1\2", b"id,name\n1,x\n", b'{"a": 1}'])  # fmt: skip
def test_other_files_are_refused_in_one_line(tmp_path, kind, content):
    path = tmp_path / "file.txt"
    path.write_bytes(content)
    with pytest.raises(UnreadableInput) as told:
        KINDS[kind]([path])
    assert str(path) in str(told.value) and "\n" not in str(told.value)
    with pytest.raises(UnreadableInput, match="no such file"):
        KINDS[kind]([tmp_path / "nothing"])


LINKED = """\
ptxas info    : Compiling entry function 'k' for 'sm_90'
ptxas info    : Function properties for k
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 24 registers, used 1 barriers, 512 bytes smem
ptxas info    : Function properties for part
    16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
nvlink info    : 64 bytes gmem (target: sm_90)
nvlink info    : Function properties for 'k': (target: sm_90)
nvlink info    : used 80 registers, used 1 barriers, 16 stack, 1536 bytes smem, 0 bytes lmem (target: sm_90)
nvlink info    : Function properties for 'other': (target: sm_80)
nvlink info    : used 12 registers, used 0 barriers, 0 stack, 0 bytes smem, 0 bytes lmem (target: sm_80)
"""


def test_the_linkers_report_stands_beside_the_compilers():
    found = parse_verbose(LINKED)["functions"]
    assert set(found) == {"k", "part", "other"}
    assert (found["k"]["registers"], found["k"]["shared_bytes"], found["k"]["spill_store_bytes"]) == (24, 512, 0)
    assert (found["k"]["linked"]["registers"], found["k"]["linked"]["stack_bytes"]) == (80, 16)
    assert found["other"]["registers"] == 12 and found["other"]["arch"] == "sm_80" and "linked" not in found["part"]


def test_a_warning_of_spills_belongs_to_the_function_it_names():
    warnings = ("ptxas warning : Local memory used for function 'b', size of stack frame: 96 bytes\n"
                "ptxas warning : Registers are spilled to local memory in function 'b', "
                "40 bytes spill stores, 44 bytes spill loads\n")
    log = "ptxas info    : Compiling entry function 'a' for 'sm_80'\n" + warnings
    assert parse_verbose(log)["functions"]["a"]["spill_store_bytes"] is None
    alone = parse_verbose(warnings)
    assert alone["functions"]["b"]["spill_load_bytes"] == 44 and alone["functions"]["b"]["stack_bytes"] == 96
    assert alone["spills_known"] and not alone["complete"]


def test_a_stack_that_the_tool_cannot_tell_is_no_cut():
    answer = parse_resource_usage(ONE.replace("STACK:8", "STACK:UNKNOWN"))
    assert answer["functions"]["k"]["stack_bytes"] is None and answer["functions"]["k"]["shared_bytes"] == 2048
    assert answer["complete"] and "is_whole" not in answer["functions"]["k"]
    cut = parse_resource_usage(ONE + " Function m:\n  REG:3\n Function n:\n  REG:4 STACK:0 SHARED:0 LOCAL:0\n")
    assert not cut["complete"] and all("is_whole" not in entry for entry in cut["functions"].values())
