"""Making fake tensors of known geometry, without running an op for each."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily

Bases = dict[int, torch.Tensor]
"""For each storage of a traced body, a tensor on the meta device in the storage that takes its place."""


def mode_of(values: Any) -> FakeTensorMode | None:
    """Return the mode of the first fake tensor among ``values``."""
    return next((v.fake_mode for v in values if isinstance(v, FakeTensor)), None)


def base_of(value: FakeTensor) -> torch.Tensor:
    """Return a tensor on the meta device in the storage of ``value``."""
    return _in_storage(value.untyped_storage(), value.dtype)


def like(value: Any, bases: Bases) -> Any:
    """Return ``value`` with its tensors in other storages: those of ``bases``, and new ones that are put there."""
    if isinstance(value, tuple | list):
        return type(value)(like(v, bases) for v in value)
    if not isinstance(value, FakeTensor):
        return value
    storage = value.untyped_storage()
    base = bases.get(storage._cdata)
    if base is None:
        count = storage.nbytes() // value.itemsize
        with unset_fake_temporarily():
            base = bases[storage._cdata] = torch.empty((count,), dtype=value.dtype, device="meta")
    return _on(base, value)


def moved(value: Any, storage: int | None, target: FakeTensor) -> Any:
    """Return ``value`` with the tensors that live in ``storage`` moved into the storage of ``target``."""
    if isinstance(value, tuple | list):
        return type(value)(moved(v, storage, target) for v in value)
    if not isinstance(value, FakeTensor) or value.untyped_storage()._cdata != storage:
        return value
    return _on(base_of(target), value)


def _on(base: torch.Tensor, value: FakeTensor) -> FakeTensor:
    if base.dtype != value.dtype:
        base = _in_storage(base.untyped_storage(), value.dtype)
    with unset_fake_temporarily():
        inner = torch.as_strided(base, value.size(), value.stride(), value.storage_offset())
    return FakeTensor(value.fake_mode, inner, value.device)


def _in_storage(storage: torch.UntypedStorage, dtype: torch.dtype) -> torch.Tensor:
    with unset_fake_temporarily():
        return torch.empty(0, dtype=dtype, device="meta").set_(storage, 0, (1,), (1,))
