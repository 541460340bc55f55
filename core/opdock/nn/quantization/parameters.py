"""Parameters that checkpoints of quantised layers fill, and how the parts of a fused layer lie in them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from opdock.errors import CheckpointError


@dataclass(frozen=True)
class Parts:
    """Where the parts of a fused layer lie in a parameter.

    Args:
        dim: the dimension of the outputs.
        per: outputs for each index of that dimension: 8 where eight 4-bit codes share a word, 128 for blocks; 0:
            one row for each part, however many outputs it has.
    """

    dim: int = 0
    per: int = 1


def add(layer: nn.Module, name: str, shape: tuple[int, ...], dtype: torch.dtype, parts: Parts, **attrs: Any) -> None:
    """Give ``layer`` a parameter; a floating-point one is NaN until a checkpoint fills it, so that a lack shows.

    Args:
        layer: mutated.
        name: of the parameter, as checkpoints have it.
        shape: of the parameter.
        dtype: of the parameter.
        parts: see Parts.
        attrs: become attributes of the parameter, ``weight_loader`` among them.
    """
    data = torch.empty(shape, dtype=dtype)
    if dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        data.fill_(float("nan"))
    parameter = nn.Parameter(data, requires_grad=False)
    parameter.parts = parts  # type: ignore[attr-defined]
    for key, value in attrs.items():
        setattr(parameter, key, value)
    layer.register_parameter(name, parameter)


def parts_in(param: torch.Tensor) -> Parts:
    """Return where the parts of a fused layer lie in a parameter.

    A method of another package says it with attributes of the parameter: ``output_dim``, the dimension of the outputs
    (0 without it); ``packed_dim``, the one along which ``packed_factor`` numbers share an element;
    ``needs_scalar_to_array``: one row for each part.
    """
    own = getattr(param, "parts", None)
    if isinstance(own, Parts):
        return own
    if getattr(param, "needs_scalar_to_array", False):
        return Parts(0, 0)
    dim = getattr(param, "output_dim", None) or 0
    factor = getattr(param, "packed_factor", getattr(param, "pack_factor", 1))
    return Parts(dim, int(factor) if getattr(param, "packed_dim", None) == dim else 1)


def part_of(param: torch.Tensor, index: int, first: int, count: int, where: str) -> torch.Tensor:
    """Return the view of a parameter that one part of a fused layer fills.

    Args:
        param: the parameter.
        index: number of the part.
        first: its first output.
        count: its number of outputs.
        where: the layer and part, for messages.

    Raises: CheckpointError if the part does not begin and end with a word or block.
    """
    parts = parts_in(param)
    if parts.per == 0:
        return param.data[index]
    end = -(-(first + count) // parts.per)
    if parts.dim >= param.dim() or end > param.shape[parts.dim]:
        raise CheckpointError(
            f"{where} does not lie in its parameter.",
            who=where,
            why=[
                f"the parameter  {tuple(param.shape)}, outputs along dimension {parts.dim}, {parts.per} in a number",
                f"the part       outputs {first} to {first + count - 1}",
            ],
            remedy="let create_weights give it output_dim, and packed_dim and packed_factor if it is packed.",
        )
    if first % parts.per or (count % parts.per and end < param.shape[parts.dim]):
        raise CheckpointError(
            f"{where} does not begin and end with a whole word or block of {parts.per} outputs.",
            who=where,
            why=f"its outputs are {first} to {first + count - 1}",
            remedy="quantise the model with blocks that divide the sizes of its layers.",
        )
    return param.data.narrow(parts.dim, first // parts.per, -(-count // parts.per))


def whole_of(param: torch.Tensor) -> torch.Tensor:
    """Return the view of a parameter that one tensor of a checkpoint fills: its only row where each part has one."""
    one_row = parts_in(param).per == 0 and param.shape[0] == 1
    return param.data[0] if one_row else param.data


def require_filled(layer: nn.Module, names: tuple[str, ...], where: str, *, positive: tuple[str, ...] = ()) -> None:
    """Check that a checkpoint filled the floating-point parameters ``names`` with finite numbers.

    Args:
        layer: that holds them; a name that it lacks is left out.
        names: of parameters.
        where: the layer, for messages.
        positive: those of them that x is divided by.

    Raises: CheckpointError naming the layer and each parameter that is not so.
    """
    lacking, why = [], []
    for name in names:
        tensor = getattr(layer, name, None)
        if tensor is None or not tensor.is_floating_point() or is_fake(tensor) or tensor.itemsize == 1:
            continue
        data = tensor.data
        if bool(data.isnan().any()):
            lacking.append(name)
            why.append(f"{name}: {int(data.isnan().sum())} of {data.numel()} are NaN, or were never filled")
        elif bool(data.isinf().any()):
            why.append(f"{name}: {int(data.isinf().sum())} of {data.numel()} are infinite as {data.dtype}")
        elif name in positive and not bool((data > 0).all()):
            why.append(f"{name}: {float(data.min())}, and a scale of activations is more than 0")
    if why:
        raise CheckpointError(
            f"The checkpoint has no {' and no '.join(lacking)} for {where}, or it holds NaN."
            if lacking
            else f"The checkpoint has numbers for {where} that are none to multiply with.",
            who=where,
            why=why,
            remedy="download the checkpoint again, or quantise the model again: the scales belong to the weights.",
        )


@contextlib.contextmanager
def without_data() -> Iterator[None]:
    """Make uninitialised weights ready inside: what they hold is not looked at."""
    token = _no_data.set(True)
    try:
        yield
    finally:
        _no_data.reset(token)


_no_data: ContextVar[bool] = ContextVar("opdock.weights_without_data", default=False)


def is_fake(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has no data to look at."""
    return tensor.is_meta or _no_data.get() or torch._C._len_torch_dispatch_stack() > 0


def held(layer: nn.Module, name: str) -> torch.Tensor:
    """Return a parameter of a layer, past nn.Module's own lookup."""
    return layer._parameters[name]  # type: ignore[return-value]


def held_or_none(layer: nn.Module, name: str) -> torch.Tensor | None:
    """Return a parameter of a layer, None if it has none of that name."""
    return layer._parameters.get(name)


def replace(layer: nn.Module, name: str, data: torch.Tensor | None) -> None:
    """Put ``data`` in the place of a parameter; None takes the parameter out."""
    layer._parameters.pop(name, None)
    if data is not None:
        layer.register_parameter(name, nn.Parameter(data, requires_grad=False))
