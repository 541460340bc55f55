"""From the last hidden rows to logits."""

from __future__ import annotations

import torch

from opdock.nn.layers.vocab import ParallelLMHead
from opdock.registry import PluggableLayer


@PluggableLayer.register("logits_processor")
class LogitsProcessor(PluggableLayer):
    """logits = scale * cap * tanh(head(x) / cap), the cap only where it is given.

    Args:
        vocab_size: number of logits that are kept for each row.
        scale: multiplies the logits, no unit.
        soft_cap: bound of the absolute value of the logits before scaling, or None.
    """

    def __init__(self, vocab_size: int, scale: float = 1.0, soft_cap: float | None = None) -> None:
        """Keep the numbers."""
        super().__init__()
        self.vocab_size = vocab_size
        self.scale = scale
        self.soft_cap = soft_cap

    def forward(
        self, lm_head: ParallelLMHead, hidden_states: torch.Tensor, embedding_bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the logits, (rows, vocab_size), in the dtype of hidden_states.

        Args:
            lm_head: holds the weight.
            hidden_states: (rows, hidden).
            embedding_bias: added to the logits in place of the head's own bias.
        """
        logits: torch.Tensor = lm_head(hidden_states, embedding_bias)
        if logits.shape[-1] != self.vocab_size:  # a padded head
            logits = logits[..., : self.vocab_size]
        if self.soft_cap is not None:
            logits = torch.tanh(logits / self.soft_cap) * self.soft_cap
        return logits if self.scale == 1.0 else logits * self.scale

    def extra_repr(self) -> str:
        """Return what repr shows."""
        return f"vocab_size={self.vocab_size}, scale={self.scale}, soft_cap={self.soft_cap}"
