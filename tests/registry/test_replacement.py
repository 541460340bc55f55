"""register_oot: what may replace what, and what is built then."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

from opdock.errors import DuplicateError, RegistrationError
from opdock.registry import CustomOp, PluggableLayer, choose_class, maybe_get_oot_by_class, op_registry_oot

Building = Callable[..., Any]
CLASSES: dict[str, Any] = {}


@pytest.fixture
def norm() -> type[CustomOp]:
    """Return an in-tree CustomOp, registered as ``demo_norm``."""

    @CustomOp.register("demo_norm")
    class DemoNorm(CustomOp):
        def forward_native(self, x: torch.Tensor) -> torch.Tensor:
            return x

    return DemoNorm


@pytest.fixture
def layer() -> type[PluggableLayer]:
    """Return an in-tree PluggableLayer, registered as ``demo_layer``."""

    @PluggableLayer.register("demo_layer")
    class DemoLayer(PluggableLayer):
        def __init__(self) -> None:
            super().__init__()
            self.made_by = "in-tree"

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    return DemoLayer


def vendor(base: Any) -> Any:
    """Return a replacement class of ``base`` with forward_oot."""

    class VendorNorm(base):
        def forward_oot(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    return VendorNorm


@pytest.mark.parametrize("form", ["bare", "called", "named"])
def test_the_three_forms_of_register_oot(form: str, norm: Any, building: Building) -> None:
    """Bare, with parentheses, and by the name of the in-tree class."""
    decorate = {
        "bare": norm.register_oot,
        "called": norm.register_oot(),
        "named": CustomOp.register_oot(name="DemoNorm"),
    }[form]
    cls = decorate(vendor(norm))
    assert op_registry_oot["DemoNorm"] is cls is maybe_get_oot_by_class(norm)
    with building("all", kind="OOT"):
        built = norm()
    assert type(built) is cls
    assert built(torch.zeros(1)) == 1


def test_replacement_keeps_the_in_tree_switch_and_is_on_by_default(norm: Any, building: Building) -> None:
    """Also when the base mode is none; -demo_norm takes it out, and the in-tree class is built."""
    cls = norm.register_oot(vendor(norm))
    assert cls.name == "demo_norm"
    for switches, built, result in [
        (("none",), cls, 1),
        (("all",), cls, 1),
        (("none", "+demo_norm"), cls, 1),
        (("all", "-demo_norm"), norm, 0),
    ]:
        with building(*switches, kind="OOT"):
            made = norm()
        assert type(made) is built
        assert made(torch.zeros(1)) == result


def test_replacement_must_be_a_subclass(norm: Any) -> None:
    """Python would skip __init__ of anything else, and say nothing."""

    class Stranger(CustomOp):
        def forward_native(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with pytest.raises(RegistrationError, match="Stranger cannot replace DemoNorm: it is not a subclass"):
        norm.register_oot(Stranger)
    assert "DemoNorm" not in op_registry_oot


def test_dead_name_is_refused_with_the_nearest(norm: Any) -> None:
    """A registration that would never match is not accepted in silence."""
    with pytest.raises(
        RegistrationError,
        match=r"No op class is called 'DemoNrm'[\s\S]*Remedy: register_oot\(name='DemoNorm'\)",
    ):
        CustomOp.register_oot(name="DemoNrm")(vendor(norm))


def test_positional_name_is_refused_with_the_right_form(norm: Any) -> None:
    """The known text, and what to write."""
    with pytest.raises(TypeError, match=r"Decorator can only be applied to classes\.[\s\S]*name='DemoNorm'"):
        CustomOp.register_oot("DemoNorm")


def test_register_oot_on_the_base_class_is_refused(norm: Any) -> None:
    """CustomOp itself is nobody's op class."""
    with pytest.raises(RegistrationError, match="CustomOp is not a registered op class"):
        CustomOp.register_oot(vendor(norm))


def test_b18_a_second_replacement_is_an_error_with_both_places(norm: Any) -> None:
    """Never the last one."""
    norm.register_oot(vendor(norm))

    class Second(norm):
        def forward_oot(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with pytest.raises(DuplicateError, match=r"DemoNorm[\s\S]*registered at[\s\S]*again at"):
        norm.register_oot(Second)


def test_only_the_very_class_is_replaced(norm: Any, building: Building) -> None:
    """Not a subclass of it, and not another class of the same name."""
    cls = norm.register_oot(vendor(norm))

    class Special(norm):
        pass

    namesake = type("DemoNorm", (CustomOp,), {"forward_native": lambda self, x: x, "name": "other"})
    with building("all", kind="OOT"):
        assert type(Special()) is Special
        assert type(namesake()) is namesake
        assert type(norm()) is cls


def test_whole_layer_is_replaced_constructor_included(layer: Any, building: Building) -> None:
    """A PluggableLayer's replacement builds its own weights."""

    @layer.register_oot
    class VendorLayer(layer):
        def __init__(self) -> None:
            super().__init__()
            self.made_by = "vendor"

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    with building("none"):
        made = layer()
    assert (made.made_by, float(made(torch.ones(1)))) == ("vendor", 2)
    with building("-demo_layer"):
        assert layer().made_by == "in-tree"


def test_b25_forward_oot_on_a_pluggable_layer_is_reported(
    layer: Any, building: Building, caplog: pytest.LogCaptureFixture
) -> None:
    """It would never be called."""

    @layer.register_oot
    class Dead(layer):
        def forward_oot(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with caplog.at_level(logging.WARNING, "opdock"), building("none"):
        pass
    assert "Dead defines forward_oot, but DemoLayer is a PluggableLayer and has no dispatch" in caplog.text


def test_methods_that_the_platform_never_binds_are_reported(
    norm: Any, building: Building, caplog: pytest.LogCaptureFixture
) -> None:
    """forward_oot on the CPU platform is dead."""
    norm.register_oot(vendor(norm))
    with caplog.at_level(logging.WARNING, "opdock"), building("all", kind="CPU"):
        pass
    assert "VendorNorm defines forward_oot, but cpu binds forward_cpu" in caplog.text


def test_copy_of_an_in_tree_layer_is_in_tree_though_replaced_meanwhile(norm: Any, building: Building) -> None:
    """Copying builds what was built, not what would be built now."""
    with building("all", kind="OOT"):
        made = norm()
        norm.register_oot(vendor(norm))
        assert type(copy.deepcopy(made)) is norm


def test_choice_says_class_method_and_reason(norm: Any, building: Building) -> None:
    """What explain shows, as data."""
    cls = norm.register_oot(vendor(norm))
    with building("none", kind="OOT") as config:
        choice = choose_class(norm, config.compilation_config, config.platform)
        assert (choice.chosen, choice.method, choice.defined_in) == (cls, "forward_oot", cls)
        assert "a replacement is on unless -op" in choice.reason
    with building("-demo_norm", kind="OOT") as config:
        choice = choose_class(norm, config.compilation_config, config.platform)
        assert (choice.chosen, choice.method, choice.native_ir) == (norm, "forward_native", True)
        assert "-demo_norm takes VendorNorm out" in choice.reason


def test_a_replacement_may_be_replaced_in_turn(norm: Any, building: Building) -> None:
    """A package extends somebody else's platform: its class is built, not registered for nothing."""
    first = norm.register_oot(type("First", (norm,), {}))
    second = first.register_oot(type("Second", (first,), {}))
    with building():
        assert type(norm()) is type(first()) is second
