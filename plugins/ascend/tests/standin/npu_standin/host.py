"""CPU kernels on the stand-in device's memory, which is the host's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

DEVICE = "npu"


def host(x: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor over the memory of ``x``: a write into one is seen in the other."""
    storage = x.untyped_storage()
    size = storage.nbytes()
    made = torch.empty(0, dtype=x.dtype)
    if size == 0:
        return made.as_strided(x.shape, x.stride()) if x.numel() == 0 else made
    memory = (ctypes.c_byte * size).from_address(storage.data_ptr())
    view = torch.frombuffer(memory, dtype=torch.uint8)
    return made.set_(view.untyped_storage(), x.storage_offset(), x.shape, x.stride())


def to_host(value: Any) -> Any:
    """Replace what is of the device by what is of the CPU."""
    if isinstance(value, torch.Tensor):
        return host(value) if value.device.type == DEVICE else value
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == DEVICE else value
    if isinstance(value, torch.Generator):
        return torch.default_generator if value.device.type == DEVICE else value
    return value


def to_device(value: Any, device: torch.device) -> Any:
    """Replace a CPU tensor by one of the device with its strides and contents."""
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
    if value.numel():
        host(made).copy_(value)
    return made


def device_of(values: list[Any]) -> torch.device:
    """Return the device that a call is about: of its first tensor, or the one that it names."""
    for value in values:
        if isinstance(value, torch.Tensor) and value.device.type == DEVICE:
            return value.device
    for value in values:
        if isinstance(value, torch.device) and value.type == DEVICE:
            return value
    return torch.device(DEVICE, torch.npu.current_device())


def on_host(op: Any, run: Callable[..., Any], check: Callable[..., None] | None = None) -> Callable[..., Any]:
    """Return a kernel for the device that runs ``run`` on CPU tensors over the same memory.

    Args:
        op: the overload of torch.ops that it is a kernel of; its schema says what is written.
        run: takes and returns CPU tensors.
        check: looks at the arguments first.
    """
    written = [argument for argument in op._schema.arguments if argument.alias_info and argument.alias_info.is_write]
    names = [argument.name for argument in op._schema.arguments]
    returned = [r.alias_info is not None and r.alias_info.is_write for r in op._schema.returns]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if check is not None:
            check(args, kwargs)
        flat = pytree.tree_leaves((args, kwargs))
        device = device_of(flat)
        wanted = kwargs.get("device")
        leaves = wanted is not None and torch.device(wanted).type != DEVICE  # x.cpu(), and what else goes elsewhere
        cpu_args, cpu_kwargs = pytree.tree_map(to_host, (args, kwargs))
        result = run(*cpu_args, **cpu_kwargs)
        given = _bound(names, args, kwargs)
        on_cpu = _bound(names, cpu_args, cpu_kwargs)
        for argument in written:
            pairs = zip(_tensors(given.get(argument.name)), _tensors(on_cpu.get(argument.name)), strict=True)
            for mine, theirs in pairs:
                _grow(mine, theirs)
        if not returned:
            return None
        if any(returned):
            out = [given[argument.name] for argument in written]
            return out[0] if len(out) == 1 else tuple(out)
        return result if leaves else pytree.tree_map(lambda value: to_device(value, device), result)

    return kernel


def refuse_mixed(op: Any) -> Callable[..., None]:
    """Return a function that raises RuntimeError where an op of aten gets tensors of both devices, as on a real NPU.

    A CPU tensor without dimensions is a number, and indices may lie on the CPU.
    """
    name = op._schema.name.partition("::")[2]
    if "copy" in name or name.startswith(("index", "_index", "_unsafe_index", "lift")):
        return lambda args, kwargs: None

    def refuse(args: Any, kwargs: Any) -> None:
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        strays = [x for x in tensors if x.device.type == "cpu" and x.ndim]
        if strays and any(x.device.type == DEVICE for x in tensors):
            raise RuntimeError(f"Expected all tensors to be on the same device, {name} got {DEVICE} and cpu")

    return refuse


def _bound(names: list[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _grow(mine: torch.Tensor, theirs: torch.Tensor) -> None:
    """Give an output that was resized on the CPU its new size on the device too."""
    if mine.device.type != DEVICE or mine.shape == theirs.shape:
        return
    mine.resize_(theirs.shape)
    host(mine).copy_(theirs)
