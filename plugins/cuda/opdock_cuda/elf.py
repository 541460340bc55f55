"""What is wrong with a shared object before the linker sees it, which has no word or no mercy for these faults.

It maps a file that is cut off, and the process dies of SIGBUS; one for another processor "does not exist".
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

_HEADER = 64


def fault(file: Path, *, like: Path = Path(sys.executable)) -> str:
    """Return what is wrong with an ELF file, "" where nothing is or where the linker has a word for it.

    Args:
        file: the shared object.
        like: a file for the processor that has to run it.
    """
    size, header, other = file.stat().st_size, _begin(file), _begin(like)
    if header[:6] != b"\x7fELF\x02\x01" or other[:6] != header[:6]:  # 64 bits, little-endian
        return ""
    (machine,), (wanted,) = (struct.unpack_from("<H", each, 18) for each in (header, other))
    if machine != wanted:
        return f"built for another processor: ELF machine {machine}, and this Python is of {wanted}"
    missing = _end(file, header)
    return f"file cut off: it has {size:,} bytes of {missing:,}" if missing > size else ""


def _begin(file: Path) -> bytes:
    with file.open("rb") as opened:
        found = opened.read(_HEADER)
    return found if len(found) == _HEADER else b""


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
