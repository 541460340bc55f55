"""Which layers a configuration leaves unquantised, by name; fused layers stand for their parts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from opdock.errors import ConfigError


def parts_of(prefix: str, packed: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names in the checkpoint of the layer at ``prefix``: several for a fused one."""
    stem, _, last = prefix.rpartition(".")
    at = f"{stem}." if stem else ""
    return [at + part for part in packed.get(last, (last,))]


def all_or_none(prefix: str, packed: Mapping[str, Sequence[str]], test: Callable[[str], object], what: str) -> bool:
    """Return whether ``test`` holds for every part of a layer.

    Raises: ConfigError naming the layer and its parts if it holds for some of them only: one weight cannot be in
        two formats.
    """
    parts = parts_of(prefix, packed)
    found = [bool(test(part)) for part in parts]
    if any(found) and not all(found):
        yes = ", ".join(part for part, is_so in zip(parts, found, strict=True) if is_so)
        no = ", ".join(part for part, is_so in zip(parts, found, strict=True) if not is_so)
        raise ConfigError(
            f"Only some parts of the fused layer {prefix!r} are {what}.",
            who=f"layer {prefix}",
            why=[f"{what}:  {yes}", f"not:  {no}"],
            remedy="list all parts of a fused layer or none, and quantise the model so.",
        )
    return all(found)


def is_layer_ignored(
    prefix: str,
    ignored: Iterable[str],
    packed: Mapping[str, Sequence[str]],
    *,
    anywhere: bool = False,
) -> bool:
    """Return whether the layer at ``prefix`` stays unquantised.

    Args:
        prefix: its path in the model.
        ignored: names: a whole path, the end of one (``lm_head``), a module that it lies in (``model.layers.0``),
            or ``re:`` and a regular expression for the beginning of a path.
        packed: parts of fused layers.
        anywhere: a name may also be any part of a path, as AWQ's lists have it.

    Raises: ConfigError if only some parts of a fused layer are listed.
    """
    names = list(ignored)

    def listed(part: str) -> bool:
        return any(_matches(part, name, anywhere=anywhere) for name in names)

    fused = prefix.rpartition(".")[2] in packed and any(_matches(prefix, name, anywhere=anywhere) for name in names)
    return fused or all_or_none(prefix, packed, listed, "ignored")


def _matches(path: str, name: str, *, anywhere: bool) -> bool:
    if name.startswith("re:"):
        return re.match(name[3:], path) is not None
    if anywhere and name in path:
        return True
    return path == name or path.endswith(f".{name}") or path.startswith(f"{name}.")
