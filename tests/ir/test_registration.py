"""register_op and register_impl: what is refused, with both sides shown, and that nothing stays of it."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, List, Optional  # noqa: UP035 - old spellings are accepted

import pytest
import torch

from opdock import ir, journal
from opdock.errors import DuplicateError, OrderError, RegistrationError, SchemaMismatchError


def add(x: torch.Tensor, y: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
    """Add y to x.

    With a factor.
    """
    return x + alpha * y


@pytest.fixture
def op() -> Any:
    """Return an op that is registered for one test."""
    return ir.register_op(name="t_add")(add)


def test_three_forms_of_register_op() -> None:
    """Bare, called, by name; the registry holds the op, and the public function its methods."""

    @ir.register_op
    def t_bare(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @ir.register_op()
    def t_called(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    named = ir.register_op(add, name="t_named")
    for name, fn in (("t_bare", t_bare), ("t_called", t_called), ("t_named", named)):
        assert ir.registry[name] is fn.op and getattr(ir.ops, name) is fn
        assert ir.registry[name].torch_op is getattr(torch.ops.opdock_ir, name).default


def test_repr_is_simple_and_str_adds_the_first_line(op: Any) -> None:
    """For messages."""
    assert (repr(op.op), str(op.op)) == ("IrOp('t_add')", "IrOp('t_add') - Add y to x.")


@pytest.mark.parametrize("name", ["InvalidName", "123invalid", "a-b", "", "a\n"])
def test_names_are_checked(name: str, op: Any) -> None:
    """Of ops and of providers."""
    with pytest.raises(RegistrationError, match="name .* is invalid"):
        ir.register_op(name=name)(add)
    with pytest.raises(RegistrationError, match="name .* is invalid"):
        op.register_impl(name)


def test_duplicate_op_shows_both_places(op: Any) -> None:
    """The first stays."""

    def other(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    with pytest.raises(DuplicateError, match=r"'t_add' is already registered[\s\S]*registered at[\s\S]*again at"):
        ir.register_op(name="t_add")(other)
    assert ir.ops.t_add is op


def test_b27_same_op_again_is_a_no_op(op: Any) -> None:
    """Two engines in one process."""
    assert ir.register_op(name="t_add")(add) is op


def test_keyword_only_parameters_are_refused() -> None:
    """Lowering binds by position; nothing is registered."""

    def t_kw(x: torch.Tensor, *, y: int = 1) -> torch.Tensor:
        return x

    with pytest.raises(RegistrationError, match="has keyword-only arguments which are not currently supported"):
        ir.register_op(t_kw)
    assert "t_kw" not in ir.registry and not hasattr(torch.ops.opdock_ir, "t_kw")


def test_b27_a_refused_op_can_be_registered_again_after_the_fix() -> None:
    """Also when torch.library was touched already."""

    def bad(x: torch.Tensor) -> torch.Tensor:
        return x

    with pytest.raises(RegistrationError, match="is no tensor parameter"):
        ir.register_op(name="t_retry", activations=["z"], allow_inplace=True)(bad)
    with pytest.raises(RegistrationError, match="same number of outputs as activations"):
        ir.register_op(name="t_retry", activations=["x", "y"], allow_inplace=True)(add)
    assert ir.register_op(name="t_retry")(add)(torch.ones(1), torch.ones(1)) == 2


def test_registering_a_provider_changes_nothing_yet(op: Any) -> None:
    """It runs when a priority lists it."""

    @op.register_impl("other")
    def other(x: torch.Tensor, y: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
        return x * 0

    assert isinstance(other, ir.IrOpImpl) and op.impls["other"] is other
    assert op(torch.ones(1), torch.ones(1)) == 2


@pytest.mark.parametrize("name", ["native", "unfused"])
def test_reserved_providers_are_refused(name: str, op: Any) -> None:
    """Native is the definition."""
    with pytest.raises(RegistrationError, match=f"Provider name {name} is reserved"):
        op.register_impl(name)


def renamed(x: torch.Tensor, z: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
    return x


def other_default(x: torch.Tensor, y: torch.Tensor, alpha: float = 2.0) -> torch.Tensor:
    return x


def other_type(x: torch.Tensor, y: torch.Tensor, alpha: int = 1) -> torch.Tensor:
    return x


def missing(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x


def other_return(x: torch.Tensor, y: torch.Tensor, alpha: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    return x, y


@pytest.mark.parametrize("fn", [renamed, other_default, other_type, missing, other_return])
def test_b44_schema_difference_is_shown_word_by_word(fn: Callable[..., Any], op: Any) -> None:
    """Both definitions, each with file and line; nothing is registered."""
    with pytest.raises(SchemaMismatchError) as caught:
        op.register_impl("p")(fn)
    text = str(caught.value)
    assert "does not match native schema" in text and text.count(f"{__file__}:") >= 2 and "Remedy:" in text
    assert set(op.impls) == {"native"}


def test_b44_annotations_as_strings_and_local_imports_are_resolved(op: Any) -> None:
    """A provider may be defined inside a hook that imports torch itself."""

    def hook() -> None:
        import torch as local_torch

        def inside(x: local_torch.Tensor, y: local_torch.Tensor, alpha: float = 1.0) -> local_torch.Tensor:
            return x

        op.register_impl("inside")(inside)

    hook()
    assert "inside" in op.impls


def test_b44_unresolved_name_is_named(op: Any) -> None:
    """Function and name."""

    def p(x: Tensr, y: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:  # type: ignore[name-defined]  # noqa: F821
        return x

    with pytest.raises(RegistrationError, match=r"provider 'p' of op 't_add'.*'Tensr' is not defined"):
        op.register_impl("p")(p)


def test_b44_missing_annotation_is_named(op: Any) -> None:
    """With what to write."""

    def p(x: torch.Tensor, y, alpha: float = 1.0) -> torch.Tensor:  # type: ignore[no-untyped-def]  # noqa: ANN001
        return x

    with pytest.raises(RegistrationError, match=r"Parameter 'y' of provider 'p' of op 't_add' has no annotation"):
        op.register_impl("p")(p)


def test_b44_keyword_only_provider_is_refused(op: Any) -> None:
    """infer_schema would take it."""

    def p(x: torch.Tensor, y: torch.Tensor, *, alpha: float = 1.0) -> torch.Tensor:
        return x

    with pytest.raises(RegistrationError, match="keyword-only"):
        op.register_impl("p")(p)


def test_b44_list_default_is_refused_in_words() -> None:
    """Torch's own reason is passed on."""

    def t_list(x: torch.Tensor, sizes: Sequence[int] = [1]) -> torch.Tensor:
        return x

    with pytest.raises(RegistrationError, match="schema of op 't_list' cannot be inferred"):
        ir.register_op(t_list)


def test_b44_old_spellings_of_types_are_equal() -> None:
    """Optional and List mean what | None and Sequence mean."""

    @ir.register_op
    def t_old(x: torch.Tensor, w: torch.Tensor | None, sizes: Sequence[int]) -> torch.Tensor:
        return x.clone()

    def p(x: torch.Tensor, w: Optional[torch.Tensor], sizes: List[int]) -> torch.Tensor:  # noqa: UP006, UP045
        return x

    t_old.register_impl("p")(p)
    assert "p" in t_old.impls


PREDICATES: list[tuple[Any, str]] = [
    (3, "must be a callable"),
    (lambda x, y: True, "must have the same number of parameters"),
    (lambda *args: True, "must have the same number of parameters"),
    (lambda x, z, alpha=1.0: True, "has parameter 'z' which does not match native parameter 'y'"),
    (lambda x, y, alpha=2.0: True, "has parameter 'alpha' with default 2.0 which does not match native default 1.0"),
    (lambda x, y, *, alpha=1.0: True, "cannot have keyword-only parameters"),
]


@pytest.mark.parametrize(("predicate", "message"), PREDICATES)
def test_predicate_has_the_native_parameters(predicate: Any, message: str, op: Any) -> None:
    """The texts are those that plugin authors know; nothing is registered."""
    with pytest.raises(SchemaMismatchError, match=message):
        op.register_impl("p", supports_args=predicate)(add)
    assert set(op.impls) == {"native"}


def test_inplace_needs_an_op_that_allows_it(op: Any) -> None:
    """The op says so, not the provider."""
    with pytest.raises(RegistrationError, match="does not allow inplace"):
        op.register_impl("p", inplace=True)(add)


def test_duplicate_provider_shows_both_places_and_the_first_stays(op: Any) -> None:
    """Case B18: never the last one."""

    def first(x: torch.Tensor, y: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
        return x

    def second(x: torch.Tensor, y: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
        return y

    op.register_impl("p")(first)
    with pytest.raises(DuplicateError, match=r"provider p already registered[\s\S]*registered at[\s\S]*again at"):
        op.register_impl("p")(second)
    assert op.impls["p"].impl_fn is first
    assert op.register_impl("p")(first) is op.impls["p"]


PROVIDER = """
import torch
from opdock import ir
@ir.ops.t_add.register_impl("file")
def p(x: torch.Tensor, y: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
    return x * {factor}
"""


def test_b27_module_imported_under_two_names_registers_once(op: Any, tmp_path: Path) -> None:
    """The same file again replaces; what it computes is that of the newer import."""
    path = tmp_path / "prov.py"
    for name, factor in (("prov_a", 2), ("prov_b", 3)):
        path.write_text(PROVIDER.format(factor=factor) + "#" * factor)  # another length: no stale bytecode
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    with op.set_priority(["file"]):
        assert op(torch.ones(1), torch.ones(1)) == 3


def test_torch_op_and_partial_can_be_providers(op: Any) -> None:
    """A vendor's op needs no wrapper when the schemas are equal."""
    lib = torch.library.Library("t_vendor", "FRAGMENT")
    lib.define("add(Tensor x, Tensor y, float alpha=1.) -> Tensor")
    lib.impl("add", add, "CPU")
    op.register_impl("vendor")(torch.ops.t_vendor.add.default)

    def scaled(factor: float, x: torch.Tensor, y: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
        return factor * (x + alpha * y)

    op.register_impl("scaled")(functools.partial(scaled, 10.0))
    for name, expected in (("vendor", 2), ("scaled", 20)):
        with op.set_priority([name]):
            assert op(torch.ones(1), torch.ones(1)) == expected
        assert len(op.impls[name].uuid()) == 64
    lib._destroy()


def test_provider_of_a_plugin_before_its_kernels_is_refused(op: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its module was imported directly; what it calls may not exist yet."""
    from opdock.ir import providers

    monkeypatch.setattr(providers, "_plugin_packages", lambda: frozenset({"vendorpkg"}))
    monkeypatch.setattr(providers.context, "kernels_loaded", lambda: False)
    module = {"__name__": "vendorpkg.providers", "torch": torch, "op": op}
    code = PROVIDER.format(factor=1).replace("ir.ops.t_add", "op")
    with pytest.raises(OrderError, match="registered before the kernels are loaded"):
        exec(compile(code, "vendorpkg/providers.py", "exec"), module)
    with journal.transaction(journal.Owner("vendorpkg", "1", "x")):
        exec(compile(code, "vendorpkg/providers.py", "exec"), module)
    assert "file" in op.impls


def test_supported_is_asked_once_and_may_be_a_reason(op: Any) -> None:
    """Not at import: when the provider is first considered."""
    asked: list[int] = []

    def supported() -> bool | str:
        asked.append(1)
        return "libvendor.so is not here"

    op.register_impl("p", supported=supported)(add)
    assert asked == []
    assert not op.impls["p"].supported and op.impls["p"].reason == "libvendor.so is not here"
    assert op.supported_providers() == ["native"] and asked == [1]


def test_input_generator_is_needed_and_named(op: Any) -> None:
    """Without one, the message says how to register it."""
    assert not op.op.has_input_generator
    with pytest.raises(OrderError, match="No input generator registered for op 't_add'"):
        op.generate_inputs()


def test_every_op_of_the_package_has_an_input_generator_with_the_same_parameters() -> None:
    """num_tokens, hidden_size, dtype, device, everywhere."""
    for name in (
        "rms_norm",
        "fused_add_rms_norm",
        "silu_and_mul",
        "gelu_and_mul",
        "gelu_and_mul_sparse",
        "rotary_embedding",
    ):
        args = ir.registry[name].generate_inputs(num_tokens=3, hidden_size=32, dtype=torch.bfloat16, device="cpu")
        assert any(isinstance(a, torch.Tensor) and a.dtype == torch.bfloat16 and a.shape[0] == 3 for a in args)


def test_tolerances_are_by_dtype_and_provider(op: Any) -> None:
    """An override touches its own dtype and provider alone."""
    assert op.get_tolerance(torch.float32) == {"atol": 1e-5, "rtol": 1.3e-6}
    op.override_tolerance(torch.float16, atol=1e-2, rtol=0.0, provider="p")
    assert op.get_tolerance(torch.float16) == {"atol": 1e-3, "rtol": 1e-3}
    assert op.get_tolerance(torch.float16, "p") == {"atol": 1e-2, "rtol": 0.0}
    with pytest.raises(ValueError, match="No tolerance defined for dtype torch.complex64"):
        op.get_tolerance(torch.complex64)
