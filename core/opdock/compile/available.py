"""Whether Inductor can make code here, asked before it is tried."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch

from opdock import env

logger = logging.getLogger("opdock")
_said: set[str] = set()


def say_eager(reason: str) -> None:
    """Log, once for each reason, that models run eagerly."""
    if reason not in _said:
        _said.add(reason)
        logger.warning("Models run eagerly: %s", reason)


def why_switched_off() -> str:
    """Return why ``torch.compile`` does nothing in this process, "" if it works."""
    if torch._dynamo.config.disable:
        return "TORCH_COMPILE_DISABLE=1 switches torch.compile off."
    if env.torchdynamo_disabled():
        return "TORCHDYNAMO_DISABLE=1 switches torch.compile off."
    return ""


def why_not_inductor(example_inputs: Iterable[Any]) -> str:
    """Return why Inductor cannot compile for the devices of these inputs, "" if it can."""
    devices = {i.device.type for i in example_inputs if isinstance(i, torch.Tensor)} or {"cpu"}
    return next((reason for kind in sorted(devices) if (reason := _why_not_for(kind))), "")


def _why_not_for(device_type: str) -> str:
    from torch._inductor.codegen.common import get_scheduling_for_device, init_backend_registration

    init_backend_registration()
    if get_scheduling_for_device(device_type) is None:
        return f"Inductor makes no code for the device {device_type!r}."
    if device_type == "cpu":
        return _why_no_cpp()
    if device_type in ("cuda", "xpu"):
        return _why_no_triton()
    return ""


def _why_no_cpp() -> str:
    from torch._inductor import config, cpp_builder, exc

    if config.cpu_backend != "cpp":
        return ""
    try:
        cpp_builder.get_cpp_compiler()
    except (exc.InvalidCxxCompiler, RuntimeError) as err:
        return f"no C++ compiler works: {str(err).partition(chr(10))[0].rstrip('.')}. Install g++, or name one in CXX."
    return ""


def _why_no_triton() -> str:
    from torch.utils._triton import has_triton_package

    return "" if has_triton_package() else "Triton is not installed: pip install triton."
