"""Packages whose class, hooks or device are broken: they are not active in the end."""

from __future__ import annotations

from negative.base import ACTIVE, ADD_NORM, GELU, LAYERS, NORM, ROW, Edit, Negative

PLATFORM = "platform.py"


def _class(text: str) -> tuple[Edit, ...]:
    """Return the edit that adds something to the class."""
    return ((PLATFORM, "    api_version = 1\n", "    api_version = 1\n\n    " + text.replace("\n", "\n    ") + "\n"),)


def hook(name: str, body: str) -> tuple[Edit, ...]:
    """Return the edit that gives the class another classmethod."""
    return _class(f"@classmethod\ndef {name}:\n    " + body.replace("\n", "\n    "))


KERNELS = "import_kernels(cls)"

NEGATIVES = (
    Negative(
        "class is no Platform",
        "platform.class_loads",
        "is not a subclass of opdock.platforms.Platform",
        "a class that subclasses vLLM's Platform, or nothing",
        ACTIVE,
        ((PLATFORM, "class GoodPlatform(Platform):", "class GoodPlatform:"),),
    ),
    Negative(
        "module of the class fails",
        "platform.class_loads",
        "it needs module good_runtime, which is not installed",
        "a dependency that is not declared",
        ACTIVE,
        ((PLATFORM, "import torch\n", "import good_runtime\nimport torch\n"),),
    ),
    Negative(
        "no device_name",
        "platform.class_loads",
        "device_name is None",
        "a field that vLLM did not have when the class was written",
        ACTIVE,
        ((PLATFORM, '    device_name = "good"\n', ""),),
    ),
    Negative(
        "no _enum",
        "platform.class_loads",
        "_enum is not a PlatformEnum",
        "a field that was forgotten",
        ACTIVE,
        ((PLATFORM, "    _enum = PlatformEnum.OOT\n", ""),),
    ),
    Negative(
        "constructor fails",
        "platform.class_loads",
        "no context",
        "a platform that opens its device when it is made",
        ACTIVE,
        _class('def __init__(self):\n    raise RuntimeError("no context")'),
    ),
    Negative(
        "other version of the interface",
        "platform.class_loads",
        "plugin built for host API 99",
        "a release for another host",
        ACTIVE,
        ((PLATFORM, "api_version = 1", "api_version = 99"),),
    ),
    Negative(
        "hook with another signature",
        "platform.class_loads",
        "the host also passes 'config'",
        "a hook as an earlier host called it",
        ACTIVE,
        ((PLATFORM, "def get_default_ir_op_priority(cls, config):", "def get_default_ir_op_priority(cls):"),),
    ),
    Negative(
        "misspelt hook",
        "platform.class_has_no_faults",
        "did you mean import_ir_kernels?",
        "a hook that nothing calls: no provider is ever registered",
        ACTIVE,
        hook("import_ir_kernel(cls)", "pass"),
    ),
    Negative(
        "removed hook",
        "platform.class_has_no_faults",
        "supports_v1 is never called",
        "a hook that hosts no longer have",
        ACTIVE,
        hook("supports_v1(cls, model_config)", "return True"),
    ),
    Negative(
        "import_kernels raises",
        "registration.import_kernels",
        "good_ops.so: undefined symbol",
        "an extension that was built for another torch",
        ACTIVE,
        hook(KERNELS, 'raise ImportError("good_ops.so: undefined symbol: _ZN3c106detail")'),
    ),
    Negative(
        "import_kernels hangs",
        "registration.import_kernels",
        "import_kernels hangs",
        "kernels that are built when they are first needed, under a lock that another process left",
        ACTIVE,
        hook(KERNELS, "import threading\nthreading.Event().wait()"),
        timeout=3.0,
    ),
    Negative(
        "import_kernels exits",
        "registration.import_kernels",
        "SystemExit",
        "a build script that exits when the compiler is missing",
        ACTIVE,
        hook(KERNELS, "raise SystemExit(2)"),
    ),
    Negative(
        "import_kernels ends the process",
        "registration.import_kernels",
        "exit code 7",
        "a runtime that ends the process on an error of its own",
        ACTIVE,
        hook(KERNELS, "import os\nos._exit(7)"),
    ),
    Negative(
        "import_kernels crashes",
        "registration.import_kernels",
        "SIGSEGV",
        "an extension that was built for another torch, and loads",
        ACTIVE,
        hook(KERNELS, "import ctypes\nctypes.string_at(0)"),
    ),
    Negative(
        "provider of an op that does not exist",
        "registration.import_ir_kernels",
        "rms_nrm",
        "a slip of the pen, or an op of a later release",
        NORM,
        (("providers.py", "@ir.ops.rms_norm.", "@ir.ops.rms_nrm."),),
    ),
    Negative(
        "provider with other parameters",
        "registration.import_ir_kernels",
        "eps",
        "a parameter that has another name in the vendor's library",
        NORM,
        (
            (
                "providers.py",
                "def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float,",
                "def rms_norm(x: Tensor, weight: Tensor | None, eps: float,",
            ),
            ("providers.py", "(x, weight, epsilon, variance_size)\n", "(x, weight, eps, variance_size)\n"),
        ),
    ),
    Negative(
        "in place where the op is not",
        "registration.import_ir_kernels",
        "inplace",
        "a kernel that writes its input, for an op whose input belongs to the caller",
        NORM,
        (("providers.py", "batch_invariant=True", "inplace=True"),),
    ),
    Negative(
        "predicate without a parameter",
        "registration.import_ir_kernels",
        "variance_size",
        "a predicate that was written before the op got another parameter",
        ADD_NORM,
        (
            (
                "providers.py",
                "def add_norm_takes(x, x_residual, weight, epsilon, variance_size=None):",
                "def add_norm_takes(x, x_residual, weight, epsilon):",
            ),
            ("providers.py", '    if variance_size is not None:\n        return "no partial variance"\n', ""),
        ),
    ),
    Negative(
        "replacement of a class that does not exist",
        "registration.register_oot",
        "No op class is called 'GeluAndMull'",
        "a class that is called otherwise here than in vLLM",
        GELU,
        (("layers.py", "@GeluAndMul.register_oot\n", '@GeluAndMul.register_oot(name="GeluAndMull")\n'),),
    ),
    Negative(
        "two replacements of one class",
        "registration.register_oot",
        "Duplicate replacement name: GeluAndMul",
        "a generic replacement and one for a newer chip",
        LAYERS,
        (
            (
                "layers.py",
                "@RowParallelLinear.register_oot\n",
                (
                    "@GeluAndMul.register_oot\nclass NewGeluAndMul(GeluAndMul):\n"
                    "    def forward_oot(self, x):\n        return x\n\n\n@RowParallelLinear.register_oot\n"
                ),
            ),
        ),
    ),
    Negative(
        "replacement that is no subclass",
        "registration.register_oot",
        "it is not a subclass of it",
        "a module of the vendor's own library",
        ROW,
        (
            (
                "layers.py",
                "class GoodRowParallelLinear(RowParallelLinear):",
                "class GoodRowParallelLinear(torch.nn.Module):",
            ),
        ),
    ),
    Negative(
        "replacement that defines forward",
        "registration.register_oot",
        "goes past the dispatch",
        "forward instead of forward_oot: no switch would take it out",
        GELU,
        (("layers.py", "def forward_oot(self, x: torch.Tensor)", "def forward(self, x: torch.Tensor)"),),
    ),
    Negative(
        "dispatch key that torch does not know",
        "platform.dispatch_key",
        "'GOOD' is not a dispatch key of torch",
        "the vendor's name in place of PrivateUse1",
        ACTIVE,
        ((PLATFORM, 'dispatch_key = "CPU"', 'dispatch_key = "GOOD"'),),
    ),
    Negative(
        "dispatch key of another device",
        "platform.dispatch_key",
        "torch dispatches 'cpu' tensors to 'CPU'",
        "a field that was copied from another platform",
        ACTIVE,
        ((PLATFORM, 'dispatch_key = "CPU"', 'dispatch_key = "CUDA"'),),
    ),
    Negative(
        "device type that does not exist",
        "platform.dispatch_key",
        "torch knows no device type 'goodchip'",
        "an extension that does not rename PrivateUse1",
        ACTIVE,
        ((PLATFORM, 'device_type = "cpu"', 'device_type = "goodchip"'),),
    ),
)
