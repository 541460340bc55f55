"""Scripts of benchmarks/, which is no package."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="session")
def script() -> Callable[[str], Any]:
    """Return what loads one of them by its name."""

    def load(name: str) -> Any:
        spec = importlib.util.spec_from_file_location(f"opdock_benchmarks_{name}", FOLDER / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load
