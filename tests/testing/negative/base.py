"""What a broken package is described with, and the small correct packages that are broken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import package
from package import NAME

ENTRY_POINTS = f"[vllm.platform_plugins]\n{NAME} = {NAME}:register\n"
HOOK_ENTRY_POINTS = f"[opdock.plugins]\n{NAME} = {NAME}.hooks\n"
REQUIRES = ("opdock<0.2,>=0.1",)

Edit = tuple[str, str, str]


def edited(files: Mapping[str, str], *edits: Edit) -> dict[str, str]:
    """Return ``files`` with each (file, old text, new text) replaced; every old text must be there once."""
    made = dict(files)
    for file, old, new in edits:
        if made[file].count(old) != 1:
            raise ValueError(f"{old!r} occurs {made[file].count(old)} times in {file}")
        made[file] = made[file].replace(old, new)
    return made


@dataclass(frozen=True)
class Negative:
    """A package that is broken in exactly one way.

    Args:
        name: of the case.
        check: id of the one result that must be a failure.
        message: what its message must say.
        why: the fault of real packages that it stands for.
        base: a correct package.
        edits: (file, old text, new text), which break it.
        more: files that are added or replaced.
        entry_points: the text of ``entry_points.txt``.
        requires: what the distribution requires.
        plugin: what the kit is asked to check.
        timeout: seconds that a check may take; 0 takes the kit's.
    """

    name: str
    check: str
    message: str
    why: str
    base: Mapping[str, str]
    edits: tuple[Edit, ...] = ()
    more: tuple[tuple[str, str], ...] = ()
    entry_points: str = ENTRY_POINTS
    requires: tuple[str, ...] = REQUIRES
    plugin: str = NAME
    timeout: float = 0.0

    @property
    def files(self) -> dict[str, str]:
        """The files of the package, by name."""
        return {**edited(self.base, *self.edits), **dict(self.more)}


_PRIORITY = package.PLATFORM[package.PLATFORM.index("            rms_norm=[") : package.PLATFORM.index("        )\n")]


def _without(*files: str, priority: str = "", edits: tuple[Edit, ...] = ()) -> dict[str, str]:
    """Return the package without some files, and without the hooks that import them."""
    imports = {"kernels": "import_kernels", "providers": "import_ir_kernels", "layers": "register_oot"}
    hooks: list[Edit] = [
        (
            "platform.py",
            f"    @classmethod\n    def {imports[f]}(cls):\n        from opdock_good import {f}\n\n",
            "",
        )
        for f in files
    ]
    made = package.changed(("platform.py", _PRIORITY, priority), *hooks, *edits)
    return {name: text for name, text in made.items() if name.removesuffix(".py") not in files}


ACTIVE = _without("kernels", "providers", "layers")
"""A platform that is active on any machine, with neither kernels nor layers."""

ABSENT = edited(ACTIVE, ("__init__.py", "return None", 'return "no device"'))
"""The same, whose device is not there."""

LAYERS = _without("kernels", "providers")
"""Replaced layers only."""

_IMPORTS, _GELU, _ROW, _ATTENTION = LAYERS["layers.py"].split("\n\n@")
GELU, ROW, ATTENTION = (
    {**LAYERS, "layers.py": f"{_IMPORTS}\n\n@{layer.rstrip()}\n"} for layer in (_GELU, _ROW, _ATTENTION)
)
"""One replaced layer: a CustomOp, a PluggableLayer with parameters, one with several inputs."""

_HEAD, _PROVIDERS = package.PROVIDERS.split("\n\ndef norm_takes", 1)
_NORM, _PROVIDERS = _PROVIDERS.split("\n\ndef add_norm_takes", 1)
_ADD_NORM, _PROVIDERS = _PROVIDERS.split("\n\ndef silu_takes", 1)
_SILU, _ROTARY = _PROVIDERS.split("\n\ndef rotary_takes", 1)


def _one(op: str, provider: str) -> dict[str, str]:
    one_dtype = ("platform.py", "[torch.float32, torch.bfloat16]", "[torch.float32]")
    files = _without("layers", edits=(one_dtype,), priority=f'            {op}=["good", "native"],\n')
    return {**files, "providers.py": _HEAD + provider}


NORM = _one("rms_norm", "\n\ndef norm_takes" + _NORM)
"""One provider, of rms_norm; it declares batch_invariant."""

ADD_NORM = _one("fused_add_rms_norm", "\n\ndef add_norm_takes" + _ADD_NORM)
"""One provider, of fused_add_rms_norm, in place."""

SILU = _one("silu_and_mul", "\n\ndef silu_takes" + _SILU)
"""One provider, of silu_and_mul."""
