"""Compiling a whole model as the configuration says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opdock import context
from opdock.compile.available import say_eager, why_switched_off
from opdock.config import CompilationMode

if TYPE_CHECKING:
    from torch import nn


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
        say_eager(reason)
        return
    whole = config.mode is not CompilationMode.STOCK_TORCH_COMPILE
    model.compile(backend=config.backend, fullgraph=whole)
