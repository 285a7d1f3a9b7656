"""Bytes of a trace file, in pieces: plain, gzip (by content, whatever the name), UTF-16, cut short."""

from __future__ import annotations

import codecs
import zlib
from pathlib import Path
from types import TracebackType

from labkit.analyze.kinds import UnreadableInput

_MAGIC = {
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"\x28\xb5\x2f\xfd": "a zstd archive; unpack it first",
    b"BZh": "a bzip2 archive; unpack it first",
    b"\xfd7zXZ": "an xz archive; unpack it first",
    b"SQLite format 3": "an SQLite database (Nsight Systems export?)",
}
_RAW_READ = 1 << 18


class ByteSource:
    """Reads a trace file as UTF-8 bytes, decompressing on the way; never holds the whole file.

    After the end, `damage` says in one line what was wrong with the container (None: nothing).
    """

    def __init__(self, path: Path) -> None:
        """Open the file and look at its first bytes. Raises: UnreadableInput (missing, folder, empty, an archive)."""
        self.path = path
        self.damage: str | None = None
        self.compressed = False
        self._inflate = None
        self._decode = None
        self._pending = b""
        try:
            self._file = open(path, "rb")  # noqa: SIM115 (closed in __exit__)
            start = self._file.read(16)
        except IsADirectoryError as err:
            raise UnreadableInput(f"{path}: is a folder, expected one trace file") from err
        except OSError as err:
            raise UnreadableInput(f"{path}: cannot be read ({err.strerror or err})") from err
        if not start:
            self._file.close()
            raise UnreadableInput(f"{path}: empty file, expected a PyTorch trace (JSON)")
        for magic, what in _MAGIC.items():
            if start.startswith(magic):
                self._file.close()
                raise UnreadableInput(f"{path}: {what}, expected a PyTorch trace (JSON)")
        if start[:2] == b"\x1f\x8b":
            self.compressed = True
            self._inflate = zlib.decompressobj(wbits=31)
        elif start[:2] in (b"\xff\xfe", b"\xfe\xff"):
            self._decode = codecs.getincrementaldecoder("utf-16")(errors="replace")
        self._file.seek(0)

    def __enter__(self) -> ByteSource:
        """Use as a context manager."""
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None) -> None:
        """Close the file."""
        self._file.close()

    def read(self, size: int) -> bytes:
        """About `size` more bytes (at least one), or b"" at the end. Raises: UnreadableInput on a read error."""
        try:
            if self._inflate is not None:
                return self._read_gzip(size)
            data = self._file.read(size)
        except OSError as err:
            raise UnreadableInput(f"{self.path}: read error ({err.strerror or err})") from err
        if self._decode is not None:
            return self._decode.decode(data, final=not data).encode("utf-8", "replace")
        return data

    def _read_gzip(self, size: int) -> bytes:
        out: list[bytes] = []
        got = 0
        while got < size and self.damage is None:
            stream = self._inflate
            assert stream is not None
            if stream.eof:
                rest = (stream.unused_data + self._file.read(_RAW_READ)).lstrip(b"\0")
                if not rest:
                    break
                if rest[:2] != b"\x1f\x8b":
                    self.damage = "bytes that are no gzip follow the gzip stream"
                    break
                self._inflate, self._pending = zlib.decompressobj(wbits=31), rest
                continue
            raw = stream.unconsumed_tail or self._pending or self._file.read(_RAW_READ)
            self._pending = b""
            if not raw:
                # Some output may still be held back inside the decompressor.
                out.append(stream.flush())
                self.damage = "gzip stream is cut (no end marker)"
                break
            try:
                piece = stream.decompress(raw, size - got)
            except zlib.error as err:
                self.damage = f"gzip stream is damaged ({err})"
                break
            out.append(piece)
            got += len(piece)
        return b"".join(out)
