"""A package written for vLLM: what its port needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from opdock.discovery import metadata
from opdock.testing.contract import Result, check_package

PACKAGE = {
    "setup.cfg": """[metadata]
name = vllm-chip
version = 1
[options]
install_requires =
    vllm>=0.18
[options.entry_points]
vllm.platform_plugins =
    chip = vllm_chip:register
""",
    "vllm_chip/__init__.py": "from vllm.logger import init_logger\ndef register():\n    return find()\n"
    "def find():\n    return 'vllm_chip.platform.ChipPlatform'\n",
    "vllm_chip/platform.py": """
from vllm.config import VllmConfig
from vllm.platforms import Platform, PlatformEnum
from vllm.v1.worker.worker_base import WorkerBase
class ChipPlatform(Platform):
    _enum = PlatformEnum.OOT
    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None: ...
    @classmethod
    def get_punica_wrapper(cls) -> str: ...
    @classmethod
    def supports_v1(cls) -> bool: ...
    @classmethod
    def get_pass_manager_cls(cls) -> str: ...
""",
    "vllm_chip/ops.py": """
from vllm.model_executor.custom_op import CustomOp
from vllm.model_executor.layers.layernorm import RMSNorm
@RMSNorm.register_oot
class ChipNorm(RMSNorm): ...
TABLE = {"SiluAndMul": ChipNorm, "SiluAndMulClamp": ChipNorm}
def add():
    for name, cls in TABLE.items():
        CustomOp.register_oot(_decorated_cls=cls, name=name)
""",
}


@pytest.fixture
def result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    """The package, checked."""
    monkeypatch.setattr(metadata, "scan", lambda: metadata.Scan((), ()))
    for name, text in PACKAGE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return check_package(str(tmp_path))


def told(result: Result, rule: str) -> list[str]:
    return [f.message for f in result.findings if f.rule == f"opdock/{rule}"]


def test_each_import_has_its_counterpart(result: Result) -> None:
    """Or is said to have none, with its first place."""
    assert result.foreign
    assert "vllm.logger.init_logger: logging.getLogger(__name__)" in told(result, "port-import")
    assert "vllm.v1.worker.worker_base.WorkerBase: no counterpart: the engine's" in told(result, "port-import")
    place = next(f for f in result.findings if "VllmConfig" in f.message)
    assert (place.file, place.line, place.level) == ("vllm_chip/platform.py", 2, "note")


def test_each_overridden_hook_has_its_caller(result: Result) -> None:
    """Asked for by opdock, by an engine, or by nobody."""
    assert told(result, "port-hook") == [
        "_enum: opdock uses it.",
        "check_and_update_config: opdock uses it.",
        "get_punica_wrapper: an engine calls it; opdock itself does not.",
        "supports_v1: gone: there is one engine interface.",
        "get_pass_manager_cls: not here: an engine's.",
    ]


def test_replaced_classes_are_looked_up_here(result: Result) -> None:
    """Decorators and tables alike."""
    assert told(result, "port-replacement") == [
        "RMSNorm: opdock.nn.layers.RMSNorm.",
        "SiluAndMul: opdock.nn.layers.SiluAndMul.",
        "SiluAndMulClamp: no class of that name here.",
    ]


def test_what_register_and_metadata_lack(result: Result) -> None:
    """The requirement is the one error: vLLM's name for the configuration is no fault."""
    errors = {f.rule for f in result.findings if f.level == "error"}
    assert errors == {"opdock/requirement-missing"}
    assert "vllm_chip.platform:ChipPlatform" in next(f.remedy for f in result.findings if "port-register" in f.rule)
    assert told(result, "import-heavy") == ["Importing vllm_chip imports vllm."]
    assert told(result, "hook-removed") == ["ChipPlatform.supports_v1 is never called."]
