"""Compiling one op's native method on its own, where the configuration compiles."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from opdock import context
from opdock.errors import RegistrationError

DynamicDims: TypeAlias = Mapping[str, int | list[int]]


@dataclass(frozen=True)
class CompileSpec:
    """How a bound method is compiled; kept by the layer, so that a copy compiles its own method.

    Args:
        backend: of torch.compile.
        dims: argument name to the dimensions marked dynamic on every call, everything else being static; None
            makes every dimension dynamic.
    """

    backend: str
    dims: DynamicDims | None

    def apply(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``fn`` compiled; the result keeps ``fn`` and this specification as attributes."""
        options: dict[str, Any] = {"graph_partition": False} if self.backend == "inductor" else {}
        compiled = torch.compile(fn, dynamic=not self.dims, backend=self.backend, options=options)
        call = functools.wraps(fn)(self._marking(compiled, inspect.signature(fn)) if self.dims else compiled)
        call._compile_spec = self  # type: ignore[attr-defined]
        return call

    def _marking(self, compiled: Callable[..., Any], signature: inspect.Signature) -> Callable[..., Any]:
        dims = dict(self.dims or {})
        unknown = sorted(set(dims) - set(signature.parameters))
        if unknown:
            raise RegistrationError(
                f"dynamic_arg_dims names {', '.join(unknown)}, which the method does not take.",
                why=f"parameters: {signature}",
                remedy="use names of parameters of forward_native.",
            )

        def marked(*args: Any, **kwargs: Any) -> Any:
            arguments = signature.bind(*args, **kwargs).arguments
            for name, wanted in dims.items():
                value = arguments.get(name)
                if isinstance(value, torch.Tensor):
                    for dim in [wanted] if isinstance(wanted, int) else wanted:
                        torch._dynamo.mark_dynamic(value, dim % value.ndim)
            return compiled(*args, **kwargs)

        return marked


def maybe_compile(
    fn: Callable[..., Any], dims: DynamicDims | None = None, *, enable: bool = True
) -> Callable[..., Any]:
    """Return ``fn`` compiled by the platform's ``simple_compile_backend``, or ``fn`` itself.

    ``fn`` comes back as it is when ``enable`` is False, when the configuration does not compile, or when its
    backend is ``eager``.
    """
    config = context.get_current_config().compilation_config
    if not enable or not config.compiles or config.backend == "eager":
        return fn
    return CompileSpec(context.platform().simple_compile_backend, dims).apply(fn)
