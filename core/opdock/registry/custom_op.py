"""CustomOp: a layer with one method per platform, bound when the layer is built."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from opdock import context
from opdock.errors import RegistrationError
from opdock.journal import Site
from opdock.registry import switches
from opdock.registry.native_compile import CompileSpec, DynamicDims, maybe_compile
from opdock.registry.op_class import OpClass

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


def _default_body(method: F) -> F:
    """Mark a method whose body only leads on to another one."""
    method._default_body = True  # type: ignore[attr-defined]
    return method


class CustomOp(OpClass):
    """An op with ``forward_native`` and, where a platform has something better, ``forward_<platform>``.

    The method is chosen once, when the layer is built, from the platform and ``custom_ops``, and placed on the
    instance as ``forward``: a call costs what a plain module costs.

    Args:
        enforce_enable: bind the platform's method whatever the switches say.
        compile_native: compile ``forward_native`` where it is what runs and the configuration compiles.

    Raises: OrderError outside ``opdock.set_current_config()`` or inside a forward.
    """

    _dynamic_arg_dims: ClassVar[DynamicDims | None] = None
    _bound: tuple[str, CompileSpec | None]
    _forward_method: Callable[..., Any]

    def __init__(self, *, enforce_enable: bool = False, compile_native: bool = False) -> None:
        """Bind the method."""
        super().__init__()
        self._enforce_enable = enforce_enable
        self._compile_native = compile_native
        self._bind(self.dispatch_forward(compile_native=compile_native))

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a ``forward`` that goes past the dispatch; give tracers one with a real signature."""
        super().__init_subclass__(**kwargs)
        if "forward" in vars(cls):
            raise RegistrationError(
                f"{cls.__name__} defines forward, which goes past the dispatch: no forward_<platform> would run.",
                who=f"class {cls.__module__}.{cls.__qualname__}  {Site.of(vars(cls)['forward'])}",
                remedy="rename it to forward_native (or forward_oot, forward_cuda, ...).",
            )
        before = cls.__mro__[: cls.__mro__.index(CustomOp)]
        mixin = next((c for c in before if not issubclass(c, CustomOp) and "forward" in vars(c)), None)
        if mixin is not None:
            raise RegistrationError(
                f"{cls.__name__} takes forward from {mixin.__name__}: the dispatch would never call it.",
                who=f"class {cls.__module__}.{cls.__qualname__}",
                why=f"{mixin.__module__}.{mixin.__qualname__} comes before CustomOp  {Site.of(vars(mixin)['forward'])}",
                remedy=f"rename {mixin.__name__}.forward to forward_native (or forward_oot, forward_cuda, ...).",
            )
        if "forward_native" in vars(cls):
            cls.forward = _with_signature_of(vars(cls)["forward_native"])  # type: ignore[method-assign]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the bound method; an instance holds it in place of this one."""
        return self._forward_method(*args, **kwargs)

    def forward_native(self, *args: Any, **kwargs: Any) -> Any:
        """Run on any device, from PyTorch and IR ops alone."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward_native.")

    @_default_body
    def forward_cuda(self, *args: Any, **kwargs: Any) -> Any:
        """Run on NVIDIA GPUs."""
        return self.forward_native(*args, **kwargs)

    @_default_body
    def forward_hip(self, *args: Any, **kwargs: Any) -> Any:
        """Run on AMD GPUs."""
        return self.forward_cuda(*args, **kwargs)

    @_default_body
    def forward_cpu(self, *args: Any, **kwargs: Any) -> Any:
        """Run on CPUs."""
        return self.forward_native(*args, **kwargs)

    @_default_body
    def forward_tpu(self, *args: Any, **kwargs: Any) -> Any:
        """Run on TPUs."""
        return self.forward_native(*args, **kwargs)

    @_default_body
    def forward_xpu(self, *args: Any, **kwargs: Any) -> Any:
        """Run on Intel GPUs."""
        return self.forward_native(*args, **kwargs)

    @_default_body
    def forward_oot(self, *args: Any, **kwargs: Any) -> Any:
        """Run on the device of an out-of-tree platform."""
        return self.forward_native(*args, **kwargs)

    def dispatch_forward(self, *, compile_native: bool = False) -> Callable[..., Any]:
        """Return the method to bind, by the platform and the switches, following default bodies."""
        config = context.get_current_config()
        switch = config.compilation_config
        enabled = self._enforce_enable or self.enabled()
        label = getattr(self, "name", type(self).__name__)
        (switch.enabled_custom_ops if enabled else switch.disabled_custom_ops).update([label])
        method = switches.method_of(context.platform()) if enabled else "forward_native"
        method, _ = switches.definer(type(self), method, context.platform())
        self.__dict__["_method"] = method
        compiled = method == "forward_native" and compile_native and not enabled
        return self.maybe_compile(getattr(self, method), enable=compiled)

    def maybe_compile(self, fn: Callable[..., Any], *, enable: bool = True) -> Callable[..., Any]:
        """Return ``fn``, compiled with the platform's simple backend where the configuration compiles."""
        return maybe_compile(fn, self._dynamic_arg_dims, enable=enable)

    @classmethod
    def enabled(cls) -> bool:
        """Return whether instances bind their platform's method under the current configuration."""
        return switches.is_enabled(cls, context.get_current_config().compilation_config)

    @staticmethod
    def default_on() -> bool:
        """Return whether the current base mode is ``all``."""
        return switches.default_on(context.get_current_config().compilation_config)

    @classmethod
    def register(cls, name: str, dynamic_arg_dims: DynamicDims | None = None) -> Callable[[C], C]:
        """Return a decorator that registers a CustomOp under the op name ``name``.

        Args:
            name: the name in ``op_registry`` and in ``+name`` and ``-name``.
            dynamic_arg_dims: for ``maybe_compile``: argument name to the dimensions (from 0; negative from the
                end) whose size may change without a recompile.
        """
        base = super().register(name)

        def decorate(op_cls: C) -> C:
            base(op_cls)
            op_cls._dynamic_arg_dims = dynamic_arg_dims  # type: ignore[attr-defined]
            return op_cls

        return decorate

    def _bind(self, forward: Callable[..., Any]) -> None:
        spec: CompileSpec | None = getattr(forward, "_compile_spec", None)
        # the attribute, which the function's own name need not be: forward_cpu = forward_native, a plain decorator
        name = self.__dict__.get("_method") or forward.__name__
        self.__dict__["_bound"] = (name, spec)
        self.__dict__["_forward_method"] = self.__dict__["forward"] = forward

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the bound method, which belongs to this instance alone."""
        state = super().__getstate__()
        state.pop("forward", None)
        state.pop("_forward_method", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the state over and bind the method of the same name to this instance."""
        super().__setstate__(state)
        name, spec = self._bound
        method = getattr(self, name)
        self._bind(spec.apply(method) if spec else method)


def _with_signature_of(native: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``forward`` with ``native``'s parameters: fx reads them from the code object."""
    if not inspect.isfunction(native):  # a static or class method, or an object
        return CustomOp.forward
    parameters = list(inspect.signature(native).parameters.values())
    if not parameters or any(p.kind is not p.POSITIONAL_OR_KEYWORD for p in parameters):
        return CustomOp.forward
    env: dict[str, Any] = {f"_{p.name}": p.default for p in parameters if p.default is not p.empty}
    heads = [f"{p.name}=_{p.name}" if f"_{p.name}" in env else p.name for p in parameters]
    names = [p.name for p in parameters]
    exec(  # noqa: S102 - built from parameter names alone
        f"def forward({', '.join(heads)}):\n    return {names[0]}._forward_method({', '.join(names[1:])})\n",
        env,
    )
    forward: Callable[..., Any] = env["forward"]
    forward.__doc__, forward.__module__ = CustomOp.forward.__doc__, native.__module__
    return forward
