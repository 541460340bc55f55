"""Wrong platforms: selection, attributes, hooks, priorities, registration."""

from __future__ import annotations

from mutants.kinds import Mutant, mutant

INIT, F, L = "__init__.py", "platform.py", "layers.py"
REGISTER = 'register = opdock.platform_plugin("opdock_good.platform:GoodPlatform", probe=probe)\n'
PROBE = "def probe():\n"
PRIORITY = '            ["native"],\n'
SILU = 'silu_and_mul=["good", "native"],\n'
DTYPES = "[torch.float32, torch.bfloat16]"
KERNELS = "        from opdock_good import kernels\n"
OOT = "        from opdock_good import layers\n"
END = "    @classmethod\n    def get_default_ir_op_priority"


def _hook(name: str, text: str, what: str) -> Mutant:
    """Return a mutant whose platform has one more method."""
    method = "    @classmethod\n" + "".join(f"    {line}\n" for line in text.splitlines()) + "\n"
    return mutant(name, F, END, method + END, what)


def _loading(name: str, line: str, what: str) -> Mutant:
    """Return a mutant that does one thing more in import_kernels."""
    return mutant(name, F, KERNELS, KERNELS + f"        {line}\n", what)


MUTANTS = (
    mutant(
        "register_for_any_host",
        INIT,
        REGISTER,
        "def register():\n    return 'opdock_good.platform:GoodPlatform'\n",
        "register() answers to any host",
    ),
    mutant("register_wrong_class", INIT, "platform:GoodPlatform", "platform:GodPlatform", "the class is misspelt"),
    mutant("register_wrong_module", INIT, "opdock_good.platform:", "opdock_good.platforms:", "the module is misspelt"),
    mutant(
        "register_by_state",
        INIT,
        "    return None\n",
        "    calls.append(0)\n    return None if len(calls) < 2 else 'busy'\n\n\ncalls = []\n",
        "register() declines the second time",
    ),
    mutant("probe_imports_torch", INIT, PROBE, PROBE + "    import torch\n\n", "asking is slow"),
    mutant("probe_prints", INIT, PROBE, PROBE + "    print('good device found')\n", "asking prints"),
    mutant(
        "probe_sets_environment",
        INIT,
        PROBE,
        PROBE + "    import os\n\n    os.environ['GOOD_DEVICES'] = '0'\n",
        "asking changes the environment",
    ),
    mutant(
        "probe_starts_thread",
        INIT,
        PROBE,
        PROBE + "    import threading\n\n    threading.Thread(target=threading.Event().wait, daemon=True).start()\n",
        "asking starts a thread",
    ),
    mutant(
        "probe_changes_logging",
        INIT,
        PROBE,
        PROBE + "    import logging\n\n    logging.basicConfig(level=10)\n",
        "asking sets up logging",
    ),
    mutant("probe_declines_silently", INIT, "    return None\n", "    return ''\n", "declined without a reason"),
    mutant("probe_hangs", INIT, PROBE, PROBE + "    import time\n\n    time.sleep(11)\n", "asking takes 11 s"),
    mutant(
        "import_installs_hook",
        INIT,
        "import opdock\n",
        "import sys\n\nimport opdock\n\nsys.excepthook = print\n",
        "importing sets sys.excepthook",
    ),
    mutant(
        "import_sets_signal",
        INIT,
        "import opdock\n",
        "import signal\n\nimport opdock\n\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n",
        "importing ignores SIGTERM",
    ),
    mutant("api_version_2", F, "api_version = 1", "api_version = 2", "another interface"),
    mutant("enum_cpu", F, "PlatformEnum.OOT", "PlatformEnum.CPU", "says it is the CPU platform"),
    mutant("device_type_missing", F, '    device_type = "cpu"\n', "", "no device type"),
    mutant("device_type_unknown", F, 'device_type = "cpu"', 'device_type = "good"', "a type that torch does not know"),
    mutant("dispatch_key_unknown", F, 'dispatch_key = "CPU"', 'dispatch_key = "Cpu"', "a key that torch does not know"),
    mutant("dispatch_key_other", F, 'dispatch_key = "CPU"', 'dispatch_key = "PrivateUse1"', "not that of its tensors"),
    mutant("dispatch_key_missing", F, '    dispatch_key = "CPU"\n', "", "no dispatch key"),
    mutant("dtypes_empty", F, DTYPES, "[]", "no dtype"),
    mutant("dtypes_names", F, DTYPES, '["float32", "bfloat16"]', "names, not dtypes"),
    mutant("dtypes_integer", F, DTYPES, "[torch.float32, torch.int8]", "an integer dtype"),
    mutant("dtypes_not_property", F, "    @property\n    def supported_dtypes", "    def supported_dtypes", "a method"),
    mutant("dtypes_new_each_time", F, DTYPES, "{torch.float32, torch.bfloat16}", "a set without an order"),
    mutant("hook_misspelt", F, "def import_ir_kernels", "def import_ir_kernel", "never called"),
    mutant(
        "hook_not_classmethod",
        F,
        "    @classmethod\n    def register_oot(cls)",
        "    def register_oot(self)",
        "a hook that needs an instance",
    ),
    mutant("hook_raises", F, OOT, OOT + "        raise RuntimeError('no device')\n", "register_oot raises"),
    mutant("hook_exits", F, OOT, OOT + "        raise SystemExit(3)\n", "register_oot ends the process"),
    mutant(
        "import_kernels_missing_module", F, KERNELS, "        from opdock_good import kernel\n", "a module is missing"
    ),
    mutant("priority_unknown_provider", F, SILU, 'silu_and_mul=["god", "native"],\n', "a misspelt provider"),
    mutant("priority_unknown_op", F, SILU, 'silu_mul=["good", "native"],\n', "a misspelt op"),
    mutant(
        "priority_other_unknown_op", F, SILU, SILU + '            layer_norm=["good", "native"],\n', "an op that is not"
    ),
    mutant("priority_forgets_one", F, f"            {SILU}", "", "a provider is never listed"),
    mutant("priority_behind_native", F, SILU, 'silu_and_mul=["native", "good"],\n', "a provider after native"),
    mutant("priority_without_native", F, SILU, 'silu_and_mul=["good"],\n', "no native to fall back to"),
    mutant("priority_listed_twice", F, SILU, 'silu_and_mul=["good", "good", "native"],\n', "a provider twice"),
    mutant("priority_of_default_only", F, PRIORITY, '            ["good"],\n', "the default lacks native"),
    mutant("priority_dict", F, "return IrOpPriorityConfig.with_default(", "return dict(default=", "a dict"),
    mutant(
        "priority_by_call",
        F,
        "        return IrOpPriorityConfig",
        "        cls.seen = not getattr(cls, 'seen', False)\n        if not cls.seen:\n"
        "            return IrOpPriorityConfig.with_default(['native'])\n        return IrOpPriorityConfig",
        "another priority at every call",
    ),
    _hook(
        "config_not_idempotent",
        "def check_and_update_config(cls, config):\n    config.compilation_config.custom_ops.append('-gelu_and_mul')",
        "a directive is appended each time",
    ),
    _hook(
        "config_contradicts_user",
        "def apply_config_platform_defaults(cls, config):\n    config.compilation_config.custom_ops = ['none']",
        "the user's custom_ops are overwritten",
    ),
    _hook(
        "config_replaces_backend",
        "def check_and_update_config(cls, config):\n    config.compilation_config.backend = 'eager'",
        "the user's backend is overwritten",
    ),
    _hook(
        "config_raises_second_time",
        "def check_and_update_config(cls, config):\n    if getattr(cls, 'done', False):\n"
        "        raise RuntimeError('configured already')\n    cls.done = True",
        "a second configuration raises",
    ),
    _hook(
        "config_disables_own_layer",
        "def apply_config_platform_defaults(cls, config):\n"
        "    config.compilation_config.custom_ops.append('-gelu_and_mul')",
        "the platform's own replaced layer is switched off",
    ),
    _hook(
        "backend_unknown", "def get_compile_backend(cls):\n    return 'goood'", "a torch.compile backend that is not"
    ),
    _hook("inference_mode_none", "def inference_mode(cls):\n    return None", "no context"),
    _hook("compile_passes_none", "def compile_passes(cls):\n    return None", "no list"),
    _hook(
        "attention_path_wrong",
        "def get_attn_backend_cls(cls, selected_backend, attn_selector_config, num_heads=None):\n"
        "    return 'opdock_good.attention.Backend'",
        "an attention backend that does not exist",
    ),
    _loading("default_dtype_changed", "torch.set_default_dtype(torch.bfloat16)", "torch's default dtype is changed"),
    _loading("grad_switched_off", "torch.set_grad_enabled(False)", "gradients are off in the whole process"),
    _loading("seed_set", "torch.manual_seed(0)", "the global generator is seeded"),
    _loading("threads_set", "torch.set_num_threads(torch.get_num_threads() + 1)", "the number of threads is changed"),
    _loading("matmul_precision_changed", "torch.set_float32_matmul_precision('medium')", "products in lower precision"),
    _loading("default_device_changed", "torch.set_default_device('meta')", "torch's default device is changed"),
    _loading("warnings_silenced", "import warnings; warnings.simplefilter('ignore')", "all warnings are off"),
    _loading(
        "dynamo_limit_changed",
        "import torch._dynamo; torch._dynamo.config.suppress_errors = True",
        "errors of torch.compile are hidden in the whole process",
    ),
    _loading(
        "aten_op_replaced",
        "cls.lib = torch.library.Library('aten', 'IMPL'); cls.lib.impl('silu', lambda x: x.sigmoid(), 'CPU')",
        "torch's own silu is replaced, wrongly",
    ),
    mutant(
        "kernels_defined_twice",
        F,
        OOT,
        OOT + "        from importlib import reload\n\n        from opdock_good import providers\n\n"
        "        reload(providers)\n",
        "providers are registered twice",
    ),
    mutant(
        "layer_registered_twice",
        L,
        "\n\n@RowParallelLinear.register_oot\n",
        "\n\n@GeluAndMul.register_oot\nclass OtherGelu(GoodGeluAndMul):\n    pass\n\n\n"
        "@RowParallelLinear.register_oot\n",
        "two replacements of one layer",
    ),
)
