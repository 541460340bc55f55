"""CustomOp: which method is bound, and that it stays the instance's own."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from opdock import ir
from opdock.config import CompilationConfig, KernelConfig, OpdockConfig
from opdock.errors import ConfigError, DuplicateError, OrderError, RegistrationError
from opdock.platforms import configure
from opdock.registry import CustomOp, op_registry
from opdock.registry.switches import default_on

Building = Callable[..., Any]


class Scale(CustomOp):
    """An op whose methods say their names through the factor."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.weight = torch.nn.Parameter(torch.ones(4), requires_grad=False)

    def forward_native(self, x: torch.Tensor, shift: float = 0.0) -> torch.Tensor:
        return x * self.weight + shift

    def forward_cuda(self, x: torch.Tensor, shift: float = 0.0) -> torch.Tensor:
        return x * self.weight * 2 + shift

    def forward_cpu(self, x: torch.Tensor, shift: float = 0.0) -> torch.Tensor:
        return x * self.weight * 3 + shift

    def forward_oot(self, x: torch.Tensor, shift: float = 0.0) -> torch.Tensor:
        return x * self.weight * 4 + shift


def factor(layer: CustomOp) -> float:
    return float(layer(torch.ones(4))[0])


@pytest.fixture
def scale() -> type[Scale]:
    """Return the class, registered as ``scale`` for one test."""
    return CustomOp.register("scale")(Scale)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("CUDA", 2), ("ROCM", 2), ("CPU", 3), ("TPU", 1), ("XPU", 1), ("OOT", 4), ("UNSPECIFIED", 1)],
)
def test_the_platform_decides_the_method(kind: str, expected: float, scale: type[Scale], building: Building) -> None:
    """The enum names the method; hip leads to cuda, the others to native."""
    with building("all", kind=kind):
        assert factor(scale()) == expected


@pytest.mark.parametrize(
    ("switches", "mode", "backend", "on"),
    [
        ([], 0, "inductor", True),
        ([], 1, "inductor", False),
        ([], 2, "inductor", False),
        ([], 3, "inductor", False),
        ([], 0, "eager", True),
        ([], 1, "eager", True),
        ([], 2, "eager", True),
        ([], 3, "eager", True),
        (["+scale"], 3, "inductor", True),
        (["-scale"], 0, "eager", False),
        (["none"], 0, "eager", False),
        (["none", "+scale"], 0, "eager", True),
        (["all", "-scale"], 3, "inductor", False),
        (["all"], 3, "inductor", True),
        (["+scale", "+scale"], 1, "inductor", True),
    ],
)
def test_b28_truth_table_of_switches(
    switches: list[str],
    mode: int,
    backend: str,
    on: bool,
    scale: type[Scale],
    building: Building,
) -> None:
    """Mode, backend and switches decide, one to one."""
    with building(*switches, mode=mode, backend=backend):
        assert scale.enabled() is on
        assert factor(scale()) == (3 if on else 1)


@pytest.mark.parametrize(
    ("switches", "message"),
    [
        (["all", "none"], "custom_ops can contain only one base mode: 'all' or 'none'"),
        (["all", "+scale", "all"], "custom_ops can contain only one base mode"),
        (["+scale", "-scale"], "cannot both enable and disable the same operation(s): scale. Remove either"),
        (["scale"], "Invalid syntax 'scale' for custom op, must be 'all', 'none', '+op' or '-op'"),
        (["+"], "Invalid syntax '+'"),
        (["-"], "Invalid syntax '-'"),
        (["all,-scale"], "Invalid syntax"),
    ],
)
def test_b28_contradictions_and_bad_syntax_are_refused(switches: list[str], message: str) -> None:
    """The texts are those that plugin authors know."""
    with pytest.raises(ConfigError) as caught:
        CompilationConfig(custom_ops=switches)
    assert message in str(caught.value)


def test_b28_a_typo_in_a_switch_is_refused_with_the_nearest_name(scale: type[Scale], building: Building) -> None:
    """Before any layer is built."""
    with pytest.raises(ConfigError, match=r"'\+scala'[\s\S]*Did you mean 'scale'\?"), building("+scala"):
        pytest.fail("the typo was accepted")


def test_b28_a_switch_of_an_op_that_never_came_is_refused_on_leaving(scale: type[Scale], building: Building) -> None:
    """A name that is close to none may come with the model; if it does not, it is an error."""
    with pytest.raises(ConfigError, match="no op class is called 'zzzz_unheard'"), building("+zzzz_unheard"):
        scale()


def test_contract_base_mode_must_be_one(scale: type[Scale]) -> None:
    """default_on without a base mode is an error with the known text."""
    with pytest.raises(ConfigError, match="exactly one base mode"):
        default_on(CompilationConfig())


def test_a_layer_before_its_configuration_is_an_error() -> None:
    """The message says what to do."""
    with pytest.raises(OrderError, match=r"Current opdock config is not set\.[\s\S]*Remedy: build the model inside"):
        Scale()


def test_a_layer_inside_a_forward_is_an_error(scale: type[Scale], building: Building) -> None:
    """Built for each token it would be bound for each token."""

    class Outer(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return scale()(x)

    with building("all"), pytest.raises(OrderError, match="Scale is built inside a forward"):
        Outer()(torch.ones(4))


def test_switches_cannot_change_once_in_use(scale: type[Scale], building: Building) -> None:
    """No two layers of one model are built under different switches."""
    with building("all") as config:
        scale()
        with pytest.raises(OrderError, match="The list of switches cannot change"):
            config.compilation_config.custom_ops.append("-scale")
        with pytest.raises(OrderError, match="cannot change"):
            config.compilation_config.custom_ops = ["none"]
        assert factor(scale()) == 3


def test_enforce_enable_binds_the_platform_method(scale: type[Scale], building: Building) -> None:
    """Whatever the switches say."""
    with building("none"):
        assert factor(scale(enforce_enable=True)) == 3


def test_b24_a_class_with_its_own_forward_is_refused() -> None:
    """At class creation, naming file and line and the way out."""
    with pytest.raises(RegistrationError, match=r"defines forward, which goes past the dispatch[\s\S]*forward_native"):

        class Past(CustomOp):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), None])
@pytest.mark.parametrize("compiled", [False, True])
def test_b30_a_copy_computes_with_its_own_weights(
    how: Callable[[Any], Any] | None,
    compiled: bool,
    scale: type[Scale],
    building: Building,
) -> None:
    """copy, deepcopy, pickle and torch.save, with a plain and with a compiled bound method."""
    switches = {"mode": 1, "backend": "inductor"} if compiled else {}
    with building("none", **switches) as config:
        config.platform.simple_compile_backend = "eager"
        layer = scale(compile_native=compiled)
    if how is None:
        buffer = io.BytesIO()
        torch.save(layer, buffer)
        buffer.seek(0)
        other = torch.load(buffer, weights_only=False)
    else:
        other = how(layer)
    shared = other.weight is layer.weight  # copy.copy shares tensors, as for every module
    other.weight.fill_(5)
    assert (factor(other), factor(layer)) == (5, 5 if shared else 1)
    assert other._forward_method.__wrapped__.__self__ is other if compiled else other.forward.__self__ is other
    assert other._bound == layer._bound


def test_duplicate_op_name_shows_both_places(scale: type[Scale]) -> None:
    """File and line of the first and of the second."""

    class Other(CustomOp):
        def forward_native(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with pytest.raises(DuplicateError, match=r"Duplicate op name: scale[\s\S]*registered at[\s\S]*again at"):
        CustomOp.register("scale")(Other)
    assert op_registry["scale"] is Scale


def test_b27_the_same_class_again_is_a_no_op(scale: type[Scale]) -> None:
    """Two engines in one process may both register."""
    assert CustomOp.register("scale")(Scale) is op_registry["scale"]


@pytest.mark.parametrize("name", ["Scale", "1scale", "sca-le", "", "scale\n"])
def test_bad_op_names_are_refused(name: str) -> None:
    """Lower-case letters, digits and underscores."""
    with pytest.raises(RegistrationError, match="is invalid"):
        CustomOp.register(name)(Scale)


def test_dynamic_dims_must_name_parameters(building: Building) -> None:
    """A misspelt argument is an error when the layer is built."""
    op = CustomOp.register("scale", dynamic_arg_dims={"y": 0})(Scale)
    with building("none", mode=1, backend="inductor"), pytest.raises(RegistrationError, match="names y"):
        op(compile_native=True)


def test_dynamic_dims_do_not_recompile_for_another_length(building: Building) -> None:
    """The listed dimension may change; one graph serves all lengths."""
    op = CustomOp.register("scale", dynamic_arg_dims={"x": 0})(Scale)
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    with building("none", mode=1, backend="inductor") as config:
        config.platform.simple_compile_backend = backend
        layer = op(compile_native=True)
    for tokens in (3, 5, 9):
        layer(torch.ones(tokens, 4))
    assert len(graphs) == 1


def test_symbolic_trace_of_the_layer_itself(scale: type[Scale], building: Building) -> None:
    """The class has a forward with the real parameters for tracers that read the code object."""
    with building("none"):
        graph = torch.fx.symbolic_trace(scale())
    assert [n.name for n in graph.graph.nodes if n.op == "placeholder"] == ["x", "shift"]


def test_explicit_minus_runs_ir_ops_native(building: Building) -> None:
    """-op takes every vendor out: its IR ops are the native definitions."""

    @CustomOp.register("silu_layer")
    class Silu(CustomOp):
        def forward_native(self, x: torch.Tensor) -> torch.Tensor:
            return self.ir.silu_and_mul(x)

    @ir.ops.silu_and_mul.register_impl("other")
    def other(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x[..., 1:])

    x = torch.ones(1, 2)
    for switch, zero in (("-silu_layer", False), ("none", True), ("all", True)):
        with building(switch):
            ir.ops.silu_and_mul.set_default(["other"])
            assert bool((Silu()(x) == 0).all()) is zero
    ir.ops.silu_and_mul.set_default(["native"])


def test_unregistered_class_follows_the_base_mode(building: Building, caplog: pytest.LogCaptureFixture) -> None:
    """With one warning."""

    class Loose(CustomOp):
        def forward_native(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with building("none"):
        Loose(), Loose()
        assert not Loose.enabled()
    assert sum("Custom op Loose was not registered" in r.getMessage() for r in caplog.records) == 1


def test_a_second_configuration_can_be_made(scale: type[Scale]) -> None:
    """Configurations do not share their counters."""
    first, second = OpdockConfig(), OpdockConfig()
    with configure.set_current_config(first):
        scale()
    assert first.compilation_config.enabled_custom_ops["scale"] == 1
    assert not second.compilation_config.enabled_custom_ops


def test_b24_a_mixin_that_brings_forward_is_refused() -> None:
    """The bound method stands on the instance: the mixin's forward would never be called."""

    class Fast:
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with pytest.raises(RegistrationError, match="takes forward from Fast"):
        type("Mixed", (Fast, Scale), {})


def test_b30_a_copy_binds_the_attribute_that_was_bound(building: Building) -> None:
    """``forward_cpu = forward_native`` is a function of another name; the copy runs what the original runs."""

    class Aliased(Scale):
        forward_cpu = Scale.forward_oot

        def forward_oot(self, x: torch.Tensor, shift: float = 0.0) -> torch.Tensor:
            return x * 100

    with building("all"):
        layer = Aliased()
    assert factor(layer) == factor(copy.deepcopy(layer)) == factor(copy.copy(layer)) == 4


def test_static_and_class_methods_can_be_native(building: Building) -> None:
    """Their first parameter is not the layer."""

    class Static(CustomOp):
        @staticmethod
        def forward_native(x: int) -> int:
            return x

    class OfClass(CustomOp):
        @classmethod
        def forward_native(cls, x: int) -> int:
            return x

    with building("all"):
        assert Static()(5) == OfClass()(5) == 5


def test_two_configurations_may_share_their_parts(scale: type[Scale]) -> None:
    """A given part is not changed under the other configuration that holds it."""
    kernels, compilation = KernelConfig(), CompilationConfig()
    for _ in range(2):
        with configure.set_current_config(OpdockConfig(compilation, kernels)) as config:
            assert factor(scale()) == 3
        assert config.kernel_config is not kernels and not kernels.ir_op_priority
