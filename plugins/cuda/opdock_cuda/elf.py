"""Whether a shared object is whole: the linker maps one that is cut off, and the process dies of SIGBUS."""

from __future__ import annotations

import struct
from pathlib import Path


def cut_off(file: Path) -> str:
    """Return how much of a 64-bit, little-endian ELF file is missing, "" where nothing is or where it is none.

    Its header and the table of its segments name what has to be there: segments, and the table of sections, which
    linkers put last.
    """
    size = file.stat().st_size
    with file.open("rb") as opened:
        header = opened.read(64)
        if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
            return ""  # the linker has a word for that
        segments, sections, entry, count, section, number = struct.unpack_from("<QQ6xHHHH", header, 32)
        opened.seek(segments)
        table = opened.read(entry * count)
    ends = [sections + section * number, segments + entry * count]
    for at in range(0, len(table) - 55, entry or 56):
        start, length = struct.unpack_from("<Q16xQ", table, at + 8)
        ends.append(start + length)
    return f"file cut off: it has {size:,} bytes of {max(ends):,}" if max(ends) > size else ""
