"""Registrations are all or nothing, can be taken back, and survive reloads; the host's own belong to nobody."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from opdock import ir, journal
from opdock.errors import DuplicateError, OrderError, RegistrationError, SchemaMismatchError
from opdock.ir.registering import unregister_op

X = torch.ones(2, 4)


def scale(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
    """Multiply x."""
    return x * by


def test_b16_a_hook_that_raises_leaves_neither_op_nor_provider_nor_fake() -> None:
    """Everything of the transaction is undone, in torch too; a retry works."""
    before = set(ir.registry)
    for attempt in (1, 2):
        try:
            with journal.transaction(journal.Owner("opdock-half", "1.0", "half")):
                op = ir.register_op(scale, name="t_half")
                op.register_impl("half")(scale)
                op.register_fake(scale)
                op.override_tolerance(torch.float32, atol=1.0, rtol=1.0)
                ir.ops.rms_norm.register_impl("half")(_rms)
                ir.ops.rms_norm.override_tolerance(torch.float32, atol=1.0, rtol=1.0)
                raise ValueError("half-way")
        except ValueError:
            pass
        assert set(ir.registry) == before and not hasattr(ir.ops, "t_half"), attempt
        assert not hasattr(ir.native, "t_half")
        assert "half" not in ir.ops.rms_norm.impls
        assert ir.ops.rms_norm.get_tolerance(torch.float32)["atol"] == 1e-5
        with pytest.raises(OrderError, match="was taken back"):
            op.torch_op(X)


def _rms(
    x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
) -> torch.Tensor:
    return x


def test_an_op_that_was_taken_back_can_be_registered_with_another_schema() -> None:
    """Also with two overloads, which torch itself cannot define twice."""

    def other(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    for native in (scale, other, scale, other):
        op = ir.register_op(name="t_again", allow_inplace=True)(native)
        assert torch.equal(op.torch_op(X), native(X)) and torch.equal(op.maybe_inplace.torch_op(X), native(X))
        assert torch.equal(op(X), native(X)) and torch.equal(op.maybe_inplace(X), native(X))
        unregister_op("t_again")


def test_a_direct_irop_is_not_in_the_registry() -> None:
    """It has a torch op of its own all the same."""
    op = ir.IrOp("t_direct", scale)
    assert "t_direct" not in ir.registry and torch.equal(op(X), X * 2) and torch.equal(op.torch_op(X), X * 2)
    op.close()


@pytest.mark.parametrize("bad", ["schema", "predicate", "inplace", "name", "strict"])
def test_a_refused_provider_leaves_no_trace(bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the table nor in the journal."""
    op = ir.register_op(scale, name="t_refused")
    entries = journal.entries()

    def wrong(x: torch.Tensor) -> torch.Tensor:
        return x

    def writes(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
        x.zero_()
        return x.clone()

    op.register_input_generator(lambda num_tokens=2, device=None, **_: (torch.ones(num_tokens, 4, device=device), 1.0))
    entries = journal.entries()
    if bad == "strict":
        monkeypatch.setenv("OPDOCK_STRICT", "1")
    attempts = {
        "schema": lambda: op.register_impl("p")(wrong),
        "predicate": lambda: op.register_impl("p", supports_args=lambda x: True)(scale),
        "inplace": lambda: op.register_impl("p", inplace=True)(scale),
        "name": lambda: op.register_impl("P")(scale),
        "strict": lambda: op.register_impl("p")(writes),
    }
    with pytest.raises(RegistrationError):
        attempts[bad]()
    assert set(op.impls) == {"native"} and journal.entries() == entries


def test_registration_knows_the_line_of_its_decorator_and_its_owner() -> None:
    """For messages and the report."""
    with journal.transaction(journal.Owner("opdock-x", "2.0", "x")):
        op = ir.register_op(scale, name="t_where")

        @op.register_impl("p")  # this line
        def p(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
            return x

    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "# this " + "line" in text)
    assert (p.site.file, p.site.line) == (__file__, line) and "opdock-x 2.0" in p.where()
    with pytest.raises(DuplicateError, match=rf"{__file__}:{line}  opdock-x 2.0"):
        op.register_impl("p")(lambda x, by=2.0: x)


def test_one_function_can_serve_two_ops() -> None:
    """What register_impl returns can be registered again."""
    a, b = ir.register_op(scale, name="t_one"), ir.register_op(_copy_of_scale(), name="t_two")
    impl = b.register_impl("p")(a.register_impl("p")(scale))
    assert impl.op is b.op and impl.impl_fn is scale and a.impls["p"] is not impl


def _copy_of_scale() -> Any:
    def scale_too(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
        return x * by

    return scale_too


MODULE = """
from __future__ import annotations
import torch
from opdock import ir

@ir.register_op({options})
def t_module(x: torch.Tensor{parameter}) -> torch.Tensor:
    return x * {factor}

@t_module.register_impl("p")
def p(x: torch.Tensor{parameter}) -> torch.Tensor:
    return x * {factor} * 10
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that writes the module and loads or reloads it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(head: str = "", factor: int = 2, parameter: str = "", options: str = "") -> ModuleType:
        text = head + MODULE.format(factor=factor, parameter=parameter, options=options)
        (tmp_path / "t_reloaded_module.py").write_text(text)
        loaded = sys.modules.get("t_reloaded_module")
        return importlib.reload(loaded) if loaded else importlib.import_module("t_reloaded_module")

    yield load
    sys.modules.pop("t_reloaded_module", None)


def test_b27_a_reloaded_module_replaces_its_definitions_in_place(module: Any) -> None:
    """Whoever holds the public function calls the new body; lines may have moved."""
    held = module(factor=2).t_module
    held.set_default(["p"])
    assert torch.equal(held(X), X * 20) and torch.equal(ir.native.t_module(X), X * 2)
    again = module(head="# another line\n", factor=3)
    assert again.t_module is held and ir.ops.t_module is held
    assert torch.equal(held(X), X * 30) and torch.equal(ir.native.t_module(X), X * 3)
    assert torch.equal(held.torch_op(X), X * 30)
    with held.set_priority(["native"]):
        assert torch.equal(held(X), X * 3)


def test_b27_a_module_reloaded_with_another_schema_makes_a_new_op(module: Any) -> None:
    """The old one is taken back."""
    held = module().t_module
    made = module(parameter=", k: int = 0").t_module
    assert made is not held and ir.ops.t_module is made and torch.equal(made(X, k=3), X * 2)
    assert set(made.impls) == {"native", "p"}


def test_compiled_code_of_a_reloaded_provider_is_made_anew(module: Any) -> None:
    """The key of the plan marks the second implementation of a name."""
    held = module().t_module
    held.set_default(["p"])
    before = held.op.current().key
    module(factor=3)
    assert held.op.current().key != before


def test_two_functions_of_one_name_in_one_module_are_no_reload() -> None:
    """The second is a mistake, not a newer version."""
    source = MODULE.format(factor=1, parameter="", options="").replace("from __future__ import annotations", "")
    with pytest.raises(DuplicateError, match="'t_module' is already registered"):
        exec(compile(source * 2, "t_twice.py", "exec"), {"__name__": "t_twice"})


def test_closures_with_other_values_are_duplicates() -> None:
    """The same lines, another provider."""
    op = ir.register_op(scale, name="t_closures")

    def make(factor: float) -> Any:
        def made(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
            return x * factor

        return made

    op.register_impl("p")(make(1.0))
    with pytest.raises(DuplicateError):
        op.register_impl("p")(make(2.0))


def test_b44_the_words_that_differ_are_shown() -> None:
    """One line for each difference."""
    op = ir.register_op(scale, name="t_words")

    def p(x: torch.Tensor, by: int = 2, more: bool = False) -> torch.Tensor:
        return x

    with pytest.raises(SchemaMismatchError) as caught:
        op.register_impl("p")(p)
    assert "native has 'float by=2.' where p has 'int by=2 bool more=False'" in str(caught.value)


def test_b44_type_checking_imports_and_closures_are_resolved() -> None:
    """Tensor is torch's where nothing else is called so."""
    op = ir.register_op(scale, name="t_lint")
    source = textwrap.dedent(
        """
        from __future__ import annotations
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from torch import Tensor
        def hook(op):
            Half = float
            @op.register_impl("p")
            def p(x: Tensor, by: Half = 2.0) -> Tensor:
                return x
        """
    )
    names: dict[str, Any] = {"__name__": "t_lint_module"}
    exec(source, names)
    names["hook"](op)
    assert "p" in op.impls


@pytest.mark.parametrize("source", ["def f(x: torch.Tensor): return x", "def f(x: torch.Tensor, *a: int) -> int: ...",
                                    "f = 3", "f = torch.add", "def f(n: int) -> int: ..."])  # fmt: skip
def test_definitions_that_are_no_op_are_refused_in_words(source: str) -> None:
    """No result type, variadic, not a function, no tensor."""
    names: dict[str, Any] = {"torch": torch}
    exec(source, names)
    with pytest.raises(RegistrationError) as caught:
        ir.register_op(names["f"], name="t_no_op")
    assert "t_no_op" in str(caught.value) and "Remedy:" in str(caught.value)
    assert "t_no_op" not in ir.registry and not hasattr(torch.ops.opdock_ir, "t_no_op")


def test_the_hosts_ops_belong_to_no_plugin_that_imports_them_first() -> None:
    """A hook that fails does not take rms_norm with it."""
    code = """
        from opdock import journal
        try:
            with journal.transaction(journal.Owner("opdock-x", "1", "x")):
                from opdock.ir.ops import rms_norm
                from opdock import ir
                ir.ops.silu_and_mul
                raise ValueError
        except ValueError:
            pass
        import torch
        print(sorted(ir.registry)[-1], rms_norm.impls["native"].owner, rms_norm(torch.ones(1, 2), None, 0.0).tolist())
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "static_scaled_fp8_quant None [[1.0, 1.0]]"


def test_unknown_ops_have_near_matches() -> None:
    """As attributes of both namespaces."""
    for namespace in (ir.ops, ir.native):
        with pytest.raises(AttributeError, match="Did you mean 'rms_norm'"):
            _ = namespace.rms_nrom
