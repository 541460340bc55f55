"""Layers are built on the CPU platform, or on another one, and registrations end with the test."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from opdock import journal
from opdock.config import CompilationConfig, OpdockConfig
from opdock.platforms import configure, current
from opdock.platforms.cpu import CpuPlatform
from opdock.platforms.enums import PlatformEnum
from opdock.platforms.interface import Platform

Building = Callable[..., Any]


def platform_of(kind: str) -> Platform:
    """Return a platform of a kind, on CPU tensors."""
    if kind == "CPU":
        return CpuPlatform()
    return type(f"{kind}Platform", (CpuPlatform,), {"_enum": PlatformEnum[kind], "device_name": kind.lower()})()


@pytest.fixture(autouse=True)
def _undo_registrations(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take back what the test registers, so that no test sees another's classes."""
    for name in ("VLLM_PLUGINS", "VLLM_TARGET_DEVICE", "OPDOCK_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    with contextlib.suppress(_Done), journal.transaction():
        yield
        raise _Done


class _Done(Exception):
    """Ends the transaction of a test by rolling it back."""


@pytest.fixture
def building() -> Building:
    """Return a context manager under which layers of the given switches and platform kind are built."""

    @contextlib.contextmanager
    def under(*switches: str, kind: str = "CPU", **compilation: Any) -> Iterator[OpdockConfig]:
        config = OpdockConfig(CompilationConfig(custom_ops=list(switches), **compilation))
        with current.override(platform_of(kind)), configure.set_current_config(config):
            yield config

    return under
