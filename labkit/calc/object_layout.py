"""Sizes of C++ objects on a common ABI, and swaps without a temporary on fixed-width integers.

In: member sizes, bases, integers. Out: bytes, values.

    python -m labkit calc object_layout struct_bytes members=[1,8,1]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.calc._require import require_choice, require_int

POINTER = 8


def struct_bytes(
    *, members: Sequence[int], num_virtual: int = 0, polymorphic_bases: Sequence[Sequence[int]] = ()
) -> int:
    """Size of an object with members in this order.

    Args:
        members: size of each member in bytes: 1, 2, 4, 8 or 16, aligned to its size.
        num_virtual: virtual functions of its own, >= 0; more than one changes the table, not the object.
        polymorphic_bases: members of each polymorphic base; each base has a pointer to its table.

    Returns: bytes, at least 1.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: x86-64 Itanium ABI; bases are not plain old data, so a later part may use their tail padding; no virtual
        bases, no empty-base rules, no packing.
    Source: Itanium C++ ABI, chapter 2.4; interview question 26.

    >>> struct_bytes(members=[1, 8, 1]), struct_bytes(members=[8, 1, 1]), struct_bytes(members=[4], num_virtual=3)
    (24, 16, 16)
    >>> struct_bytes(members=[4], polymorphic_bases=[[4], [4]])
    32
    """
    offset, alignment = 0, 1
    virtual = require_int("num_virtual", num_virtual, least=0)
    parts = [[POINTER, *base] for base in polymorphic_bases]
    own = list(members) if parts or not virtual else [POINTER, *members]  # with a base its table pointer is shared
    for part in [*parts, own]:
        sizes = [_member(size) for size in part]
        widest = max(sizes, default=1)
        if part is not own:
            offset = _round_up(offset, widest)  # a base starts aligned as a whole
        for size in sizes:
            offset = _round_up(offset, size) + size
        alignment = max(alignment, widest)
    return max(1, _round_up(offset, alignment))


def swap_in_place(recipe: str, *, a: int, b: int, bits: int = 32, aliased: bool = False) -> dict[str, Any]:
    """Exchange two integers without a temporary, with wrap-around arithmetic.

    Args:
        recipe: arithmetic or xor.
        a: signed integer of this width.
        b: signed integer of this width.
        bits: 2 to 128.
        aliased: both names are one object (a); the recipes then destroy it.

    Returns: {"a", "b": after the swap, "overflows": whether a + b leaves the signed range (undefined in C++)}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: two's complement.
    Source: interview question 27.

    >>> swap_in_place("xor", a=3, b=5), swap_in_place("arithmetic", a=7, b=7, aliased=True)
    ({'a': 5, 'b': 3, 'overflows': False}, {'a': 0, 'b': 0, 'overflows': False})
    """
    require_choice("recipe", recipe, ("arithmetic", "xor"))
    if require_int("bits", bits, least=2) > 128:
        raise ValueError(f"bits={bits!r}: expected at most 128")
    half = 1 << (bits - 1)
    for name, value in (("a", a), ("b", b)):
        if require_int(name, value, least=-half) >= half:
            raise ValueError(f"{name}={value!r}: expected a signed integer of {bits} bits")
    store = {"a": a, "b": b}
    second = "a" if aliased else "b"

    def assign(name: str, value: int) -> None:
        store[name] = (value + half) % (2 * half) - half

    for target, sign in (("a", 1), (second, -1), ("a", -1)):
        left, right = store["a"], store[second]
        if recipe == "xor":
            assign(target, left ^ right)
        else:
            assign(target, left + sign * right)
    overflows = recipe == "arithmetic" and not -half <= a + (a if aliased else b) < half
    return {"a": store["a"], "b": store[second], "overflows": overflows}


def swaps_all(recipe: str, *, most: int = 20) -> bool:
    """Whether a recipe exchanges every pair of distinct small integers.

    Args:
        recipe: arithmetic or xor.
        most: largest size, 0 to 200.

    Returns: True if every pair comes out exchanged.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `swap_in_place`.
    Source: enumeration; interview question 27.

    >>> swaps_all("xor"), swaps_all("arithmetic")
    (True, True)
    """
    if require_int("most", most, least=0) > 200:
        raise ValueError(f"most={most!r}: expected at most 200")
    numbers = range(-most, most + 1)
    found = ((a, b, swap_in_place(recipe, a=a, b=b)) for a in numbers for b in numbers)
    return all((new["a"], new["b"]) == (b, a) for a, b, new in found)


def copied_list(*, values: Sequence[int], index: int, write: int, deep: bool) -> dict[str, list[int]]:
    """Write through a copy of an owner of numbers: does the original see it?

    Args:
        values: the original's content.
        index: position that is written, 0 to the last.
        write: new value.
        deep: copy the content; False copies the pointer only.

    Returns: {"original", "copy"} after the write.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: nothing is freed (in C++ the shallow copy is freed twice).
    Source: interview question 25.

    >>> copied_list(values=[10, 20], index=0, write=99, deep=True)
    {'original': [10, 20], 'copy': [99, 20]}
    """
    original = [require_int("values", value, least=-(2**63)) for value in values]
    if require_int("index", index, least=0) >= len(original):
        raise ValueError(f"index={index!r}: expected less than {len(original)}, the number of values")
    copy = list(original) if deep else original
    copy[index] = require_int("write", write, least=-(2**63))
    return {"original": original, "copy": copy}


def _member(size: int) -> int:
    if size not in (1, 2, 4, 8, 16):
        raise ValueError(f"members: size {size!r}: expected 1, 2, 4, 8 or 16")
    return size


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
