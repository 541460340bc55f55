"""The key over a provider's source, and the checks of OPDOCK_STRICT."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from opdock import ir
from opdock.errors import RegistrationError


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write a package whose provider imports a helper, which imports another."""
    root = tmp_path / "keypkg"
    root.mkdir()
    (root / "__init__.py").write_text("")
    (root / "deep.py").write_text("K = 1\n")
    (root / "helper.py").write_text("from . import deep\ndef k(x):\n    return x * deep.K\n")
    (root / "unrelated.py").write_text("A = 1\n")
    (root / "prov.py").write_text(
        "import torch\nfrom keypkg import helper\n"
        "def p(x: torch.Tensor) -> torch.Tensor:\n    return helper.k(x[..., 1:])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield root
    for name in [n for n in sys.modules if n.startswith("keypkg")]:
        del sys.modules[name]


def test_b39_helper_edit_changes_the_key_and_nothing_else_does(package: Path) -> None:
    """Transitively within the package; an unrelated file and more registrations do not count."""
    impl = ir.ops.silu_and_mul.register_impl("keyed")(importlib.import_module("keypkg.prov").p)
    first = impl.uuid()
    assert first == impl.uuid()
    (package / "unrelated.py").write_text("A = 2\n")
    ir.ops.gelu_and_mul.register_impl("more")(_gelu)
    assert impl.uuid() == first
    for name in ("helper.py", "deep.py", "prov.py"):
        text = (package / name).read_text()
        (package / name).write_text(text + "# an edit\n")
        assert impl.uuid() != first, name
        (package / name).write_text(text)
        assert impl.uuid() == first, name


def _gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    return x


def test_natives_have_keys_that_differ() -> None:
    """Each op its own."""
    keys = [op.impls["native"].uuid() for op in ir.registry.values()]
    assert len(set(keys)) == len(keys)


def item(x: torch.Tensor) -> bool:
    return x.sum().item() > 0


def truth(x: torch.Tensor) -> bool:
    return bool((x > 0).any())


def address(x: torch.Tensor) -> bool:
    return x.data_ptr() % 16 == 0


@pytest.mark.parametrize("predicate", [item, truth, address])
def test_b32_predicates_that_read_data_or_addresses_are_refused_when_strict(
    predicate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a fake tensor an address is 0, so it would always say aligned."""
    monkeypatch.setenv("OPDOCK_STRICT", "1")
    with pytest.raises(RegistrationError, match=f"supports_args of provider p reads[\\s\\S]*{__file__}"):
        ir.ops.silu_and_mul.register_impl("p", supports_args=predicate)(_half)
    assert "p" not in ir.ops.silu_and_mul.impls


def _half(x: torch.Tensor) -> torch.Tensor:
    return x[..., : x.shape[-1] // 2].clone()


def test_b32_predicates_by_metadata_pass_when_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """dtype, shape, strides, offset and device may be read."""
    monkeypatch.setenv("OPDOCK_STRICT", "1")

    def fine(x: torch.Tensor) -> bool:
        return x.dtype == torch.float32 and x.is_contiguous() and x.storage_offset() == 0 and x.shape[-1] % 2 == 0

    ir.ops.silu_and_mul.register_impl("p", supports_args=fine)(_half)
    assert "p" in ir.ops.silu_and_mul.impls


def test_b41_undeclared_write_is_refused_when_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider is run once on clones, and every input is compared."""
    monkeypatch.setenv("OPDOCK_STRICT", "1")

    def writes(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2)[..., 1:]

    with pytest.raises(RegistrationError, match="writes x, which it does not declare"):
        ir.ops.silu_and_mul.register_impl("p")(writes)
