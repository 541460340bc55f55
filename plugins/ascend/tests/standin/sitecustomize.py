"""Read by Python at its start where this folder is on PYTHONPATH: stands in for NPU kernels once torch_npu is loaded.

Not imported by anything else. The real torch_npu is loaded from its own files; what happens to it afterwards is in
``npu_standin``.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any


class _AfterTorchNpu:
    """A finder that lets torch_npu load as it does, and then installs the reference kernels."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find torch_npu's own file; know nothing else."""
        if name != "torch_npu":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        run: Any = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            import npu_standin

            npu_standin.install()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _AfterTorchNpu())
