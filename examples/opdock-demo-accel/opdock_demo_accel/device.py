"""The module ``torch.demo_accel``: what PyTorch looks up under a device's name, as in ``torch.cuda``.

``torch.accelerator`` asks the library for the current device, so nothing of that is bound twice.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from opdock_demo_accel.probe import LIBRARY

NAME = "demo_accel"


def load() -> None:
    """Load the library and give PyTorch's spare device, PrivateUse1, its name. Again is a no-op.

    Raises: OSError if the library was built for another PyTorch; RuntimeError if another package has taken
        PrivateUse1.
    """
    if hasattr(torch, NAME):
        return
    torch.utils.rename_privateuse1_backend(NAME)  # first: one such device fits into a process
    torch.ops.load_library(str(LIBRARY))
    import opdock_demo_accel.device as module

    torch._register_device_module(NAME, module)
    torch.utils.generate_methods_for_privateuse1_backend()  # tensor.demo_accel(), module.demo_accel()


def is_available() -> bool:
    """Return whether there is a device."""
    return device_count() > 0


def is_initialized() -> bool:
    """Return whether the driver has started, which the first tensor does."""
    return torch.ops.demo_accel.is_initialized()


def device_count() -> int:
    """Return the number of devices."""
    return torch.ops.demo_accel.device_count()


def current_device() -> int:
    """Return the index of this thread's device."""
    return torch.accelerator.current_device_index()


def set_device(device: Any) -> None:
    """Make ``device``, an index or a torch.device, this thread's device."""
    torch.accelerator.set_device_index(device)


def device(which: Any) -> AbstractContextManager[Any]:
    """Return a context in which ``which``, an index or a torch.device, is this thread's device."""
    return torch.accelerator.device_index(which if isinstance(which, int) else torch.device(which).index)


def synchronize(device: Any = None) -> None:
    """Wait until the device has done its work."""
    torch.accelerator.synchronize(device)


def manual_seed_all(seed: int) -> None:
    """Do nothing: random numbers are drawn by the host's generator, which torch.manual_seed seeds."""


def get_rng_state(device: Any = None) -> torch.Tensor:
    """Return the state of the generator that draws for the device: the host's."""
    return torch.get_rng_state()


def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
    """Set the state of the generator that draws for the device."""
    torch.set_rng_state(state)


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the dtypes of torch.autocast."""
    return [torch.bfloat16, torch.float16]


def _is_in_bad_fork() -> bool:
    """Return whether the device was initialised before a fork, which most drivers do not survive."""
    return False
