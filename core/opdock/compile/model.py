"""Compiling a whole model as the configuration says."""

from __future__ import annotations

import logging

import torch
from torch import nn

from opdock import context
from opdock.config import CompilationMode

logger = logging.getLogger("opdock")


def compile_model(model: nn.Module) -> None:
    """Compile a model in place, as the configuration in force says: its calls run compiled code from now on.

    Nothing happens if the configuration does not compile, and, with a line in the log, where ``torch.compile`` is
    switched off. The stock mode may break the graph; the others raise where it would.

    Raises: OrderError outside ``opdock.set_current_config()``.
    """
    config = context.get_current_config().compilation_config
    if not config.compiles:
        return
    reason = why_switched_off()
    if reason:
        logger.warning("The model runs eagerly: %s", reason)
        return
    whole = config.mode is not CompilationMode.STOCK_TORCH_COMPILE
    model.compile(backend=config.backend, fullgraph=whole)


def why_switched_off() -> str:
    """Return why ``torch.compile`` does nothing in this process, "" if it works."""
    if torch._dynamo.config.disable:
        return "TORCH_COMPILE_DISABLE=1 switches torch.compile off."
    return ""
