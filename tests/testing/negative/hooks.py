"""Packages of kernels for any platform, in the group ``opdock.plugins``."""

from __future__ import annotations

from package import KERNELS

from negative.base import HOOK_ENTRY_POINTS, NORM, Negative

_HOOKS = """\
import opdock


@opdock.hookimpl
def import_kernels():
    from opdock_good import kernels


@opdock.hookimpl
def import_ir_kernels():
    from opdock_good import providers


@opdock.hookimpl
def default_ir_op_priority(platform, config):
    return {"rms_norm": ["good"]}
"""

GOOD = {
    "__init__.py": "",
    "hooks.py": _HOOKS,
    "kernels.py": KERNELS,
    "providers.py": NORM["providers.py"],
}
"""One provider, offered to whatever platform is chosen."""


NEGATIVES = (
    Negative(
        "kernels package whose module fails",
        "platform.answers",
        "libgood.so",
        "a library that is loaded at the top of the module",
        GOOD,
        (("hooks.py", "import opdock\n", 'import ctypes\nimport opdock\n\nctypes.CDLL("libgood.so")\n'),),
        entry_points=HOOK_ENTRY_POINTS,
    ),
    Negative(
        "kernels package whose first hook fails",
        "registration.import_kernels",
        "undefined symbol",
        "an extension for another torch: the package is left out, and nobody notices",
        GOOD,
        (("hooks.py", "    from opdock_good import kernels\n", '    raise ImportError("undefined symbol: x")\n'),),
        entry_points=HOOK_ENTRY_POINTS,
    ),
    Negative(
        "kernels package with an unknown hook",
        "platform.class_loads",
        "importing the hooks fails: PluginValidationError: unknown hook 'import_kernel'",
        "a hook that is misspelt",
        GOOD,
        (("hooks.py", "def import_kernels():", "def import_kernel():"),),
        entry_points=HOOK_ENTRY_POINTS,
    ),
    Negative(
        "kernels package whose second hook fails",
        "registration.import_ir_kernels",
        "rms_nrm",
        "an op that does not exist",
        GOOD,
        (("providers.py", "@ir.ops.rms_norm.", "@ir.ops.rms_nrm."),),
        entry_points=HOOK_ENTRY_POINTS,
    ),
    Negative(
        "kernels package in no priority",
        "registration.provider_is_tried[rms_norm/good]",
        "No priority lists provider good of op rms_norm",
        "a package that trusts the platform to know it",
        GOOD,
        (("hooks.py", '    return {"rms_norm": ["good"]}', "    return None"),),
        entry_points=HOOK_ENTRY_POINTS,
    ),
)
