"""The two ends of a model: token ids to rows, and rows to one number for each token id."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from opdock.nn.layers.linear import copy_checked
from opdock.nn.layers.matmul import linear
from opdock.registry import PluggableLayer


@PluggableLayer.register("vocab_parallel_embedding")
class VocabParallelEmbedding(PluggableLayer):
    """Look the row of each token id up.

    Shapes: ids (...) int64; weight (num_embeddings, embedding_dim); returns (..., embedding_dim).

    Args:
        num_embeddings: number of token ids.
        embedding_dim: length of a row.
        params_dtype: of the weight; None takes torch's default.
        prefix: the layer's path in its model.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        params_dtype: torch.dtype | None = None,
        prefix: str = "",
    ) -> None:
        """Allocate the weight, uninitialised."""
        super().__init__()
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.prefix = prefix
        self.weight = nn.Parameter(torch.empty(num_embeddings, embedding_dim, dtype=params_dtype), requires_grad=False)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the rows."""
        return F.embedding(input_ids, self._parameters["weight"])  # type: ignore[arg-type]

    def weight_loader(self, param: nn.Parameter, loaded_weight: torch.Tensor) -> None:
        """Copy a checkpoint's tensor into ``param``; CheckpointError if the shapes differ."""
        copy_checked(param.data, loaded_weight, self.prefix)

    def extra_repr(self) -> str:
        """Return what repr shows."""
        return f"num_embeddings={self.num_embeddings}, embedding_dim={self.embedding_dim}"


@PluggableLayer.register("parallel_lm_head")
class ParallelLMHead(VocabParallelEmbedding):
    """The weight that LogitsProcessor multiplies the last rows by.

    Args:
        num_embeddings, embedding_dim, params_dtype, prefix: see VocabParallelEmbedding.
        bias: whether there is a bias, (num_embeddings,).
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        bias: bool = False,
        params_dtype: torch.dtype | None = None,
        prefix: str = "",
    ) -> None:
        """Allocate the weight and bias, uninitialised."""
        super().__init__(num_embeddings, embedding_dim, params_dtype, prefix)
        made = torch.empty(num_embeddings, dtype=params_dtype) if bias else None
        self.register_parameter("bias", None if made is None else nn.Parameter(made, requires_grad=False))

    def tie_weights(self, embed_tokens: VocabParallelEmbedding) -> ParallelLMHead:
        """Share the embedding's weight and return self."""
        self.weight = embed_tokens.weight
        return self

    def forward(self, hidden_states: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return hidden_states @ weight.T + bias; a ``bias`` that is given stands in for the head's own."""
        parameters = self._parameters
        if bias is None:
            bias = parameters["bias"]
        return linear(hidden_states, parameters["weight"], bias)  # type: ignore[arg-type]
