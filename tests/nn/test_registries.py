"""What a package registers with the three selectors is its own: recorded under its name, and taken back with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from opdock import journal
from opdock.nn.attention import registry as attention
from opdock.nn.attention.backends.native import NativeAttentionBackend
from opdock.nn.moe.backend import moe_backends, register_moe_backend
from opdock.nn.moe.backends import NativeBackend
from opdock.nn.quantization import register_linear_kernel, register_quantization_config
from opdock.nn.quantization.fp8 import Fp8Config
from opdock.nn.quantization.kernels.native import NativeScaledLinear
from opdock.platforms.enums import PlatformEnum

OWNER = journal.Owner("opdock-acme", "1.0", "opdock_acme")


class AcmeBackend(NativeAttentionBackend):
    """An attention backend."""

    @staticmethod
    def get_name() -> str:
        return "ACME"


REGISTER: dict[str, Callable[[], Any]] = {
    "attention backend by path": lambda: attention.register_backend("ACME", f"{__name__}:AcmeBackend"),
    "attention backend by decorator": lambda: attention.register_backend("ACME")(AcmeBackend),
    "MoE backend": lambda: register_moe_backend("acme")(type("Acme", (NativeBackend,), {})),
    "quantisation method": lambda: register_quantization_config("acme")(type("AcmeConfig", (Fp8Config,), {})),
    "linear kernel": lambda: register_linear_kernel(
        type("AcmeKernel", (NativeScaledLinear,), {}), PlatformEnum.CPU, "fp8"
    ),
}


def fail(what: str, seen: list[journal.Registration]) -> None:
    """Register inside a hook that raises afterwards."""
    with journal.transaction(OWNER) as made:
        REGISTER[what]()
        seen += made
        raise RuntimeError("the hook failed")


@pytest.mark.parametrize("what", REGISTER)
def test_a_registration_has_its_owner_and_goes_with_a_failed_activation(what: str) -> None:
    before, seen = journal.entries(), list[journal.Registration]()
    with pytest.raises(RuntimeError, match="the hook failed"):
        fail(what, seen)
    assert [(entry.owner, entry.site.module) for entry in seen] == [(OWNER, __name__)]
    assert journal.entries() == before


def test_the_hosts_own_backends_belong_to_nobody() -> None:
    """Whoever imported them first."""
    assert attention.registered_by("opdock-acme") == []
    assert moe_backends.record_of("native").owner is None
    with journal.transaction(OWNER) as made:
        attention.register_backend("ACME", f"{__name__}:AcmeBackend")
        assert attention.registered_by("opdock-acme") == ["ACME"]
        journal.roll_back(made)
