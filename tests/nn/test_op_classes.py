"""The op classes that reports and switches know."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import importlib, pkgutil
import opdock.nn
from opdock.nn import op_classes
from opdock.registry import op_registry

op_classes.register_all()
known = set(op_registry)
for module in pkgutil.walk_packages(opdock.nn.__path__, "opdock.nn."):
    if not module.name.startswith("opdock.nn.kernels."):
        importlib.import_module(module.name)
assert {"attention", "fused_moe", "multi_head_latent_attention"} <= known, known
assert set(op_registry) == known, set(op_registry) - known
"""


def test_none_is_left_out() -> None:
    """In a process of its own, where nothing else has imported one."""
    ended = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
