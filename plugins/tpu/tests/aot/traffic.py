"""How many bytes of a compiled program go to and from the device's memory, counted in its text.

XLA's own count holds what lies in a core's vector memory too. Here an operand or a result counts where its layout names
no other memory space: once for each instruction of the entry computation that reads or writes it, and whole, even where
a part is read.
"""

from __future__ import annotations

import re

BYTES = {
    "pred": 1,
    "s8": 1,
    "u8": 1,
    "s16": 2,
    "u16": 2,
    "f16": 2,
    "bf16": 2,
    "s32": 4,
    "u32": 4,
    "f32": 4,
    "s64": 8,
    "u64": 8,
    "f64": 8,
}

FREE = frozenset(("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "copy-done", "slice-done", "iota"))
"""Instructions that move nothing, or whose bytes were counted where they began."""

_ARRAY = re.compile(r"(\w+)\[([\d,]*)\](?:\{([^}]*)\})?")
_LINE = re.compile(r"(?:ROOT )?%([\w.-]+) = (.+?) ([a-z][\w-]*)\((.*)")
_OPERAND = re.compile(r"%([\w.-]+)")


def hbm_bytes(text: str) -> int:
    """Return the bytes that the entry computation of a compiled module reads and writes in the device's memory."""
    entry = text[text.index("\nENTRY ") :]
    held: dict[str, int] = {}
    total = 0
    for line in entry.splitlines()[1:]:
        found = _LINE.match(line.strip())
        if not found:
            continue
        name, shape, kind, rest = found.groups()
        held[name] = _in_memory(shape)
        if kind in FREE:
            continue
        operands = _OPERAND.findall(rest.partition(")")[0])
        if kind in ("copy-start", "slice-start"):  # a tuple of the destination, the source and a mark
            total += _in_memory(_ARRAY.search(shape).group(0)) + sum(held.get(o, 0) for o in operands)  # type: ignore[union-attr]
        else:
            total += held[name] + sum(held.get(operand, 0) for operand in dict.fromkeys(operands))
    return total


def _in_memory(shape: str) -> int:
    """Return the bytes of a shape, or of a tuple of them, without those in other memory spaces, ``S(1)`` and so on."""
    size = 0
    for kind, dimensions, layout in _ARRAY.findall(shape):
        if kind in BYTES and "S(" not in layout:
            count = 1
            for dimension in filter(None, dimensions.split(",")):
                count *= int(dimension)
            size += count * BYTES[kind]
    return size
