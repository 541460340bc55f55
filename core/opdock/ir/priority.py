"""From a list of names to the providers that are tried, with a reason for each that is not: pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opdock.errors import ConfigError, UnknownNameError, suggest
from opdock.ir.schema import NATIVE

if TYPE_CHECKING:
    from opdock.ir.impl import IrOpImpl


@dataclass(frozen=True)
class Filtered:
    """What a priority list comes to.

    Args:
        impls: the implementations that are tried, in order; the last one takes any arguments.
        left_out: why each other provider in the list is not tried.
        native_added: native is last though the list does not name it.
    """

    impls: tuple[IrOpImpl, ...]
    left_out: Mapping[str, str]
    native_added: bool


def expand(op: str, names: Sequence[str], default: Sequence[str], known: Mapping[str, object]) -> tuple[str, ...]:
    """Return the list that ``names`` means: with ``-name`` in it, the rest and then the default without ``name``.

    Raises: UnknownNameError for a provider that is not registered; ConfigError for a list that contradicts itself
        or is a plain string.
    """
    if isinstance(names, str):
        raise ConfigError(f"The priority of op {op!r} is not a list: {names!r}.", remedy=f"give [{names!r}].")
    names = tuple(names)  # a generator would be used up by the first look
    dropped = [n[1:] for n in names if n.startswith("-")]
    wanted = [n for n in names if not n.startswith("-")]
    for name in (*wanted, *dropped):
        if name not in known:
            raise UnknownNameError(
                f"All providers in priority must be registered implementations: op {op!r} has no provider {name!r}.",
                remedy=suggest(name, known),
            )
    for name in dropped:
        if name == NATIVE or name in wanted:
            raise ConfigError(
                f"The priority of op {op!r} cannot drop {name!r}: {', '.join(names)}.",
                why="native is the definition and always last." if name == NATIVE else "It is listed as well.",
                remedy=f"remove -{name}.",
            )
    if not dropped:
        return tuple(wanted)
    return tuple(dict.fromkeys([*wanted, *(n for n in default if n not in dropped)]))


def filter_priority(impls: Mapping[str, IrOpImpl], names: Sequence[str], *, invariant: bool) -> Filtered:
    """Return what is tried of ``names``.

    Unsupported providers are dropped and, if ``invariant``, those that do not declare ``batch_invariant``, native run
    row by row where it can be; nothing follows the first that takes any arguments; if none does, native follows.
    """
    tried: list[IrOpImpl] = []
    left_out: dict[str, str] = {}
    for name in names:
        impl = impls[name].invariant if invariant else impls[name]
        if impl in tried:
            continue
        if tried and tried[-1].supports_all_args:
            left_out.setdefault(name, f"{tried[-1].provider} comes before it and takes any arguments")
        elif not impl.supported:
            left_out[name] = impl.reason
        elif invariant and not impl.batch_invariant:
            left_out[name] = "VLLM_BATCH_INVARIANT=1, and it does not declare batch_invariant"
        else:
            tried.append(impl)
    ends = bool(tried) and tried[-1].supports_all_args
    if not ends:
        tried.append(impls[NATIVE].invariant if invariant else impls[NATIVE])
    return Filtered(tuple(tried), left_out, native_added=not ends and NATIVE not in names)
