"""A clean package as text, and a function that changes it, writes it and checks it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from opdock.discovery import metadata
from opdock.testing.contract import Result, check_package

Check = Callable[..., Result]

CLEAN = {
    "pyproject.toml": '[build-system]\nrequires = ["setuptools"]\n',
    "setup.cfg": """[metadata]
name = opdock-demo
version = 0.1.0
[options]
packages = find:
install_requires =
    opdock>=0.1,<0.2
    torch>=2.11
[options.entry_points]
vllm.platform_plugins =
    opdock_demo = opdock_demo:register
opdock.plugins =
    opdock_demo = opdock_demo.hooks
""",
    "opdock_demo/__init__.py": """import opdock
register = opdock.platform_plugin("opdock_demo.platform:DemoPlatform", probe="opdock_demo.probe:probe")
""",
    "opdock_demo/probe.py": "def probe():\n    return 'no device'\n",
    "opdock_demo/platform.py": """import opdock
class Base(opdock.Platform):
    device_name = "demo"
    @classmethod
    def get_device_name(cls, device_id=0):
        return "demo"
class DemoPlatform(Base):
    _enum = opdock.PlatformEnum.OOT
    device_type = "cpu"
    dispatch_key = "CPU"
    api_version = 1
    # more
    @classmethod
    def import_ir_kernels(cls):
        import opdock_demo.kernels
    @classmethod
    def register_oot(cls):
        import opdock_demo.layers
    @classmethod
    def get_default_ir_op_priority(cls, config):
        return opdock.IrOpPriorityConfig.with_default(["native"], rms_norm=["demo", "wide", "native"])
""",
    "opdock_demo/kernels.py": """from typing import Optional
import torch
from opdock import ir
def takes(x, weight, epsilon, variance_size=None):
    return x.dtype == torch.float32 and float(x.shape[0]) > 1
@ir.ops.rms_norm.register_impl("demo", supports_args=takes)
def norm(
    x: torch.Tensor, weight: "torch.Tensor | None", epsilon: float, variance_size: int | None = None
) -> torch.Tensor:
    return x
@ir.ops.rms_norm.register_impl("wide")
def wide(
    x: torch.Tensor, weight: Optional[torch.Tensor], epsilon: float, variance_size: int | None = None
) -> torch.Tensor:
    return x
# more
""",
    "opdock_demo/layers.py": """import torch
from opdock import CustomOp
from opdock.nn.layers import GeluAndMul, ReplicatedLinear, SiluAndMul
@SiluAndMul.register_oot
class DemoSilu(SiluAndMul):
    def forward_oot(self, x):
        return x
@CustomOp.register_oot(name="GeluAndMul")
class DemoGelu(GeluAndMul):
    def forward_oot(self, x):
        return x
# more
""",
    "opdock_demo/hooks.py": """import opdock
@opdock.hookimpl
def default_ir_op_priority(platform, config):
    return {"rms_norm": ["demo", "wide", "native"]} if platform.device_type == "cpu" else None
""",
}


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Return a function that writes the clean package with changes, (file, old, new), and checks it."""
    monkeypatch.setattr(metadata, "scan", lambda: metadata.Scan((), ()))  # not what this machine has installed

    def run(*changes: tuple[str, str, str], **more: str) -> Result:
        files = dict(CLEAN)
        for file, old, new in changes:
            name = file if file in files else f"opdock_demo/{file}"
            assert old in files.get(name, ""), f"{old!r} is not in {name}"
            files[name] = files.get(name, "").replace(old, new) if old else files.get(name, "") + new
        for name, text in files.items():
            path = tmp_path / "src tree" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return check_package(str(tmp_path / "src tree"))

    return run
