"""What importing does: nothing. Each in a fresh interpreter."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import opdock

CORE = Path(opdock.__file__).parent

PUBLIC = [
    "CompilationConfig",
    "CompilationMode",
    "CpuArchEnum",
    "CustomOp",
    "DeviceCapability",
    "IrOpPriorityConfig",
    "KernelConfig",
    "OpdockConfig",
    "OpdockError",
    "Platform",
    "PlatformEnum",
    "PluggableLayer",
    "current_platform",
    "decline",
    "direct_register_custom_op",
    "get_current_config",
    "hookimpl",
    "platform_plugin",
    "set_current_config",
]


def modules_after(statement: str) -> set[str]:
    """Return the modules that a fresh interpreter holds after ``statement``."""
    code = f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_import_opdock_imports_none_of_its_requirements() -> None:
    """No torch, pluggy, packaging; nothing but opdock and the importlib that it uses."""
    loaded = modules_after("import opdock")
    assert not {m.partition(".")[0] for m in loaded} & {"torch", "pluggy", "packaging", "numpy", "rich"}
    assert {m for m in loaded if m.startswith("opdock")} == {"opdock"}


@pytest.mark.parametrize(
    "statement",
    [
        "import opdock.platforms",
        "import opdock.platforms.interface",
        "from opdock import platform_plugin, decline",
        "from opdock.discovery import metadata; metadata.scan()",
        "import opdock.platforms.selection",
    ],
)
def test_describing_a_platform_needs_no_torch(statement: str) -> None:
    """A plugin's entry module and the scan stay light."""
    assert "torch" not in modules_after(statement)


@pytest.mark.parametrize("statement", ["import opdock.ir", "import opdock.registry", "import opdock.nn.layers"])
def test_importing_ops_and_layers_does_not_resolve_the_platform(statement: str) -> None:
    """Only current_platform and set_current_config do; torch._dynamo is not imported either."""
    code = f"{statement}; import sys; m = sys.modules.get('opdock.platforms.current')"
    check = "print(m is None or m._state.platform is None, 'torch._dynamo' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", f"{code}; {check}"], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["True", "False"]


def test_public_names_are_these() -> None:
    """A change of the public surface is made on purpose, here too."""
    assert opdock.__all__ == PUBLIC
    assert all(getattr(opdock, name) is not None for name in PUBLIC)


def test_environment_is_read_in_one_file() -> None:
    """Only env.py reads the environment of opdock; the kit hands it to children, and looks who changes it."""
    readers = []
    for path in CORE.rglob("*.py"):
        tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        reads = [n for n in tree if isinstance(n, ast.Attribute) and n.attr in ("environ", "getenv")]
        own = path.name == "env.py" or path.is_relative_to(CORE / "testing")
        readers += [] if own else [f"{path.relative_to(CORE)}:{n.lineno}" for n in reads]
    assert readers == []


def test_core_names_no_vendor_outside_its_tables() -> None:
    """Beyond PlatformEnum, forward_* and the table of hints, no vendor's package or library is named in the host."""
    allowed = {
        "platforms/hints.py",
        "platforms/enums.py",
        "platforms/interface.py",
        "registry/custom_op.py",
        "registry/switches.py",
        "platforms/engine_hooks.py",
    }
    names = (
        "opdock_cuda",
        "opdock_rocm",
        "opdock_ascend",
        "opdock_tpu",
        "torch_npu",
        "flashinfer",
        "aiter",
        "pynvml",
    )
    found = []
    for path in CORE.rglob("*.py"):
        relative = path.relative_to(CORE).as_posix()
        if relative.startswith(("nn/", "testing/", "cli/")) or relative in allowed:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if any(name in line for name in names) and '"""' not in line and "``" not in line:
                found.append(f"{relative}:{number}: {line.strip()}")
    assert found == []
