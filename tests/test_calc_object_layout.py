"""C++ object sizes against ctypes' layout of the same struct, swaps by enumeration."""

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import object_layout as layout

C_TYPES = {1: ctypes.c_int8, 2: ctypes.c_int16, 4: ctypes.c_int32, 8: ctypes.c_int64}
members = st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=10)
int32 = st.integers(-(2**31), 2**31 - 1)


def test_printed_sizes():
    """Interview question 26: 24 and 16 by order; 16 with one or three virtual functions; 32 for two bases."""
    assert [layout.struct_bytes(members=m) for m in ([1, 8, 1], [8, 1, 1])] == [24, 16]
    assert [layout.struct_bytes(members=[4], num_virtual=n) for n in (1, 3)] == [16, 16]
    assert layout.struct_bytes(members=[4], polymorphic_bases=[[4], [4]]) == 32
    assert layout.struct_bytes(members=[]) == 1 and layout.struct_bytes(members=[], num_virtual=1) == 8


@given(sizes=members)
def test_plain_structs_are_laid_out_as_c_does(sizes):
    struct = type("S", (ctypes.Structure,), {"_fields_": [(f"m{i}", C_TYPES[s]) for i, s in enumerate(sizes)]})
    assert layout.struct_bytes(members=sizes) == ctypes.sizeof(struct)
    pointer = type("P", (ctypes.Structure,), {
        "_fields_": [("table", ctypes.c_void_p), *((f"m{i}", C_TYPES[s]) for i, s in enumerate(sizes))]})
    assert layout.struct_bytes(members=sizes, num_virtual=2) == ctypes.sizeof(pointer)


@given(sizes=members)
def test_descending_order_is_never_larger(sizes):
    assert layout.struct_bytes(members=sorted(sizes, reverse=True)) <= layout.struct_bytes(members=sizes)


@given(a=int32, b=int32, recipe=st.sampled_from(["arithmetic", "xor"]))
def test_distinct_objects_are_exchanged_and_one_object_is_lost(a, b, recipe):
    """Interview question 27: also where the sum wraps around, which C++ leaves undefined."""
    found = layout.swap_in_place(recipe, a=a, b=b)
    assert (found["a"], found["b"]) == (b, a)
    assert found["overflows"] == (recipe == "arithmetic" and not -(2**31) <= a + b < 2**31)
    assert layout.swap_in_place(recipe, a=a, b=a, aliased=True)["a"] == 0


def test_printed_swaps_and_copies():
    assert layout.swaps_all("arithmetic", most=5) and layout.swaps_all("xor", most=5)
    assert layout.swap_in_place("arithmetic", a=2**31 - 1, b=1) == {"a": 1, "b": 2**31 - 1, "overflows": True}
    deep, shallow = (layout.copied_list(values=[10, 20], index=0, write=99, deep=d) for d in (True, False))
    assert (deep["original"][0], deep["copy"][0]) == (10, 99) and shallow["original"][0] == 99


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: layout.struct_bytes(members=[3]), "members: size 3"),
        (lambda: layout.struct_bytes(members=[], num_virtual=-1), "num_virtual=-1"),
        (lambda: layout.swap_in_place("temp", a=1, b=2), "recipe='temp'"),
        (lambda: layout.swap_in_place("xor", a=2**31, b=2), "a=2147483648"),
        (lambda: layout.swap_in_place("xor", a=1, b=2, bits=1), "bits=1"),
        (lambda: layout.swaps_all("xor", most=201), "most=201"),
        (lambda: layout.copied_list(values=[1], index=1, write=0, deep=True), "index=1"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
