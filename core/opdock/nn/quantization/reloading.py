"""The life of a layer's weights: made, filled, made ready, and all of it again when weights are reloaded.

A method that rewrites what checkpoints fill cannot be filled twice as it is. ``start_loading`` makes the parameters
anew; ``finish_loading`` makes them ready and writes the result into the tensors that are in use, so that captured
graphs go on with the new weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opdock.nn.quantization.method import weights_are_ready

if TYPE_CHECKING:
    import torch
    from torch import nn

_READY, _KEPT, _DEVICE = "_weights_ready", "_weights_in_use", "_weights_device"


def quantised_layers(model: nn.Module) -> list[nn.Module]:
    """Return the modules of ``model`` whose method rewrites weights."""
    found = []
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if method is not None and getattr(method, "rewrites_weights", True):
            found.append(module)
    return found


def start_loading(model: nn.Module) -> None:
    """Let every layer take a checkpoint's tensors, also one that was loaded before, or whose loading failed.

    Until ``finish_loading`` the model does not run.
    """
    for layer in quantised_layers(model):
        if _READY not in layer.__dict__:  # as it was built
            continue
        made = {name: p for name, p in layer._parameters.items() if p is not None and name != "bias"}
        kept = made if layer.__dict__[_READY] else layer.__dict__.get(_KEPT, {})
        device = next((p.device for p in (*made.values(), *kept.values())), layer.__dict__[_DEVICE])
        for name in made:
            del layer._parameters[name]
        layer.__dict__[_KEPT], layer.__dict__[_READY] = kept, False
        method: Any = layer.quant_method
        with device:
            method.create_weights(layer, **layer.weight_arguments())  # type: ignore[operator]


def finish_loading(model: nn.Module) -> None:
    """Make loaded weights ready; a second call does nothing.

    Raises: CheckpointError naming the layer if scales were not loaded.
    """
    for layer in quantised_layers(model):
        if layer.__dict__.get(_READY):
            continue
        method: Any = layer.quant_method
        # from here on what was built may be gone, also if the checkpoint's numbers are refused
        layer.__dict__[_READY] = False
        layer.__dict__[_DEVICE] = next((p.device for p in layer._parameters.values() if p is not None), None)
        method.process_weights_after_loading(layer)
        weights_are_ready(method)  # also if a subclass of another package did not say so
        for name, used in layer.__dict__.pop(_KEPT, {}).items():
            new = layer._parameters.get(name)
            if new is not None and (new.shape, new.dtype, new.device) == (used.shape, used.dtype, used.device):
                used.data.copy_(new.data)
                layer._parameters[name] = used
        layer.__dict__[_READY] = True


def is_ready(layer: nn.Module) -> bool:
    """Return whether a layer's weights are ready to be applied."""
    return bool(layer.__dict__.get(_READY)) or not getattr(layer.quant_method, "rewrites_weights", True)


def nbytes(model: nn.Module) -> int:
    """Return the bytes of the model's parameters, each counted once."""
    seen: dict[int, torch.Tensor] = {id(p): p for p in model.parameters()}
    return sum(p.numel() * p.itemsize for p in seen.values())
