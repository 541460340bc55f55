"""The header of a GGUF file: metadata and the list of tensors, every length checked against the file's size.

Written out here because the ``gguf`` package takes two seconds for a list of a hundred thousand tokens, and
because a broken count must end in an error, not in an endless loop. The package decodes the tensors' data.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opdock.errors import CheckpointError
from opdock.nn.extras import need

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_ALIGNMENT = 32
_VERSIONS = (2, 3)


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of the file.

    Args:
        name: in the file.
        shape: rows first, as PyTorch counts; the file stores them the other way round.
        kind: number of the storage type.
        kind_name: its name, for example ``Q4_1``.
        offset: first byte in the file.
        nbytes: number of bytes.
    """

    name: str
    shape: tuple[int, ...]
    kind: int
    kind_name: str
    offset: int
    nbytes: int


class GGUFHeader:
    """Metadata and tensors of a file.

    Args:
        path: of the file.

    Raises: CheckpointError if it is no GGUF file, truncated or broken.
    """

    def __init__(self, path: Path) -> None:
        """Read the header."""
        self.path = path
        self.size = path.stat().st_size
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, TensorInfo] = {}
        if self.size < 24:
            raise self._broken(f"{self.size} bytes: too short for a header.")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                self._read(data)
            except (struct.error, UnicodeDecodeError, OverflowError, MemoryError) as err:
                raise self._broken(str(err)) from err

    def _broken(self, why: str) -> CheckpointError:
        return CheckpointError(
            f"The GGUF file {self.path.name!r} is truncated or broken.",
            who=str(self.path),
            why=why,
            remedy="download the file again.",
        )

    def _read(self, data: mmap.mmap) -> None:
        if data[:4] != b"GGUF":
            raise self._broken(f"It starts with {bytes(data[:4])!r}, not with b'GGUF'.")
        version, tensors, pairs = struct.unpack_from("<IQQ", data, 4)
        if version not in _VERSIONS:
            endian = " It was written on a big-endian machine." if version > 0xFFFF else ""
            raise self._broken(f"Version {version} of the format is not known.{endian}")
        at = 24
        for _ in range(self._plausible(pairs, 13, at)):
            key, at = self._string(data, at)
            (kind,) = struct.unpack_from("<I", data, at)
            self.metadata[key], at = self._value(data, kind, at + 4)
        raw = []
        for _ in range(self._plausible(tensors, 24, at)):
            name, at = self._string(data, at)
            (rank,) = struct.unpack_from("<I", data, at)
            dims = struct.unpack_from(f"<{self._plausible(rank, 8, at)}Q", data, at + 4)
            kind, offset = struct.unpack_from("<IQ", data, at + 4 + 8 * rank)
            at += 16 + 8 * rank
            raw.append((name, dims, kind, offset))
        alignment = self.metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self._broken(f"general.alignment is {alignment!r}, which is no power of two.")
        start = -(-at // alignment) * alignment
        for name, dims, kind, offset in raw:
            self._add(name, dims, kind, start + offset)

    def _add(self, name: str, dims: tuple[int, ...], kind: int, offset: int) -> None:
        constants = need("gguf.constants", "Reading a GGUF file")
        try:
            kind_name = constants.GGMLQuantizationType(kind).name
            block, size = constants.GGML_QUANT_SIZES[constants.GGMLQuantizationType(kind)]
        except (ValueError, KeyError):
            raise self._broken(f"The tensor {name!r} has the unknown storage type {kind}.") from None
        count = 1
        for dim in dims:
            count *= dim
        if name in self.tensors:
            raise self._broken(f"Two tensors are called {name!r}.")
        if dims and dims[0] % block:
            raise self._broken(f"The tensor {name!r} has rows of {dims[0]}, not whole blocks of {block}.")
        nbytes = count // block * size
        if offset + nbytes > self.size:
            raise self._broken(
                f"The tensor {name!r} needs bytes {offset} to {offset + nbytes}, the file has {self.size}."
            )
        self.tensors[name] = TensorInfo(name, tuple(reversed(dims)), kind, kind_name, offset, nbytes)

    def _plausible(self, count: int, least: int, at: int) -> int:
        """Return ``count`` if so many items of at least ``least`` bytes fit behind ``at``."""
        if count * least > self.size - at:
            raise self._broken(f"{count} items at byte {at} do not fit in {self.size} bytes.")
        return count

    def _string(self, data: mmap.mmap, at: int) -> tuple[str, int]:
        (length,) = struct.unpack_from("<Q", data, at)
        end = at + 8 + self._plausible(length, 1, at + 8)
        return data[at + 8 : end].decode("utf-8"), end

    def _value(self, data: mmap.mmap, kind: int, at: int, depth: int = 0) -> tuple[Any, int]:
        if kind in _SCALARS:
            form = f"<{_SCALARS[kind]}"
            return struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)
        if kind == _STRING:
            return self._string(data, at)
        if kind != _ARRAY or depth > 4:
            raise self._broken(f"A value at byte {at} has the unknown type {kind}.")
        item, count = struct.unpack_from("<IQ", data, at)
        at += 12
        if item in _SCALARS:
            form = f"<{self._plausible(count, struct.calcsize('<' + _SCALARS[item]), at)}{_SCALARS[item]}"
            return list(struct.unpack_from(form, data, at)), at + struct.calcsize(form)
        values = []
        for _ in range(self._plausible(count, 8, at)):
            value, at = self._value(data, item, at, depth + 1)
            values.append(value)
        return values, at
