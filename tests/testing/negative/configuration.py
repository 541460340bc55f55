"""Packages that become active, and whose device, dtypes or configuration are not what they say."""

from __future__ import annotations

from negative.activation import KERNELS, PLATFORM, hook
from negative.base import ACTIVE, NORM, Negative

NEGATIVES = (
    Negative(
        "tensors do not come back",
        "platform.device_works",
        "meta",
        "a device type whose tensors hold nothing",
        ACTIVE,
        (
            (
                PLATFORM,
                'device_type = "cpu"\n    dispatch_key = "CPU"',
                'device_type = "meta"\n    dispatch_key = "Meta"',
            ),
        ),
    ),
    Negative(
        "tensors without the dispatch key",
        "platform.tensors_have_the_dispatch_key",
        "do not carry dispatch key CUDA",
        "ops that are registered where no tensor leads",
        ACTIVE,
        (
            (PLATFORM, "PlatformEnum.OOT", "PlatformEnum.UNSPECIFIED"),
            (PLATFORM, 'device_type = "cpu"\n    dispatch_key = "CPU"', 'device_type = ""\n    dispatch_key = "CUDA"'),
        ),
    ),
    Negative(
        "activating starts the driver",
        "platform.activating_starts_no_driver",
        "torch.cpu_like is initialised once the platform is active",
        "a hook that asks for the device's properties: engines fork later",
        ACTIVE,
        hook(
            KERNELS,
            "import types\n"
            'torch.cpu_like = types.ModuleType("torch.cpu_like")\n'
            "torch.cpu_like.is_initialized = lambda: True",
        ),
    ),
    Negative(
        "no dtypes",
        "platform.dtypes",
        "supported_dtypes is []",
        "a list that is filled from the driver, which was not asked yet",
        ACTIVE,
        ((PLATFORM, "[torch.float32, torch.bfloat16]", "[]"),),
    ),
    Negative(
        "dtypes as text",
        "platform.dtypes",
        "supported_dtypes is ['float32']",
        "names in place of dtypes",
        ACTIVE,
        ((PLATFORM, "[torch.float32, torch.bfloat16]", '["float32"]'),),
    ),
    Negative(
        "dtype that the device cannot compute",
        "platform.dtypes_compute",
        "the device cannot add in it",
        "a dtype that is stored and converted only",
        ACTIVE,
        ((PLATFORM, "[torch.float32, torch.bfloat16]", "[torch.float32, torch.float8_e4m3fn]"),),
    ),
    Negative(
        "configuration hook that appends",
        "platform.configures",
        "A second default configuration comes out differently",
        "a list on the class that grows with every engine",
        ACTIVE,
        hook(
            "apply_config_platform_defaults(cls, config)",
            'cls.switches = [*getattr(cls, "switches", ()), "-rms_norm"]\n'
            "config.compilation_config.custom_ops = list(cls.switches)",
        ),
    ),
    Negative(
        "configuration hook that fails",
        "platform.configures",
        "no attribute 'model_config'",
        "a hook that reads a field that only another host's configuration has",
        ACTIVE,
        hook("check_and_update_config(cls, config)", "config.model_config.max_model_len = 4096"),
    ),
    Negative(
        "hook that cannot run again",
        "platform.hooks_run_again",
        "import_kernels cannot run a second time",
        "torch ops that are defined inside the hook",
        ACTIVE,
        hook(
            KERNELS,
            'cls.library = torch.library.Library("opdock_good", "DEF")\ncls.library.define("norm(Tensor x) -> Tensor")',
        ),
    ),
    Negative(
        "hook that registers anew",
        "platform.hooks_run_again",
        "IR provider rms_norm",
        "a provider that is defined inside the hook",
        NORM,
        (
            ("providers.py", "@ir.ops", "def register():\n  @ir.ops"),
            ("providers.py", "def rms_norm(", "  def rms_norm("),
            ("providers.py", "    return torch.ops", "      return torch.ops"),
            ("platform.py", "import providers\n", "import providers\n\n        providers.register()\n"),
        ),
    ),
    Negative(
        "communicator that cannot be imported",
        "platform.paths",
        "get_device_communicator_cls returns 'opdock_good.communicator.GoodCommunicator'",
        "a module that was moved",
        ACTIVE,
        hook("get_device_communicator_cls(cls)", 'return "opdock_good.communicator.GoodCommunicator"'),
    ),
    Negative(
        "name of the device that is no text",
        "platform.paths",
        "get_device_name returned b'Good 100'",
        "what the vendor's C library returns",
        ACTIVE,
        hook("get_device_name(cls, device_id=0)", 'return b"Good 100"'),
    ),
    Negative(
        "priority with an unknown provider",
        "registration.priority_names",
        "provider goood of op rms_norm",
        "a slip of the pen: the default order is used instead",
        ACTIVE,
        (
            (
                PLATFORM,
                '            ["native"],\n',
                '            ["native"],\n            rms_norm=["goood", "native"],\n',
            ),
        ),
    ),
)
