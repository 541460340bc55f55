"""Backends by name."""

from __future__ import annotations

import pytest

from opdock.errors import DuplicateError, RegistrationError, UnknownNameError
from opdock.nn.attention import AttentionBackend, register_backend, unregister_backend
from opdock.nn.attention.backends.native import NativeAttentionBackend
from opdock.nn.attention.registry import backend_class, backends


class AcmeBackend(NativeAttentionBackend):
    """A backend of somebody else's."""

    @staticmethod
    def get_name() -> str:
        return "ACME_ATTN"


class OtherBackend(NativeAttentionBackend):
    """Another one."""

    @staticmethod
    def get_name() -> str:
        return "OTHER_ATTN"


class Unfinished(AttentionBackend):
    """Defines nothing."""


def test_a_path_is_registered_and_imported_when_it_is_asked_for() -> None:
    register_backend("LATER_ATTN", "no.such.module:Backend")
    assert "LATER_ATTN" in backends
    with pytest.raises(ModuleNotFoundError):
        backend_class("LATER_ATTN")
    unregister_backend("LATER_ATTN")
    assert "LATER_ATTN" not in backends


def test_the_decorator_registers_a_class_at_module_level_and_returns_it() -> None:
    assert register_backend("ACME_ATTN")(AcmeBackend) is AcmeBackend
    assert backend_class("ACME_ATTN") is AcmeBackend
    register_backend("OTHER_ATTN", f"{__name__}:OtherBackend")
    assert backend_class("OTHER_ATTN") is OtherBackend, "any number of names, none shared"
    for name in ("ACME_ATTN", "OTHER_ATTN"):
        unregister_backend(name)


def test_a_class_inside_a_function_is_refused() -> None:
    class Local(NativeAttentionBackend):
        @staticmethod
        def get_name() -> str:
            return "LOCAL_ATTN"

    with pytest.raises(RegistrationError, match="module level"):
        register_backend("LOCAL_ATTN")(Local)
    assert "LOCAL_ATTN" not in backends


def test_a_taken_name_is_refused_and_an_override_can_be_taken_back() -> None:
    before = backends["NATIVE"]
    with pytest.raises(DuplicateError, match="NATIVE"):
        register_backend("NATIVE", "a.b:C")
    register_backend("NATIVE", "a.b:C", override=True)
    assert backends["NATIVE"] == "a.b:C"
    unregister_backend("NATIVE")
    register_backend("NATIVE", before)
    assert backend_class("NATIVE") is NativeAttentionBackend


@pytest.mark.parametrize("name", ["", "lower", "1ST", "WITH-DASH", "get_path"])
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(RegistrationError, match="Invalid or reserved backend name"):
        register_backend(name, "a.b:C")


def test_unfinished_and_foreign_classes_are_refused() -> None:
    with pytest.raises(RegistrationError, match="does not define get_impl_cls, get_name"):
        register_backend("UNFINISHED")(Unfinished)
    with pytest.raises(RegistrationError, match="is no AttentionBackend"):
        register_backend("FOREIGN")(dict)  # type: ignore[type-var]
    with pytest.raises(RegistrationError, match="registered as 'WRONG'"):
        register_backend("WRONG")(AcmeBackend)
    with pytest.raises(RegistrationError, match="not the path of a class"):
        register_backend("EMPTY", "")
    assert not {"UNFINISHED", "FOREIGN", "WRONG", "EMPTY"} & set(backends)


class WithBuilder(AcmeBackend):
    """Has metadata of its own, as elsewhere."""

    @staticmethod
    def get_builder_cls() -> type:
        return dict


def test_a_builder_of_metadata_that_nobody_would_call_is_refused() -> None:
    """The host makes the metadata of a step."""
    with pytest.raises(RegistrationError, match=r"get_builder_cls\(\) returns[\s\S]*Remedy: leave get_builder_cls"):
        register_backend("ACME_ATTN")(WithBuilder)
    assert "ACME_ATTN" not in backends


def test_an_unknown_name_shows_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'TRITON_ATTN'"):
        backend_class("TRITN_ATTN")
    with pytest.raises(UnknownNameError, match="Known: NATIVE"):
        unregister_backend("NOTHING")
