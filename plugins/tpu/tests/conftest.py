"""What the tests of opdock-tpu share."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import opdock

if importlib.util.find_spec("jax") is not None:
    # No TPU is here: XLA's CPU client stands in, and libtpu, which only compiles, asks nobody where it is.
    os.environ.update(OPDOCK_TPU_ON="cpu", TPU_SKIP_MDS_QUERY="1", TPU_WORKER_HOSTNAMES="localhost")

WARNED = (
    "ignore:Explicitly requested dtype:UserWarning",  # int64 is int32 on XLA
    "ignore:The given NumPy array is not writable:UserWarning",  # torchax, whenever a tensor comes to the host
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what torchax warns about in every program."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for warning in WARNED:
                item.add_marker(pytest.mark.filterwarnings(warning))


def _missing(*names: str) -> str:
    absent = [name for name in names if importlib.util.find_spec(name) is None]
    return f"{' and '.join(absent)} not installed: nox -s plugin-tpu has what is needed" if absent else ""


@pytest.fixture
def jax() -> Any:
    """The module jax, on XLA's CPU client; the test is skipped in words where it is not."""
    reason = _missing("jax")
    if reason:
        pytest.skip(reason)
    module = importlib.import_module("jax")
    module.config.update("jax_platforms", "cpu")
    return module


@pytest.fixture
def torchax(jax: Any) -> Any:
    """The module torchax, loaded as this package loads it; the test is skipped in words where it is not there."""
    reason = _missing("torchax")
    if reason:
        pytest.skip(reason)
    from opdock_tpu import library

    library.load()
    return importlib.import_module("torchax")


@pytest.fixture
def libtpu(jax: Any) -> Any:
    """libtpu, which compiles for TPUs without one; the test is skipped in words where it is not."""
    reason = _missing("libtpu")
    if reason:
        pytest.skip(reason)
    return importlib.import_module("libtpu")


@pytest.fixture
def activated(torchax: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The platform of this process is this package's, and a configuration is set."""
    monkeypatch.setenv("OPDOCK_PLATFORM", "tpu")
    with opdock.set_current_config():
        assert opdock.current_platform.device_type == "jax"
        yield


@pytest.fixture
def compilations(jax: Any) -> Iterator[Any]:
    """A function that returns how many programs XLA has compiled in this test."""
    seen: list[str] = []
    listening = [True]

    def listen(event: str, *_: Any, **__: Any) -> None:
        if listening[0] and event.endswith("backend_compile_duration"):
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield lambda: len(seen)
    listening[0] = False
