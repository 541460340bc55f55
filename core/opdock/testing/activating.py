"""Activating the package in the child, as a process of its users would, and telling what happened."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Any

from opdock import context, journal
from opdock.errors import OpdockError
from opdock.platforms import current, hook_check, order
from opdock.registry import op_registry, tables

if TYPE_CHECKING:
    from opdock.testing.kit import Kit
    from opdock.testing.worker import Steps

PHASES = ("import_kernels", "import_ir_kernels", "register_oot")


def activate(kit: Kit, kind: str, class_path: str | None, steps: Steps) -> dict[str, Any]:
    """Resolve the platform and return what came of it, ready for JSON.

    ``status`` is ``activated``, ``declined`` or ``failed``. A platform that declines, as without its device, is made by
    hand as far as it goes, so that its registrations can be looked at: ``hooks`` says how far.
    """
    told: dict[str, Any] = {"status": "failed", "step": "", "error": "", "trace": ""}
    before = process_state()
    try:
        kit.platform = current.resolve()
        told["status"] = "activated"
        if steps.failure is not None:  # an optional package that fails is left out, and the process goes on
            step, err = steps.failure
            told |= {**_described(err), "status": "failed", "step": step}
    except BaseException as err:  # noqa: BLE001 - whatever the package does is the answer
        told |= _described(err)
        verdicts = getattr(current.chosen_selection(), "verdicts", ())
        mine = [v for v in verdicts if v.name == kit.settings.plugin]
        if mine and mine[0].verdict == "declined":
            told |= {"status": "declined", "error": mine[0].reason, **_by_hand(kit, class_path)}
    after = process_state()
    told["changed"] = [
        f"{what}: {was} before, {after[what]} then" for what, was in before.items() if after[what] != was
    ]
    if kind == "platform" and kit.platform is not None:
        told["class_faults"] = [f.text for f in hook_check.check_platform_class(type(kit.platform))]
        told["platform"] = kit.platform.device_name
        told["device_type"] = kit.platform.device_type
    return {**told, **(inventory(kit) if kit.platform is not None else {})}


_DYNAMO = ("suppress_errors", "recompile_limit", "accumulated_recompile_limit", "disable", "capture_scalar_outputs")


def process_state() -> dict[str, str]:
    """Return what belongs to the program, not to a platform: a package that is activated leaves it as it is."""
    import warnings

    import torch

    dynamo = getattr(sys.modules.get("torch._dynamo"), "config", None)
    return {
        "torch.get_default_dtype()": str(torch.get_default_dtype()),
        "torch.get_default_device()": str(torch.get_default_device()),
        "torch.is_grad_enabled()": str(torch.is_grad_enabled()),
        "torch.get_num_threads()": str(torch.get_num_threads()),
        "torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision(),
        "torch's random state": str(hash(torch.get_rng_state().numpy().tobytes())),
        **{f"torch._dynamo.config.{n}": repr(getattr(dynamo, n, None)) for n in _DYNAMO},
        "sys.excepthook": repr(sys.excepthook),
        "warnings that hide everything": str(sum(f[:3] == ("ignore", None, Warning) for f in warnings.filters)),
    }


def _described(err: BaseException) -> dict[str, Any]:
    step = next((s.name for s in reversed(order.steps()) if " raised " in f" {s.detail} "), "")
    why = list(err.why) if isinstance(err, OpdockError) else []
    what = err.what if isinstance(err, OpdockError) else f"{type(err).__name__}: {err}"
    cause = err.__cause__
    if cause is not None:
        why.append(
            "caused by " + (str(cause) if isinstance(cause, OpdockError) else f"{type(cause).__name__}: {cause}")
        )
    trace = "".join(traceback.format_exception(err))[-3000:]
    return {"step": step, "error": "\n".join([what, *why]), "trace": trace}


def _by_hand(kit: Kit, class_path: str | None) -> dict[str, Any]:
    """Make the platform of a package that declines, and run its hooks one after the other."""
    import pkgutil

    if class_path is None:
        return {"hooks": "its register() does not say which class it stands for (opdock.platform_plugin does)"}
    try:
        module, _, name = class_path.partition(":")
        cls = pkgutil.resolve_name(class_path if not name else f"{module}:{name}")
        platform = cls()
    except Exception as err:  # noqa: BLE001
        return {"status": "failed", "step": "load platform class", "error": f"{type(err).__name__}: {err}"}
    current._override.set(platform)  # for the rest of the child's life
    kit.platform = platform
    distribution = kit.target.candidate.dist
    owner = journal.Owner(distribution.name, distribution.version, kit.target.candidate.name)
    done: list[str] = []
    for phase in PHASES:
        try:
            with journal.transaction(owner):
                getattr(platform, phase)()
        except Exception as err:  # noqa: BLE001
            what = err.what if isinstance(err, OpdockError) else f"{type(err).__name__}: {err}"
            return {"hooks": f"without its device, {phase} raised {what}", "done": done}
        if phase == "import_kernels":
            context.mark_kernels_loaded()
        done.append(phase)
    return {"hooks": "", "done": done}


def inventory(kit: Kit) -> dict[str, Any]:
    """Return the subjects that the package brings: providers, replacements; and the op classes and models there are."""
    from opdock import ir
    from opdock.testing.samples import LAYERS, MODELS

    def mine(owner: object) -> bool:
        return getattr(owner, "distribution", None) == kit.target.distribution

    providers = [
        f"{name}/{p}"
        for name, op in ir.registry.items()
        for p, impl in op.impls.items()
        if p != "native" and mine(impl.owner)
    ]
    replaced = [target for target, _, entry in tables.replacements() if mine(entry.owner)]
    return {
        "provider": sorted(providers),
        "replacement": sorted(target.__name__ for target in replaced),
        "replaced": sorted(str(getattr(target, "name", target.__name__)) for target in replaced),
        "layer": sorted(name for name in op_registry if name in LAYERS),
        "model": sorted(MODELS),
    }
