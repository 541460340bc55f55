"""What is wrong with a shared object before the linker sees it, which has no word or no mercy for these faults.

It maps a file that is cut off, and the process dies of SIGBUS; one for another processor "does not exist".
"""

from __future__ import annotations

import struct
from pathlib import Path

_HEADER = 64
_SELF = Path("/proc/self/exe")
"""The program of this process; where there is no such file, processors are not compared."""


def fault(file: Path, *, program: Path = _SELF) -> str:
    """Return what is wrong with a shared object, "" where nothing is or where the linker has a word for it.

    Args:
        file: a 64-bit, little-endian ELF file.
        program: a file for the processor that has to run it.
    """
    header = _begin(file)
    if not header:
        return ""
    machine, wanted = _machine(header), _machine(_begin(program)) if program.exists() else None
    if wanted is not None and machine != wanted:
        return f"built for another processor: ELF machine {machine}, and this program is of {wanted}"
    size, whole = file.stat().st_size, _end(file, header)
    return f"file cut off: it has {size:,} bytes of {whole:,}" if whole > size else ""


def _begin(file: Path) -> bytes:
    """Return the header of an ELF file, b"" of any other."""
    with file.open("rb") as opened:
        found = opened.read(_HEADER)
    return found if len(found) == _HEADER and found[:6] == b"\x7fELF\x02\x01" else b""


def _machine(header: bytes) -> int | None:
    return int(struct.unpack_from("<H", header, 18)[0]) if header else None


def _end(file: Path, header: bytes) -> int:
    """Return where the file has to end: behind its segments and the table of sections, which linkers put last."""
    segments, sections, entry, count, section, number = struct.unpack_from("<QQ6xHHHH", header, 32)
    with file.open("rb") as opened:
        opened.seek(segments)
        table = opened.read(entry * count)
    ends = [sections + section * number, segments + entry * count]
    for at in range(0, len(table) - 55, entry or 56):
        start, length = struct.unpack_from("<Q16xQ", table, at + 8)
        ends.append(start + length)
    return int(max(ends))
