"""Activating a platform: broken answers, refused classes, hooks that raise, and what is undone."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from opdock import errors, ir, journal
from opdock.platforms import current
from opdock.registry import op_registry_oot

Install = Callable[..., str]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("    raise ImportError('no libchip.so')", "no libchip.so"),
        ("    raise SystemExit(3)", "SystemExit"),
        ("    return P", "expected a class path"),
        ("    return ''", "expected a class path"),
        ("    return True", "expected a class path"),
        ("    return 'nowhere.P'", "nowhere"),
        ("    return __name__ + ':Q'", "no attribute 'Q'"),
        ("    return 'NoDots'", "no class path"),
        ("    return 'json:JSONDecoder'", "outside of dist-chip"),
        ("    return __name__ + ':int'\nint = int", "not a subclass"),
    ],
)
def test_b15_every_broken_register_is_an_error_with_its_distribution(body: str, words: str, install: Install) -> None:
    """Never the CPU in silence."""
    install("chip", body)
    with pytest.raises(errors.PlatformFailedError) as caught:
        current.resolve()
    assert words in str(caught.value) and "dist-chip 1.0" in str(caught.value) and "Remedy:" in str(caught.value)


HALF = """
from opdock import ir, journal
from opdock.platforms.interface import Platform
from opdock.platforms.enums import PlatformEnum
class P(Platform):
    _enum, device_name, device_type = PlatformEnum.OOT, "chip", "cpu"
    @classmethod
    def import_ir_kernels(cls):
        import torch
        @ir.ops.silu_and_mul.register_impl("half_a")
        def f(x: torch.Tensor) -> torch.Tensor: return x
        @ir.ops.gelu_and_mul.register_impl("half_b")
        def g(x: torch.Tensor, approximate: str = "none") -> torch.Tensor: return x
    @classmethod
    def register_oot(cls):
        raise OSError("libchip.so: cannot open")
def register():
    return __name__ + ".P"
"""


def test_b16_a_hook_that_raises_takes_everything_back(install: Install) -> None:
    """Two providers were registered before the raise: neither stays, and the words of the loader are kept."""
    install("chip", source=HALF)
    assert set(ir.ops.silu_and_mul.impls) == {"native"}  # the host's own ops are registered by now
    before = journal.entries()
    with pytest.raises(errors.PlatformFailedError, match=r"libchip.so: cannot open[\s\S]*is undone"):
        current.resolve()
    assert set(ir.ops.silu_and_mul.impls) == {"native"} == set(ir.ops.gelu_and_mul.impls)
    assert journal.entries() == before


def test_b16_an_optional_package_that_raises_is_left_out_alone(
    install: Install, active: Install, caplog: pytest.LogCaptureFixture
) -> None:
    """A broken kernels-only package is a warning; the platform is active and its registrations are undone."""
    active("chip")
    install(
        "extra",
        group="opdock.plugins",
        target=None,
        source="""
import opdock
class register:
    @staticmethod
    @opdock.hookimpl
    def import_ir_kernels():
        import torch
        from opdock import ir
        ir.ops.silu_and_mul.register_impl("extra")(_f)
        raise RuntimeError("half way")
def _f(x: "torch.Tensor") -> "torch.Tensor": return x
""",
    )
    with caplog.at_level(logging.WARNING, "opdock"):
        assert current.resolve().device_name == "chip"
    assert "dist-extra:extra failed" in caplog.text and "half way" in caplog.text
    assert "extra" not in ir.ops.silu_and_mul.impls


@pytest.mark.parametrize(
    ("member", "words"),
    [
        ("    def get_device_name(cls): return 'x'", "the host also passes 'device_id'"),
        ("    def set_device(cls, dev): ...", "'dev' stands where the host has 'device'"),
        ("    def get_default_ir_op_priority(cls, config, extra): ...", "never passes 'extra'"),
    ],
)
def test_c_drifted_hook_is_refused_at_activation(member: str, words: str, install: Install) -> None:
    """A signature that no longer fits is an error before the first call."""
    install("chip", f"    return __name__ + '.Q'\nclass Q(P):\n    @classmethod\n{member}")
    with pytest.raises(errors.PlatformFailedError, match=words):
        current.resolve()


def test_a_parameter_may_keep_the_name_that_vllm_has_for_it(install: Install) -> None:
    """The host gives it by position; nearly every backend that is ported has this one."""
    hook = "    @classmethod\n    def check_and_update_config(cls, vllm_config): ..."
    install("chip", f"    return __name__ + '.Q'\nclass Q(P):\n{hook}")
    assert current.resolve().device_name == "chip"


@pytest.mark.parametrize(
    ("member", "words"),
    [
        ("import_ir_kernel", "did you mean import_ir_kernels?"),
        ("is_async_output_supported", "is never called"),
    ],
)
def test_c_unknown_and_removed_hooks_are_reported(
    member: str, words: str, install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    """A hook that nothing calls is reported with the nearest name, or with why it went away."""
    install("chip", f"    return __name__ + '.Q'\nclass Q(P):\n    @classmethod\n    def {member}(cls): ...")
    with caplog.at_level(logging.WARNING, "opdock"):
        current.resolve()
    assert words in caplog.text


def test_b21_class_for_another_host_api_is_refused(install: Install) -> None:
    """The second handshake, by the class."""
    install("chip", "    return __name__ + '.Q'\nclass Q(P):\n    api_version = 9")
    with pytest.raises(errors.PlatformFailedError, match="plugin built for host API 9, host has 1"):
        current.resolve()


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("NPU", "not a dispatch key"),
        ("", "dispatch_key is ''"),
        ("CUDA", "dispatches 'cpu' tensors to 'CPU'"),
    ],
)
def test_b46_dispatch_key_is_checked_at_activation(key: str, words: str, install: Install) -> None:
    """An invented, empty or foreign key is an error then, not at the first token."""
    install("chip", f"    return __name__ + '.Q'\nclass Q(P):\n    dispatch_key = {key!r}")
    with pytest.raises(errors.PlatformFailedError, match=words):
        current.resolve()


def test_reset_undoes_what_the_hooks_registered(install: Install) -> None:
    """After reset nothing of the platform is left in the registries."""
    install("chip", source=HALF.replace('raise OSError("libchip.so: cannot open")', "pass"))
    current.resolve()
    assert "half_a" in ir.ops.silu_and_mul.impls
    current.reset()
    assert "half_a" not in ir.ops.silu_and_mul.impls and not op_registry_oot


def test_b16_registrations_of_the_class_module_are_undone_too(install: Install) -> None:
    """What the platform's own module registers when it is imported goes with a failed activation."""
    source = """
def register():
    return __name__ + "_plat.P"
"""
    module = install("chip", source=source)
    site = next(p for p in sys.path if (Path(p) / f"{module}.py").is_file())
    body = HALF.replace(
        "class P(Platform)", "ir.ops.gelu_and_mul.register_impl('at_import')(lambda_)\nclass P(Platform)"
    )
    body = body.replace(
        "from opdock import ir, journal",
        "import torch\nfrom opdock import ir, journal\n"
        "def lambda_(x: torch.Tensor, approximate: str = 'none') -> torch.Tensor: return x",
    )
    Path(site, f"{module}_plat.py").write_text(body)
    record = next(Path(site).glob(f"{module}-*.dist-info")) / "RECORD"
    record.write_text(record.read_text() + f"{module}_plat.py,,\n")
    with pytest.raises(errors.PlatformFailedError, match="libchip.so"):
        current.resolve()
    assert set(ir.ops.gelu_and_mul.impls) == {"native"}
