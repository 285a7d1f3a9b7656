"""Registers and stack of a compiled CUDA kernel, read from the ELF file itself, without any NVIDIA tool.

A cubin is a 64-bit little-endian ELF file. Its section `.nv.info` is a list of attributes: one byte of format, one of
kind, two of size or value. Kind 0x2f holds pairs of a symbol's number and its registers, 0x11 of its frame size, which
is the stack. Kernel names are symbols of the section `.symtab`.
"""

from __future__ import annotations

import struct

REGISTERS, FRAME, SIZED = 0x2F, 0x11, 4


class NotACubin(ValueError):
    """Bytes that are not a 64-bit ELF file with the sections of a cubin; one line."""


def read_cubin(data: bytes) -> dict[str, dict[str, int]]:
    """Resources by kernel: {"registers": per thread, "stack_bytes": per thread}, of those the file tells.

    Raises: NotACubin when the bytes cannot be read.

    >>> read_cubin(b"not an elf file")
    Traceback (most recent call last):
    labkit.workers.cubin_elf.NotACubin: 15 bytes that are no 64-bit ELF file
    """
    if data[:6] != b"\x7fELF\x02\x01":
        raise NotACubin(f"{len(data)} bytes that are no 64-bit ELF file")
    try:
        sections = _sections(data)
        symbols = _symbols(data, *sections[".symtab"], sections[".strtab"])
        found: dict[str, dict[str, int]] = {}
        for kind, payload in _attributes(data, *sections[".nv.info"]):
            name = {REGISTERS: "registers", FRAME: "stack_bytes"}.get(kind)
            if name and len(payload) == 8:
                symbol, value = struct.unpack("<II", payload)
                found.setdefault(symbols[symbol], {})[name] = value
    except (struct.error, KeyError, IndexError, ValueError) as error:
        raise NotACubin(f"ELF file that is cut or no cubin ({type(error).__name__}: {error})") from None
    return found


def _sections(data: bytes) -> dict[str, tuple[int, int]]:
    """Section name -> offset, size."""
    (table,) = struct.unpack_from("<Q", data, 40)
    entry_bytes, count, names_at = struct.unpack_from("<HHH", data, 58)
    entries = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * entry_bytes) for i in range(count)]
    names = entries[names_at][4]
    return {_text(data, names + entry[0]): (entry[4], entry[5]) for entry in entries}


def _symbols(data: bytes, at: int, size: int, strings: tuple[int, int]) -> list[str]:
    return [_text(data, strings[0] + struct.unpack_from("<I", data, i)[0]) for i in range(at, at + size, 24)]


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def _attributes(data: bytes, at: int, size: int) -> list[tuple[int, bytes]]:
    found, end = [], at + size
    while at + 4 <= end:
        layout, kind, value = struct.unpack_from("<BBH", data, at)
        length = value if layout == SIZED else 0
        found.append((kind, data[at + 4 : at + 4 + length]))
        at += 4 + length
    return found
