"""Which experts a token goes to, and with what weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from opdock.errors import ConfigError, suggest

SCORINGS = ("softmax", "sigmoid")
GROUP_SCORES = ("max", "top2")
_LEAST = 1e-20  # a sum of scores that all vanished is no divisor


@dataclass(frozen=True)
class Routing:
    """How the experts of a token are chosen from the router's logits.

    Args:
        num_experts: experts of the layer.
        top_k: experts of a token.
        scoring: ``softmax`` or ``sigmoid``.
        renormalize: whether the weights of a token are divided by their sum.
        scaling_factor: multiplies the weights, no unit.
        num_groups: groups of equal size; 1: no groups.
        topk_groups: groups that a token may choose from.
        group_score: of a group: ``max``, its best score, or ``top2``, the sum of its two best.
        layer: the layer's path in its model, for messages.

    Raises: ConfigError, with the layer's name, for numbers that cannot be or an unknown function.
    """

    num_experts: int
    top_k: int
    scoring: str = "softmax"
    renormalize: bool = True
    scaling_factor: float = 1.0
    num_groups: int = 1
    topk_groups: int = 1
    group_score: str = "max"
    layer: str = ""

    def __post_init__(self) -> None:
        """Check the numbers against each other."""
        for what, name, known in (
            ("scoring function", self.scoring, SCORINGS),
            ("score of a group", self.group_score, GROUP_SCORES),
        ):
            if name not in known:
                raise ConfigError(
                    f"No router has the {what} {name!r}.", who=self.layer, remedy=suggest(str(name), known)
                )
        if self.num_experts < 1:
            raise self._wrong(f"There are {self.num_experts} experts.", "give at least one expert.")
        if not 1 <= self.top_k <= self.num_experts:
            raise self._wrong(
                f"A token cannot go to {self.top_k} of {self.num_experts} experts.",
                f"use a top_k from 1 to {self.num_experts}.",
            )
        if self.num_groups < 1 or self.num_experts % self.num_groups:
            raise self._wrong(
                f"{self.num_experts} experts do not fall into {self.num_groups} groups of equal size.",
                "use a number of groups that divides the number of experts.",
            )
        if not 1 <= self.topk_groups <= self.num_groups:
            raise self._wrong(
                f"A token cannot choose from {self.topk_groups} of {self.num_groups} groups.",
                f"use a topk_groups from 1 to {self.num_groups}.",
            )
        size = self.num_experts // self.num_groups
        if self.topk_groups * size < self.top_k:
            raise self._wrong(
                f"{self.topk_groups} groups of {size} experts have fewer than {self.top_k}.",
                "let a token choose from more groups.",
            )
        if self.num_groups > 1 and self.group_score == "top2" and size < 2:
            raise self._wrong("A group of one expert has no two best scores.", "use fewer groups.")

    def _wrong(self, what: str, remedy: str) -> ConfigError:
        return ConfigError(what, who=self.layer, remedy=remedy)


def best(values: torch.Tensor, count: int) -> torch.Tensor:
    """Return the places of the ``count`` largest numbers of each row, the largest first; of equals the first.

    ``torch.topk`` leaves open which of equals it takes, and takes others in other batches.
    """
    return values.sort(dim=-1, descending=True, stable=True).indices[..., :count]


def route(
    logits: torch.Tensor, routing: Routing, bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights and the experts of each token.

    Scores are computed in float32 at least. Experts outside the chosen groups are not chosen.

    Args:
        logits: (tokens, num_experts), floating.
        routing: how to choose.
        bias: (num_experts,) floating, added to the scores for the choice and not for the weights, or None.

    Returns: weights (tokens, top_k), float32 or the logits' dtype if that is wider; ids (tokens, top_k) int32, by
        falling score.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    scores = logits.to(wide).softmax(dim=-1) if routing.scoring == "softmax" else logits.to(wide).sigmoid()
    choice = scores if bias is None else scores + bias.to(wide)
    if routing.num_groups > 1:
        grouped = choice.unflatten(-1, (routing.num_groups, -1))
        if routing.group_score == "max":
            of_groups = grouped.amax(dim=-1)
        else:
            of_groups = grouped.gather(-1, best(grouped, 2)).sum(dim=-1)
        open_groups = torch.zeros_like(of_groups, dtype=torch.bool)
        open_groups.scatter_(-1, best(of_groups, routing.topk_groups), value=True)
        choice = grouped.masked_fill(~open_groups.unsqueeze(-1), float("-inf")).flatten(-2)
    ids = best(choice, routing.top_k)
    weights = scores.gather(-1, ids)
    if routing.renormalize:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + _LEAST)
    if routing.scaling_factor != 1.0:
        weights = weights * routing.scaling_factor
    return weights, ids.to(torch.int32)
