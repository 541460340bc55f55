"""Plugins installed into a folder on the path, and a process without a platform before and after each test."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opdock.platforms import current

Install = Callable[..., str]

PLATFORM = """
from opdock.platforms.interface import Platform
from opdock.platforms.enums import PlatformEnum
class P(Platform):
    _enum = PlatformEnum.OOT
    device_name = {name!r}
    device_type = "cpu"
"""

_serial = itertools.count()


@pytest.fixture(autouse=True)
def _no_platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Decide the platform anew in each test, without what this machine's environment and packages say."""
    for name in ("VLLM_PLUGINS", "VLLM_TARGET_DEVICE", "OPDOCK_PLATFORM", "OPDOCK_STRICT"):
        monkeypatch.delenv(name, raising=False)
    current.reset()
    yield
    current.reset()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return a function that writes a module and its metadata, as an installed distribution."""
    site = tmp_path / "site"
    site.mkdir()
    before = set(sys.modules)
    # only this folder is scanned, so that packages of this machine do not take part
    monkeypatch.setattr(current, "_scan", lambda: current.metadata.scan([str(site)], cwd="/"))
    monkeypatch.syspath_prepend(str(site))

    def write(
        name: str,
        register: str = "",
        *,
        source: str | None = None,
        requires: str | None = "opdock>=0.1",
        group: str = "vllm.platform_plugins",
        entry_point: str | None = None,
        target: str | None = None,
        version: str = "1.0",
    ) -> str:
        module = f"plug_{name}_{next(_serial)}"
        body = source if source is not None else PLATFORM.format(name=name) + f"def register():\n{register}\n"
        (site / f"{module}.py").write_text(body.replace("{module}", module))
        info = site / f"{module}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: dist-{name}\nVersion: {version}\n"
            + (f"Requires-Dist: {requires}\n" if requires else "")
        )
        (info / "entry_points.txt").write_text(f"[{group}]\n{entry_point or name} = {target or module + ':register'}\n")
        (info / "RECORD").write_text(f"{module}.py,,\n{module}-{version}.dist-info/METADATA,,\n")
        return module

    yield write
    for name in set(sys.modules) - before:
        if name.startswith("plug_"):
            del sys.modules[name]


@pytest.fixture
def active(install: Install) -> Callable[..., str]:
    """Return a function that installs a platform that is always there."""
    return lambda name, **kwargs: install(name, "    return __name__ + ':P'", **kwargs)
