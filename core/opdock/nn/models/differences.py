"""How the tensors of a checkpoint differ from those that its configuration asks for, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

_PLAIN = {"weight", "bias"}
_STORED = {"qweight", "weight_packed", "weight_scale", "weight_scale_inv"}
"""Names that only quantised layers have, whatever else the method of a checkpoint calls its tensors."""

DOWNLOAD = "download the checkpoint again; a file is missing, or belongs to another model."


def listed(label: str, names: Sequence[str], limit: int = 4) -> list[str]:
    """Return a line with the number and ``label``, and a line for each of the first names; nothing for no names."""
    if not names:
        return []
    more = [f"  and {len(names) - limit} more"] if len(names) > limit else []
    # names come from a file: control characters must not reach a terminal
    shown = (f"  {name.encode('unicode_escape').decode()}" for name in names[:limit])
    return [f"{len(names)} {label}:", *shown, *more]


def kinds(planned: Iterable[str], found: Iterable[str]) -> tuple[list[str], str]:
    """Return which layers are quantised in one of the two and plain in the other, and what to do about it.

    Args:
        planned: names of the tensors that the configuration asks for.
        found: names of the tensors in the checkpoint.
    """
    wanted, there = _by_module(planned), _by_module(found)
    both = [module for module in wanted if module in there and wanted[module] != there[module]]
    plain = sorted(m for m in both if wanted[m] - _PLAIN and not there[m] - _PLAIN)
    known = _STORED.union(*wanted.values()) - _PLAIN
    quantised = sorted(m for m in there if there[m] & known and not wanted.get(m, set()) & known)
    why = [
        *listed("plain in the file and quantised by the configuration", plain),
        *listed("quantised in the file and plain here", quantised),
    ]
    if quantised:
        return why, f"use a checkpoint that leaves {_ends(quantised)} as it is, or correct its lists of layers."
    if plain:
        return why, f"list {_ends(plain)} in the configuration among the layers that stay as they are."
    return why, DOWNLOAD


def _by_module(names: Iterable[str]) -> Mapping[str, set[str]]:
    made: dict[str, set[str]] = {}
    for name in names:
        module, _, last = name.rpartition(".")
        made.setdefault(module, set()).add(last)
    return made


def _ends(modules: Sequence[str]) -> str:
    ends = sorted({module.rpartition(".")[2].encode("unicode_escape").decode() for module in modules})
    return " and ".join([", ".join(ends[:-1]), ends[-1]] if len(ends) > 1 else ends)
