"""Attention backends of the package: steps of batches over a paged cache, against float64."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opdock.errors import UnsupportedError
from opdock.ir.tolerance import DEFAULT_TOLERANCES
from opdock.testing.check import CannotRun, Fault, check

if TYPE_CHECKING:
    from opdock.testing.kit import Kit


def _names(kit: Kit) -> list[str]:
    """Return the names of the backends that the package registered; CannotRun without any."""
    from opdock.nn.attention import registry

    kit.require_platform()
    found = registry.registered_by(kit.target.distribution)
    if not found:
        raise CannotRun("the package registers no attention backend")
    return found


@check("attention.loads", needs=("platform.activates",))
def loads(kit: Kit, subject: str) -> str:
    """Every attention backend of the package can be imported, and goes by the name that it is registered under."""
    from opdock.nn.attention import registry

    names = _names(kit)
    for name in names:
        kit.trying(name)
        registry.backend_class(name)
    return ", ".join(names)


@check("attention.values", needs=("attention.loads", "platform.dtypes_compute"))
def values(kit: Kit, subject: str) -> str:
    """Every attention backend agrees with float64: permuted blocks, NaN in unwritten slots, padding, all features."""
    from opdock.nn.attention import registry
    from opdock.testing.attention_cases import TOLERANCES, cases, judge

    device, platform, told, absent = kit.require_device(), kit.require_platform(), list[str](), list[str]()
    for name in _names(kit):
        if why := registry.backend_class(name).why_not_here(platform.device_type):
            absent.append(f"{name}: not run, {why}")
            continue
        served = refused = 0
        for dtype in platform.supported_dtypes:
            if dtype not in TOLERANCES or dtype not in DEFAULT_TOLERANCES:
                continue
            for case in cases(block_size=16):
                kit.trying(f"{name}, {case}, {dtype}")
                try:
                    miss = judge(case, name, dtype=dtype, device=device)
                except UnsupportedError:
                    refused += 1  # with a reason, before anything is computed
                    continue
                served += 1
                if miss:
                    raise Fault(
                        f"The attention backend {name} is wrong in {dtype}.",
                        who=f"new tokens {case}",
                        why=miss,
                        remedy="use written slots only; rows of no request are zeros; see AttentionImpl.forward.",
                    )
        if not served:
            raise Fault(
                f"The attention backend {name} takes no case of the grid.",
                why="It refuses blocks of 16 and heads of 64, 80, 128 and 256, plain causal attention included.",
                remedy="take at least plain attention with one of these head sizes.",
            )
        told.append(f"{name}: {served} cases, {refused} refused")
    if not told:
        raise CannotRun("; ".join(absent))
    return "; ".join([*told, *absent])
