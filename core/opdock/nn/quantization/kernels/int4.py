"""4-bit weights on GPUs, unpacked in registers."""

from __future__ import annotations

import torch
from torch import nn

from opdock.nn.kernels import triton as kernels
from opdock.nn.quantization.kernels.base import LinearKernel
from opdock.nn.quantization.kernels.rows import dense
from opdock.nn.quantization.parameters import held, held_or_none, replace
from opdock.nn.quantization.spec import LinearSpec


def words_of(group: int, inputs: int) -> int:
    """Return how far apart the four inputs lie whose codes share a 16-bit word; 0 where the kernel cannot be used.

    The group itself where four whole groups fit into the row, so that each of a word's codes has a group of its own;
    otherwise so that all four lie in one group.
    """
    if group & (group - 1) == 0 and 16 <= group <= 128 and inputs % (4 * group) == 0:
        return group
    for words in (128, 64, 32, 16):
        if group % (4 * words) == 0:
            return words
    return 0


class TritonInt4Linear(LinearKernel):
    """The Triton kernel for few rows; for many, the weight as floats and torch's product."""

    backend = "triton"
    batch_invariant = True

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str]:
        """Return yes where Triton is usable, on NVIDIA from capability 8.0 on."""
        why = kernels.why_not()
        if why:
            return False, why
        if kernels.interpreted():
            return True, ""
        if compute_capability is None:
            return False, "no compute capability"
        return (True, "") if compute_capability >= 80 else (False, f"capability {compute_capability} is below 80")

    @classmethod
    def can_implement(cls, spec: LinearSpec) -> tuple[bool, str]:
        """Return yes for groups of 16 to 128, and for any multiple of 64."""
        if spec.kind != "mp":
            return False, "8-bit weights"
        if spec.act_dtype not in (torch.bfloat16, torch.float16):
            return False, f"{spec.act_dtype} activations"
        if not words_of(spec.group_size, spec.inputs):
            return False, f"groups of {spec.group_size} in {spec.inputs} inputs"
        return True, ""

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Put four codes into a word, and turn zero points into what they add to each weight."""
        words = words_of(self.spec.group_size, self.spec.inputs)
        scale, zero = held(layer, "weight_scale"), held_or_none(layer, "weight_zero")
        if zero is not None:
            replace(layer, "weight_shift", ((8.0 - zero.float()) * scale.float()).contiguous())
            replace(layer, "weight_zero", None)
        replace(layer, "weight_codes", kernels.pack_words(held(layer, "weight_codes").data, words))

    def apply_weights(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return y."""
        spec, order = self.spec, held_or_none(layer, "input_order")
        x = dense(x) if order is None else x[:, order]
        packed, scale, shift = self._weight(layer)
        words = words_of(spec.group_size, spec.inputs)
        return kernels.int4_linear(x, packed, scale, shift, bias, words, invariant=self.invariant)

    def _weight(self, layer: nn.Module) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        return held(layer, "weight_codes"), held(layer, "weight_scale"), held_or_none(layer, "weight_shift")

    def dequantize_weight(self, layer: nn.Module) -> torch.Tensor:
        """Return the weight as floats, its columns in the order of x."""
        words = words_of(self.spec.group_size, self.spec.inputs)
        floats = kernels.unpack_words(*self._weight(layer), words)
        order = held_or_none(layer, "input_order")
        if order is None:
            return floats
        back = torch.empty_like(floats)
        back[:, order] = floats
        return back
