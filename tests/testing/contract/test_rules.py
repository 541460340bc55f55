"""Each rule: the clean package with one fault in it is told that fault, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opdock.testing.contract import Result
from opdock.testing.contract.rules import RULES

FROM = "vllm.platform_plugins =\n    opdock_demo = opdock_demo:register"
REGISTER = 'register = opdock.platform_plugin("opdock_demo.platform:DemoPlatform", probe="opdock_demo.probe:probe")'
PATH = "opdock_demo.platform:DemoPlatform"
PRIORITY = 'rms_norm=["demo", "wide", "native"]'
TYPES = "x: torch.Tensor, weight: Optional[torch.Tensor], epsilon: float"
PROVIDER = """
@ir.ops.{op}.register_impl("{name}"{more})
def {name}_{op}({parameters}) -> torch.Tensor:
    return x
"""


def provider(op: str = "silu_and_mul", name: str = "wide", parameters: str = "x: torch.Tensor", more: str = "") -> str:
    return PROVIDER.format(op=op, name=name, parameters=parameters, more=more)


def hook(text: str, *, decorator: str = "@classmethod") -> tuple[str, str, str]:
    return "platform.py", "    # more\n", f"    {decorator}\n    def {text}:\n        pass\n"


def attribute(text: str) -> tuple[str, str, str]:
    return "platform.py", "    # more\n", f"    {text}\n"


FAULTS: dict[str, list[tuple[tuple[str, str, str], ...]]] = {
    "unreadable-file": [(("probe.py", "", "def\n"),), (("extra.py", "", "x = 1\0"),), (("extra.py", "", "(" * 3000),)],
    "entry-point-none": [(("setup.cfg", "vllm.platform_plugins", "other.group"), ("setup.cfg", "opdock.plugins", "b"))],
    "entry-point-value": [
        (("setup.cfg", "opdock_demo = opdock_demo:register", "opdock_demo = opdock_demo:a-b"),),
        (("setup.cfg", "opdock_demo = opdock_demo:register", "opdock_demo = opdock_demo"),),
        (("setup.cfg", FROM, FROM + "\n    nonsense"),),
    ],
    "entry-point-dangling": [(("setup.cfg", "= opdock_demo:register", "= opdock_gone:register"),)],
    "entry-point-attribute": [(("setup.cfg", "= opdock_demo:register", "= opdock_demo:registre"),)],
    "entry-point-reserved": [(("setup.cfg", "opdock_demo = opdock_demo:register", "CUDA = opdock_demo:register"),)],
    "group-misspelt": [(("setup.cfg", FROM, FROM + "\nvllm.platform_plugin =\n    a = opdock_demo:register"),)],
    "metadata-unreadable": [(("setup.cfg", "torch>=2.11", "torch >> 2"),), (("pyproject.toml", "[build", "[[build"),)],
    "requirement-missing": [(("setup.cfg", "opdock>=0.1,<0.2", "numpy"),)],
    "requirement-unbounded": [
        (("setup.cfg", "opdock>=0.1,<0.2", "opdock"),),
        (("setup.cfg", "opdock>=0.1,<0.2", "opdock>=0.1"),),
    ],
    "requirement-excludes": [(("setup.cfg", "opdock>=0.1,<0.2", "opdock>=7,<8"),)],
    "torch-pinned": [(("setup.cfg", "torch>=2.11", "torch==2.11.0"),)],
    "register-answers-vllm": [
        (("__init__.py", REGISTER, f'def register():\n    return "{PATH}" if opdock.x else None'),)
    ],
    "register-unconditional": [(("__init__.py", ', probe="opdock_demo.probe:probe"', ""),)],
    "register-value": [(("__init__.py", REGISTER, "def register():\n    if opdock:\n        return 3"),)],
    "class-path": [
        (("__init__.py", "platform:DemoPlatform", "platfrom:DemoPlatform"),),
        (("__init__.py", "platform:DemoPlatform", "platform:DemoPlatfrom"),),
        (("__init__.py", PATH, "torch.nn:Module"),),
        (("__init__.py", PATH, "Demo"),),
    ],
    "platform-base": [(("platform.py", "class Base(opdock.Platform)", "class Base"),)],
    "platform-enum": [
        (("platform.py", "opdock.PlatformEnum.OOT", "opdock.PlatformEnum.DEMO"),),
        (("platform.py", "opdock.PlatformEnum.OOT", "7"),),
        (("platform.py", "_enum = opdock.PlatformEnum.OOT", "pass"),),
    ],
    "platform-attribute": [
        (("platform.py", 'device_name = "demo"', "pass"),),
        (("platform.py", 'device_name = "demo"', 'device_name = ""'),),
        (("platform.py", 'dispatch_key = "CPU"', "dispatch_key = None"),),
    ],
    "dispatch-key": [
        (("platform.py", 'dispatch_key = "CPU"', 'dispatch_key = "Cpu"'),),
        (("platform.py", 'dispatch_key = "CPU"', 'dispatch_key = "CUDA"'),),
        (
            ("platform.py", 'device_type = "cpu"', 'device_type = "cuda"'),
            ("platform.py", 'dispatch_key = "CPU"', "pass"),
        ),
    ],
    "api-version": [
        (("platform.py", "api_version = 1", "api_version = 9"),),
        (("platform.py", "api_version = 1", ""),),
    ],
    "hook-unknown": [(hook("get_atn_backend_cls(cls, a, b)"),)],
    "hook-removed": [(hook("supports_v1(cls, config)"),)],
    "hook-signature": [
        (hook("set_device(cls, index)"),),
        (hook("get_device_uuid(cls, device_id)"),),
        (hook("import_kernels(cls, force)"),),
        (hook("get_attn_backend_cls(cls, selected_backend)"),),
        (hook("validate_request(cls, prompt, params, processed_inputs)"),),
    ],
    "hook-not-classmethod": [(hook("import_kernels(self)", decorator="# none"),)],
    "hook-not-callable": [(hook("fp8_dtype(self)", decorator="@property"),), (attribute("supports_fp8 = True"),)],
    "replacement-target": [
        (("layers.py", 'name="GeluAndMul"', 'name="GeluAndMull"'),),
        (("layers.py", 'register_oot(name="GeluAndMul")', 'register_oot("GeluAndMul")'),),
        (("layers.py", "class DemoGelu(GeluAndMul)", "class DemoGelu(torch.nn.Module)"),),
        (("layers.py", "class DemoGelu(GeluAndMul)", "class DemoGelu(ReplicatedLinear)"),),
        (
            ("layers.py", "GeluAndMul, Rep", "GeluMul, Rep"),
            ("layers.py", "# more", "@GeluMul.register_oot\nclass A(GeluMul): ..."),
        ),
    ],
    "replacement-dead": [
        (
            ("layers.py", "DemoSilu(SiluAndMul):\n    def forward_oot", "DemoSilu(SiluAndMul):\n    def forward_cuda"),
            ("setup.cfg", "opdock.plugins =\n    opdock_demo = opdock_demo.hooks", ""),
        ),
        (
            (
                "layers.py",
                "# more",
                "@ReplicatedLinear.register_oot\nclass L(ReplicatedLinear):\n    def forward_oot(self, x): ...",
            ),
        ),
        (
            (
                "layers.py",
                "DemoSilu(SiluAndMul):\n    def forward_oot(self, x):\n        return x",
                "DemoSilu(SiluAndMul): ...",
            ),
        ),
    ],
    "replacement-forward": [
        (("layers.py", "DemoSilu(SiluAndMul):\n    def forward_oot", "DemoSilu(SiluAndMul):\n    def forward"),)
    ],
    "replacement-signature": [
        (
            (
                "layers.py",
                "DemoSilu(SiluAndMul):\n    def forward_oot(self, x)",
                "DemoSilu(SiluAndMul):\n    def forward_oot(self, x, y)",
            ),
        )
    ],
    "replacement-constructor": [
        (
            (
                "layers.py",
                "class DemoGelu(GeluAndMul):",
                "class DemoGelu(GeluAndMul):\n    def __init__(self, mode):\n        pass",
            ),
        )
    ],
    "replacement-twice": [
        (("layers.py", "# more", "@SiluAndMul.register_oot\nclass B(SiluAndMul):\n    def forward_oot(self, x): ..."),)
    ],
    "ir-op-unknown": [
        (("kernels.py", "# more", provider(op="rms_nrm", name="demo")),),
        (("platform.py", PRIORITY, PRIORITY + ', rms_nrm=["native"]'),),
    ],
    "provider-name": [
        (
            ("kernels.py", '"wide")', '"unfused")'),
            ("hooks.py", '"wide"', '"unfused"'),
            ("platform.py", '"wide"', '"unfused"'),
        )
    ],
    "provider-signature": [
        (("kernels.py", f"wide(\n    {TYPES}", "wide(x: torch.Tensor, w: torch.Tensor | None, epsilon: float"),),
        (("kernels.py", f"wide(\n    {TYPES}", "wide(x: torch.Tensor, weight: torch.Tensor, epsilon: float"),),
        (
            (
                "kernels.py",
                f"wide(\n    {TYPES}",
                "wide(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float = 1e-6",
            ),
        ),
        (("kernels.py", f"wide(\n    {TYPES}", "wide(x, weight: torch.Tensor | None, epsilon: float"),),
        (("kernels.py", "def wide(\n    x", "def wide(*x"),),
    ],
    "provider-predicate": [
        (("kernels.py", "def takes(x, weight, epsilon, variance_size=None)", "def takes(x, weight, epsilon)"),),
        (
            (
                "kernels.py",
                "def takes(x, weight, epsilon, variance_size=None)",
                "def takes(x, weight, epsilon, variance_size=0)",
            ),
        ),
        (("kernels.py", "supports_args=takes", "supports_args=lambda *a: True"),),
    ],
    "provider-twice": [
        (
            (
                "kernels.py",
                "# more",
                '@ir.ops.rms_norm.register_impl("wide")\ndef again('
                + TYPES
                + ", variance_size: int | None = None) -> torch.Tensor: ...",
            ),
        )
    ],
    "provider-inplace": [(("kernels.py", '"wide")', '"wide", inplace=True)'),)],
    "provider-unlisted": [
        (
            (
                "kernels.py",
                "# more",
                provider(
                    op="gelu_and_mul_sparse",
                    parameters='x: torch.Tensor, std_multiplier: float, approximate: str = "none"',
                ),
            ),
        ),
    ],
    "provider-shadowed": [
        (("kernels.py", '"demo", supports_args=takes', '"demo"'),),
        (
            ("platform.py", '"demo", "wide", "native"', '"demo", "native", "wide"'),
            ("hooks.py", '"demo", "wide", "native"', '"demo", "native"'),
        ),
    ],
    "priority-unknown": [
        (("platform.py", '"demo", "wide"', '"demo", "wdie", "wide"'),),
        (("hooks.py", '"wide"', '"gone"'),),
    ],
    "predicate-reads-data": [
        (("kernels.py", "float(x.shape[0]) > 1", what),)
        for what in (
            "x.max().item() > 0",
            "float(x) > 0",
            "x.data_ptr() % 16 == 0",
            "torch.equal(x, weight)",
            "(x > 0).tolist()",
        )
    ],
    "op-both": [
        (
            ("kernels.py", "# more", provider()),
            ("platform.py", PRIORITY, PRIORITY + ', silu_and_mul=["wide"]'),
        )
    ],
    "hookimpl-unknown": [(("hooks.py", "", "@opdock.hookimpl\ndef import_kernel():\n    pass\n"),)],
    "hookimpl-argument": [(("hooks.py", "platform, config", "platform, config, mode"),)],
    "hookimpl-none": [(("hooks.py", "@opdock.hookimpl\n", ""),)],
    "import-heavy": [
        (("__init__.py", "import opdock\n", "import opdock\nimport torch.nn\n"),),
        (
            (
                "__init__.py",
                "import opdock\n",
                "import opdock\ntry:\n    from opdock_demo import kernels\nexcept ImportError: ...\n",
            ),
        ),
    ],
    "import-reentry": [
        (("__init__.py", "", "print(opdock.current_platform.device_name)\n"),),
        (("platform.py", "import opdock\n", "import opdock\nfrom opdock import current_platform\n"),),
    ],
    "import-environ": [
        (("__init__.py", "", "import os\nos.environ['A'] = '1'\n"),),
        (("__init__.py", "", "import os as o\no.environ.setdefault('A', '1')\n"),),
    ],
    "monkeypatch": [
        (("kernels.py", "# more", "torch.nn.Linear.forward = None\n"),),
        (("kernels.py", "# more", "import sys\nsys.modules['torch.x'] = torch\n"),),
        (("kernels.py", "# more", "def f():\n    setattr(torch, 'compile', None)\n"),),
        (("kernels.py", "# more", "torch._dynamo.config.cache_size_limit = 3\n"),),
    ],
    "rewrites-files": [
        (
            (
                "kernels.py",
                "# more",
                "import importlib.util\nspec = importlib.util.find_spec('torch')\nopen(spec.origin, 'w')\n",
            ),
        ),
        (("kernels.py", "# more", "from pathlib import Path\nPath(torch.__file__).write_text('')\n"),),
    ],
    "exits": [
        (("__init__.py", "", "import sys\nif not opdock:\n    sys.exit(1)\n"),),
        (("__init__.py", "", "raise SystemExit\n"),),
    ],
}
BRANCH = """    @ReplicatedLinear.register_oot
    class A(ReplicatedLinear):
        def forward(self, x): ...
"""
CASES = [(rule, changes) for rule, every in FAULTS.items() for changes in every]


def rules(result: Result) -> set[str]:
    return {f.rule.removeprefix("opdock/") for f in result.findings}


def test_the_clean_package_has_no_finding(check: Callable[..., Result]) -> None:
    """All that is in it is as the guide writes it."""
    result = check()
    assert result.findings == ()
    assert (result.name, result.kind, result.foreign) == ("opdock-demo", "folder", False)


@pytest.mark.parametrize(("rule", "changes"), CASES, ids=[f"{r}-{i}" for i, (r, _) in enumerate(CASES)])
def test_a_fault_is_told_by_its_rule_and_no_other(rule: str, changes: tuple, check: Callable[..., Result]) -> None:
    """One change to the clean package."""
    result = check(*changes)
    assert rules(result) == {rule}, [(f.rule, f.message) for f in result.findings]
    assert all(f.message and "\n" not in f.message for f in result.findings)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("kernels.py", "def f(torch):\n    torch.x = 1\n"),  # a parameter of the name
        ("kernels.py", "def f():\n    torch = object()\n    torch.x = 1\n"),
        ("kernels.py", "def f():\n    import json\ndef g(json):\n    json.x = 1\n"),
        ("kernels.py", "import opdock_demo.probe as p\np.LIMIT = 3\n"),  # its own module
        ("kernels.py", "for name in ('a', 'b'):\n    ir.ops.rms_norm.register_impl(name)(object)\n"),  # dynamic
        ("kernels.py", "op = getattr(ir.ops, 'rms' + '_norm')\nop.register_impl('c')\n"),
        ("layers.py", "for name in open('x'):\n    CustomOp.register_oot(DemoGelu, name=name)\n"),
        ("layers.py", "def g(cls):\n    return cls.register_oot\n"),
        ("layers.py", f"if torch:\n{BRANCH}else:\n{BRANCH}"),
        ("probe.py", "if __name__ == '__main__':\n    import sys\n    sys.exit(1)\n"),
        ("__init__.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n"),
        ("__init__.py", "def later():\n    import torch, os\n    os.environ['A'] = '1'\n"),
        ("__init__.py", "if False:\n    register = None\n"),
        ("platform.py", "    def __getattr__(self, name): ...\n"),
        ("platform.py", "    def get_chip_name(self, a, b): ...\n"),
        ("platform.py", "    @classmethod\n    def set_device(cls, *args, **kwargs): ...\n"),
        ("platform.py", "    @classmethod\n    def set_device(cls, device, flags=0): ...\n"),
        ("platform.py", "    @staticmethod\n    def set_device(device): ...\n"),
        ("platform.py", "    set_device = make()\n"),
        ("platform.py", "    @wrapped\n    def set_device(cls): ...\n"),
    ],
)  # fmt: skip
def test_what_is_right_or_cannot_be_told_is_left_alone(file: str, text: str, check: Callable[..., Result]) -> None:
    """No false finding."""
    result = check((file, "", text))
    assert result.findings == ()


def test_every_static_rule_has_a_fault_here() -> None:
    """But for what needs other installed packages, a run, or a package for vLLM: these have files of their own."""
    elsewhere = {n for n in RULES if n.startswith(("run-", "port-"))} | {"entry-point-taken"}
    assert set(FAULTS) == set(RULES) - elsewhere
