"""From a list of names to the providers that are tried: a pure function with a reason for each left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from opdock.errors import ConfigError, UnknownNameError, suggest

if TYPE_CHECKING:
    from opdock.ir.impl import IrOpImpl

NATIVE = "native"


def resolve_drops(op: str, names: Sequence[str], default: Sequence[str]) -> list[str]:
    """Return ``names`` with ``-name`` entries taken out of ``default``, which then follows the rest."""
    dropped = {n[1:] for n in names if n.startswith("-")}
    wanted = [n for n in names if not n.startswith("-")]
    if not dropped:
        return list(dict.fromkeys(wanted))
    if NATIVE in dropped or dropped & set(wanted):
        raise ConfigError(
            f"The priority of op {op!r} cannot drop {sorted(dropped)}: {list(names)}.",
            remedy="native cannot be dropped, and a name is either listed or dropped.",
        )
    return list(dict.fromkeys([*wanted, *(n for n in default if n not in dropped)]))


def filter_priority(
    op: str, impls: Mapping[str, IrOpImpl], names: Sequence[str], *, invariant: bool
) -> tuple[list[IrOpImpl], dict[str, str]]:
    """Return the providers that are tried, in order, and why each other name in the list is not.

    Unsupported ones are dropped; nothing follows the first that takes any arguments; native ends the list.

    Raises: UnknownNameError for a name that is not registered.
    """
    tried: list[IrOpImpl] = []
    left_out: dict[str, str] = {}
    for name in names:
        if name not in impls:
            raise UnknownNameError(
                f"All providers in priority must be registered implementations: op {op!r} has no provider {name!r}.",
                remedy=suggest(name, impls),
            )
        impl = impls[name]
        if tried and tried[-1].supports_all_args:
            left_out[name] = f"{tried[-1].provider} comes before it and takes any arguments"
        elif not impl.supported:
            left_out[name] = impl.reason
        elif invariant and not impl.batch_invariant and name != NATIVE:
            left_out[name] = "VLLM_BATCH_INVARIANT=1 and it does not declare batch_invariant"
        elif impl not in tried:
            tried.append(impl)
    if not tried or not tried[-1].supports_all_args:
        tried.append(impls[NATIVE])
    return tried, left_out
