"""The lazy singleton: once, locked, re-entry safe, fork safe; and what a broken plugin leads to."""

from __future__ import annotations

import contextlib
import copy
import importlib
import logging
import os
import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch  # noqa: TC002 - the annotations of a provider are read

import opdock
from opdock import errors, ir, journal
from opdock.platforms import cpu, current, general, order
from opdock.registry import op_registry

Install = Callable[..., str]
PLATFORM = """
from opdock.platforms.interface import Platform
from opdock.platforms.enums import PlatformEnum
class P(Platform):
    _enum = PlatformEnum.OOT
    device_name = {name!r}
    device_type = "cpu"
"""


def test_b14_eight_threads_get_one_instance(install: Install) -> None:
    """A slow register() does not lead to a second resolution."""
    module = install(
        "chip",
        "    import time\n    time.sleep(0.05)\n    CALLS.append(1)\n    return __name__ + ':P'\nCALLS = []",
    )
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(current.resolve())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(p) for p in found}) == 1 and len(found) == 8
    assert sys.modules[module].CALLS == [1]


def test_register_is_called_once(install: Install) -> None:
    """The winner is not asked a second time."""
    module = install("chip", "    CALLS.append(1)\n    return __name__ + ':P'\nCALLS = []")
    current.resolve()
    current.resolve()
    assert sys.modules[module].CALLS == [1]


REENTRANT = """
from opdock.platforms import current_platform
def register():
    return None
"""


def test_b09_plugin_that_asks_at_its_top_fails_loudly(install: Install) -> None:
    """Host first: the error names both modules, the partly imported one and the first stack."""
    module = install("chip", source=REENTRANT)
    with pytest.raises(errors.PlatformFailedError) as caught:
        current.resolve()
    text = str(caught.value)
    assert "current_platform is needed while it is being decided" in text
    assert f"second access: module {module}" in text and "partially initialized modules:" in text
    assert current._state.platform is None


def test_b09_the_same_when_the_plugin_is_imported_first(install: Install) -> None:
    """Plugin first: as loud, and nothing is cached."""
    module = install("chip", source=REENTRANT)
    with pytest.raises(errors.PlatformFailedError, match="partially initialized"):
        __import__(module)
    assert current._state.platform is None


def test_b10_asking_for_the_platform_inside_a_kernel_hook_gives_the_platform(install: Install) -> None:
    """While the hooks run, current_platform is the platform that they belong to."""
    source = """
from opdock.platforms.interface import Platform
from opdock.platforms.enums import PlatformEnum
SEEN = []
class P(Platform):
    _enum, device_name, device_type = PlatformEnum.OOT, "chip", "cpu"
    @classmethod
    def import_ir_kernels(cls):
        from opdock.platforms import current_platform
        SEEN.append(current_platform.device_name)
def register():
    return __name__ + ".P"
"""
    module = install("chip", source=source)
    current.resolve()
    assert sys.modules[module].SEEN == ["chip"]


def test_b20_unknown_attribute_is_an_attribute_error() -> None:
    """hasattr, getattr with a default, copy and pickle work."""
    platform = cpu.CpuPlatform()
    assert not hasattr(platform, "nope")
    assert getattr(platform, "nope", 7) == 7
    assert type(copy.copy(platform)) is type(pickle.loads(pickle.dumps(platform))) is cpu.CpuPlatform
    with pytest.raises(AttributeError, match="Did you mean 'get_device_name'"):
        platform.get_device_nam  # noqa: B018


def test_b20_unknown_attribute_falls_to_the_torch_module() -> None:
    """torch.cpu.device_count is reached through the platform."""
    assert cpu.CpuPlatform().device_count() == 1


def test_b22_forked_child_agrees_and_runs_general_plugins_itself(install: Install, active: Install) -> None:
    """The platform is inherited; general plugins run once in each process."""
    active("chip")
    module = install(
        "gen",
        group="vllm.general_plugins",
        source="PIDS = []\ndef register():\n    import os\n    PIDS.append(os.getpid())",
    )
    assert current.resolve().device_name == "chip"
    assert [os.getpid()] == sys.modules[module].PIDS
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        current.resolve()
        current.resolve()
        own = sys.modules[module].PIDS.count(os.getpid())
        os.write(write, f"{current.resolve().device_name} {own}".encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 100) == b"chip 1"


def test_general_plugins_are_isolated_from_each_other(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    """The one after a broken one still runs, and what the broken one registered is undone."""
    install("a_bad", group="vllm.general_plugins", source="def register():\n    raise SystemExit('rejected')")
    good = install("b_good", group="vllm.general_plugins", source="RAN = []\ndef register():\n    RAN.append(1)")
    with caplog.at_level(logging.WARNING, "opdock"):
        current.resolve()
    assert sys.modules[good].RAN == [1] and "a_bad" in caplog.text and "rejected" in caplog.text


def test_general_plugins_run_after_the_platform(install: Install, active: Install) -> None:
    """They see current_platform."""
    active("chip")
    module = install(
        "gen",
        group="vllm.general_plugins",
        source="SEEN = []\ndef register():\n    import opdock\n    SEEN.append(opdock.current_platform.device_name)",
    )
    current.resolve()
    assert sys.modules[module].SEEN == ["chip"]


def test_order_of_initialisation_is_recorded(active: Install) -> None:
    """Ask, select, load, then the three kernel phases."""
    active("chip")
    current.resolve()
    names = [s.name for s in order.steps()]
    assert names == [
        "ask",
        "select platform",
        "load platform class",
        "import_kernels",
        "import_ir_kernels",
        "register_oot",
    ]


def test_init_trace_is_kept_also_on_failure(install: Install) -> None:
    """Who asked first can be read afterwards."""
    install("chip", "    raise RuntimeError('x')")
    with pytest.raises(errors.PlatformFailedError):
        current.resolve()
    assert "test_init_trace_is_kept_also_on_failure" in opdock.platforms._init_trace


def test_override_is_for_this_context_only(active: Install) -> None:
    """A test may put any platform in force."""
    active("chip")
    mine = cpu.CpuPlatform()
    with current.override(mine):
        assert opdock.current_platform is mine
    assert opdock.current_platform.device_name == "chip"


def test_b12_slow_plugin_is_named_while_it_is_waited_for(
    install: Install, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says which plugin and where it is."""
    monkeypatch.setattr(current, "SLOW_AFTER", 0.05)
    module = install("chip", "    import time\n    time.sleep(0.4)\n    return None")
    with caplog.at_level(logging.WARNING, "opdock"):
        current.resolve()
    assert f"Still waiting for platform plugin chip  dist-chip 1.0  {module}:register" in caplog.text


def test_general_plugins_do_not_run_twice(install: Install) -> None:
    """Idempotent in one process."""
    module = install("gen", group="vllm.general_plugins", source="RAN = []\ndef register():\n    RAN.append(1)")
    current.resolve()
    general.run_general_plugins(current._scan().candidates_of("vllm.general_plugins"), "0.1.0")
    assert sys.modules[module].RAN == [1]


RETRY = """
import os
from opdock.platforms.interface import Platform
from opdock.platforms.enums import PlatformEnum
class P(Platform):
    _enum = PlatformEnum.OOT
    device_name = "chip"
    device_type = "cpu"
    @classmethod
    def import_ir_kernels(cls):
        import {module}_providers
    @classmethod
    def register_oot(cls):
        if os.environ.pop("TEST_TRANSIENT", ""):
            raise RuntimeError("busy")
def register():
    return __name__ + ":P"
"""
PROVIDER = """
from torch import Tensor
from opdock import ir
@ir.ops.silu_and_mul.register_impl("retried")
def silu_and_mul(x: Tensor) -> Tensor:
    return x
"""


def test_b27_after_a_roll_back_or_a_reset_the_providers_are_there_again(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their module registers when it is imported; a module that stayed would leave the op native without a word."""
    module = install("chip", source=RETRY)
    (tmp_path / "site" / f"{module}_providers.py").write_text(PROVIDER)
    monkeypatch.setenv("TEST_TRANSIENT", "1")
    with pytest.raises(errors.PlatformFailedError, match="busy"):
        current.resolve()
    assert "retried" not in ir.ops.silu_and_mul.impls
    for _ in range(2):
        current.resolve()
        assert "retried" in ir.ops.silu_and_mul.impls
        current.reset()
        assert "retried" not in ir.ops.silu_and_mul.impls


@pytest.mark.parametrize(
    ("class_module", "words"),
    [("raise SystemExit(3)", "cannot be loaded"), ("", "raised")],
)
def test_b15_leaving_the_process_in_the_class_is_an_error_with_its_distribution(
    class_module: str, words: str, install: Install, tmp_path: Path
) -> None:
    """SystemExit would end the host's process without a word."""
    module = install("chip", "    return 'MODULE_class:P'".replace("MODULE", "plug_leaving"))
    text = (tmp_path / "site" / f"{module}.py").read_text().replace("plug_leaving", module)
    (tmp_path / "site" / f"{module}.py").write_text(text)
    body = PLATFORM.format(name="chip") + "    def __init__(self):\n        raise SystemExit(3)\n"
    (tmp_path / "site" / f"{module}_class.py").write_text(class_module or body)
    record = next((tmp_path / "site").glob("*.dist-info/RECORD"))
    record.write_text(record.read_text() + f"{module}_class.py,,\n")
    with pytest.raises(errors.PlatformFailedError, match=f"{words}[\\s\\S]*SystemExit|SystemExit[\\s\\S]*{words}"):
        current.resolve()


def _retarget(module: str) -> None:
    """Let the entry point name the module itself."""
    site = next(Path(p) for p in sys.path if Path(p, f"{module}.py").is_file())
    file = next(site.glob(f"{module}-*.dist-info")) / "entry_points.txt"
    file.write_text(file.read_text().replace("PLACEHOLDER", module))


def test_what_a_plugin_registered_before_it_declined_is_taken_back(install: Install) -> None:
    """It is not for this machine, and neither is what it brought."""
    install(
        "chip",
        "    from opdock.registry import tables\n    tables._ops.register('declined_op', Platform)\n    return None",
    )
    assert current.resolve().is_cpu()
    assert "declined_op" not in op_registry


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_b14_a_hook_that_forks_runs_once(install: Install, tmp_path: Path) -> None:
    """The child that asks for the platform gets the one whose hook forked, and does not run the hook again."""
    log = tmp_path / "log"
    body = (
        PLATFORM.format(name="chip")
        + f"""
    @classmethod
    def import_kernels(cls):
        import os, opdock
        with open({str(log)!r}, "a") as file:
            file.write("hook\\n")
        child = os.fork()
        if child == 0:
            with open({str(log)!r}, "a") as file:
                file.write(opdock.current_platform.device_name + "\\n")
            os._exit(0)
        os.waitpid(child, 0)
def register():
    return __name__ + ":P"
"""
    )
    install("chip", source=body)
    current.resolve()
    assert log.read_text().split() == ["hook", "chip"]


def test_an_interrupted_activation_leaves_nothing_behind(install: Install, active: Install) -> None:
    """Ctrl-C in a general plugin, after the platform's hooks: the next access starts anew."""
    active("chip")
    install("general", "    raise KeyboardInterrupt", group="vllm.general_plugins")
    before = journal.entries()
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            current.resolve()
        assert journal.entries() == before
        assert current.hook_manager() is None


def test_b22_a_configuration_from_another_process_brings_its_platform_up(active: Install) -> None:
    """Pickled when sealed: the providers that it names are registered before its priorities are."""
    active("chip")
    with opdock.set_current_config() as config:
        text = pickle.dumps(config)
    current.reset()
    with opdock.set_current_config(pickle.loads(text)):
        assert current.hook_manager() is not None


@pytest.mark.parametrize("field", ["op", "provider"])
def test_a_refused_configuration_is_refused_again(field: str) -> None:
    """The second try does not go past the checks."""
    priorities = {"no_such_op": "native"} if field == "op" else {"rms_norm": "no_such_provider"}
    config = opdock.OpdockConfig.from_text(None, priorities)
    for _ in range(2):
        with pytest.raises(errors.UnknownNameError, match="no_such"), opdock.set_current_config(config):
            pytest.fail("entered")
    switches = opdock.OpdockConfig(opdock.CompilationConfig(custom_ops=["+rms_nrm"]))
    importlib.import_module("opdock.nn.layers")
    for _ in range(2):
        with pytest.raises(errors.ConfigError, match="rms_nrm"), opdock.set_current_config(switches):
            pytest.fail("entered")


def test_priorities_of_an_outer_configuration_come_back() -> None:
    """A second model that is built inside the first one's configuration does not change the rest of the first."""
    with journal.transaction() as made:

        def other(x: torch.Tensor) -> torch.Tensor:
            return x

        ir.ops.silu_and_mul.register_impl("other")(other)
        outer = opdock.OpdockConfig.from_text(None, {"silu_and_mul": "other"})
        with opdock.set_current_config(outer):
            with contextlib.suppress(ZeroDivisionError), opdock.set_current_config():
                assert ir.ops.silu_and_mul.get_priority() == ["native"]
                raise ZeroDivisionError
            assert ir.ops.silu_and_mul.get_priority() == ["other"]
        journal.roll_back(made)


@pytest.mark.parametrize(
    "hook", ["platform_selected(platform, selection)", "default_ir_op_priority(platform, config)",
             "provider_chosen(op, providers)"],
)  # fmt: skip
def test_b16_an_observer_that_raises_is_a_warning(
    hook: str, install: Install, active: Install, caplog: pytest.LogCaptureFixture
) -> None:
    """A package that only looks on does not take the platform away."""
    active("chip")
    source = f"import opdock\n@opdock.hookimpl\ndef {hook}:\n    raise RuntimeError('boom')\n"
    module = install("watcher", group="opdock.plugins", target="PLACEHOLDER", source=source)
    _retarget(module)
    with caplog.at_level(logging.WARNING, "opdock"), opdock.set_current_config() as config:
        assert config.platform is not None
        assert config.platform.device_name == "chip"
    assert f"failed in {hook.partition('(')[0]}" in caplog.text
