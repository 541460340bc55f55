"""A layer of experts: router, choice, the experts themselves, and the expert that all tokens go to."""

# ruff: noqa: FBT001, FBT002 - the order of the parameters is that which plugin authors know

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from opdock import context, env
from opdock.errors import CheckpointError, ConfigError
from opdock.nn.layers.linear import copy_checked
from opdock.nn.moe import backends as _in_tree  # noqa: F401 - registers them
from opdock.nn.moe.backend import MoEProblem, moe_backends
from opdock.nn.moe.op import Facts, moe_experts, number_of
from opdock.nn.moe.quantised import STORED, StoredFp8Experts, experts_method
from opdock.nn.moe.routing import Routing
from opdock.nn.moe.selector import Selection, select
from opdock.registry import PluggableLayer

if TYPE_CHECKING:
    from opdock.nn.quantization.config import QuantizationConfig

logger = logging.getLogger("opdock")
SHARDS = ("w1", "w2", "w3")


@PluggableLayer.register("fused_moe")
class FusedMoE(PluggableLayer):
    """y[t] = sum over the chosen experts e of weight[t, e] * down_e(act(gate_e(x[t])) * up_e(x[t])) + shared(x[t]).

    Shapes: x (tokens, hidden_size); returns likewise. Parameters: w13_weight (local experts, 2 * intermediate_size,
    hidden_size), gate rows first; w2_weight (local experts, hidden_size, intermediate_size). The backend is chosen
    when the layer is built: ``selection`` says which, and why not the others.

    With several ranks each holds a part of the experts, and its result lacks those of the others: adding the ranks'
    results is the caller's, and the shared expert is in that of the first rank alone.

    Args:
        num_experts: experts on all ranks.
        top_k: experts of a token.
        hidden_size: length of a row.
        intermediate_size: length of a row between the two matrices of an expert.
        params_dtype: of rows and matrices; None takes torch's default.
        renormalize, scoring_func, routed_scaling_factor, num_expert_group, topk_group, group_score: see ``Routing``.
        correction_bias: whether there is a parameter e_score_correction_bias (num_experts,), float32.
        activation: of the gate: ``silu``, ``gelu`` or ``gelu_pytorch_tanh``.
        gate: the router, rows to logits (tokens, num_experts); None: the caller gives the logits.
        float32_router: whether the router is given rows in float32, with a weight in float32.
        shared_experts: a layer that all tokens go to, rows to rows, or None.
        shared_expert_gate: rows to one number, whose sigmoid multiplies the shared expert's output, or None.
        ep_size: ranks that share the experts.
        ep_rank: which of them this is.
        weight_dtype: of the stored matrices; an 8-bit float adds w13_weight_scale (local experts, 2 *
            intermediate_size) and w2_weight_scale (local experts, hidden_size), float32. None: params_dtype.
        quant_config: how the checkpoint's layers are quantised, or are to be after loading; None: not at all.
        checkpoint_names: paths in the checkpoint of one expert's matrices, which ``quant_config`` is asked about; none:
            those of ``prefix`` with the usual names.
        moe_backend: name of the backend, or ``auto``; None takes the configuration's.
        prefix: the layer's path in its model.

    Raises: ConfigError, with the layer's name, for numbers that cannot be and unknown names; UnsupportedError where
        the backend asked for cannot serve the layer, or none can.
    """

    def __init__(
        self,
        num_experts: int,
        top_k: int,
        hidden_size: int,
        intermediate_size: int,
        params_dtype: torch.dtype | None = None,
        renormalize: bool = True,
        num_expert_group: int = 1,
        topk_group: int = 1,
        scoring_func: str = "softmax",
        routed_scaling_factor: float = 1.0,
        activation: str = "silu",
        prefix: str = "",
        *,
        group_score: str = "max",
        correction_bias: bool = False,
        gate: nn.Module | None = None,
        float32_router: bool = False,
        shared_experts: nn.Module | None = None,
        shared_expert_gate: nn.Module | None = None,
        ep_size: int = 1,
        ep_rank: int = 0,
        weight_dtype: torch.dtype | None = None,
        quant_config: QuantizationConfig | None = None,
        checkpoint_names: Sequence[str] = (),
        moe_backend: str | None = None,
    ) -> None:
        """Check the numbers, allocate the matrices uninitialised, and choose the backend."""
        super().__init__()
        self.prefix, self.activation, self.float32_router = prefix, activation, float32_router
        self.routing = Routing(
            num_experts,
            top_k,
            scoring_func,
            renormalize,
            routed_scaling_factor,
            num_expert_group,
            topk_group,
            group_score,
            layer=prefix,
        )
        for name, size in (("hidden_size", hidden_size), ("intermediate_size", intermediate_size)):
            if size < 1:
                raise ConfigError(f"{name} is {size}, which is no size.", who=prefix)
        self.hidden_size, self.intermediate_size = hidden_size, intermediate_size
        self.first, local = share_of(num_experts, ep_size, ep_rank, prefix)
        self.ep_size, self.ep_rank, self.local_experts = ep_size, ep_rank, local
        dtype = params_dtype or torch.get_default_dtype()
        self.quant_method = experts_method(quant_config, prefix, checkpoint_names)
        self.make_parameters(weight_dtype or dtype, scaled=weight_dtype not in (None, dtype))
        if isinstance(self.quant_method, StoredFp8Experts):
            self.quant_method.create_weights(self)
        bias = _parameter((num_experts,), torch.float32) if correction_bias else None
        self.register_parameter("e_score_correction_bias", bias)
        table = None
        if ep_size > 1:
            table = torch.full((num_experts,), -1, dtype=torch.int32)
            table[self.first : self.first + local] = torch.arange(local, dtype=torch.int32)
        self.register_buffer("expert_map", table, persistent=False)
        self.gate, self.shared_experts, self.shared_expert_gate = gate, shared_experts, shared_expert_gate
        self.problem = self._problem(dtype, STORED if self.quant_method is not None else weight_dtype or dtype)
        self.selection = choose(self.problem, moe_backend, layer=prefix)
        self._number = number_of(Facts(self.selection.name, self.problem, self.routing))

    def make_parameters(self, dtype: torch.dtype, *, scaled: bool = False) -> None:
        """Allocate the matrices, uninitialised, and with ``scaled`` a scale for each of their rows."""
        local, inner, hidden = self.local_experts, self.intermediate_size, self.hidden_size
        for name, rows, columns in (("w13_weight", 2 * inner, hidden), ("w2_weight", hidden, inner)):
            self.register_parameter(name, _parameter((local, rows, columns), dtype))
            scale = _parameter((local, rows), torch.float32) if scaled else None
            self.register_parameter(f"{name}_scale", scale)

    def weight_arguments(self) -> dict[str, Any]:
        """Return what the method's ``create_weights`` takes when weights are reloaded."""
        return {}

    def _problem(self, dtype: torch.dtype, stored: torch.dtype) -> MoEProblem:
        platform = context.platform()
        matrices: torch.Tensor = self.w13_weight  # type: ignore[assignment]
        device = matrices.device.type
        capability = platform.get_device_capability() if device == platform.device_type else None
        return MoEProblem(
            device_type=device,
            platform=platform._enum.name.lower(),
            capability=None if capability is None else (capability.major, capability.minor),
            dtype=dtype,
            weight_dtype=stored,
            num_experts=self.routing.num_experts,
            local_experts=self.local_experts,
            top_k=self.routing.top_k,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            activation=self.activation,
            expert_parallel=self.ep_size,
            batch_invariant=env.batch_invariant(),
        )

    @property
    def served_by(self) -> str:
        """Name of the backend that computes the experts."""
        return self.selection.name

    def forward(self, hidden_states: torch.Tensor, router_logits: torch.Tensor | None = None) -> torch.Tensor:
        """Return the output of a step.

        Args:
            hidden_states: (tokens, hidden_size).
            router_logits: (tokens, num_experts); None asks the layer's own router.
        """
        if router_logits is None:
            router_logits = self._logits(hidden_states)
        shape = (hidden_states.shape[0], self.routing.num_experts)
        if hidden_states.dim() != 2 or hidden_states.shape[1] != self.hidden_size or router_logits.shape != shape:
            raise ConfigError(
                f"Rows {tuple(hidden_states.shape)} and logits {tuple(router_logits.shape)} do not fit the experts.",
                who=self.prefix,
                why=f"Rows are (tokens, {self.hidden_size}), logits (tokens, {self.routing.num_experts}).",
                remedy="give each token its row and a logit for every expert.",
            )
        stored = self._parameters["w13_weight"]
        if stored is not None and stored.dtype.itemsize > 1 and hidden_states.dtype != stored.dtype:
            raise ConfigError(
                f"Rows of {hidden_states.dtype} do not fit experts of {stored.dtype}.",
                who=self.prefix,
                remedy="give rows of the layer's dtype, or build it with params_dtype of the rows.",
            )
        out = self._experts(hidden_states, router_logits)
        if self.shared_experts is not None and self.ep_rank == 0:
            shared = self.shared_experts(hidden_states)
            if self.shared_expert_gate is not None:
                shared = shared * torch.sigmoid(_first(self.shared_expert_gate(hidden_states)))
            out = out + shared
        return out

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        if self.gate is None:
            raise ConfigError(
                "The layer has no router, and no logits were given.",
                who=self.prefix,
                remedy="layer(hidden_states, router_logits).",
            )
        if self.float32_router and x.dtype in (torch.float16, torch.bfloat16):
            x = x.float()
        return _first(self.gate(x))

    def _experts(self, x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Choose and compute the experts; one node where code is compiled."""
        call: Any = torch.ops.opdock.moe_experts if torch.compiler.is_compiling() else moe_experts
        parameters = self._parameters
        return call(  # type: ignore[no-any-return]
            x,
            logits,
            parameters["e_score_correction_bias"],
            parameters["w13_weight"],
            parameters["w2_weight"],
            self._buffers["expert_map"],
            parameters["w13_weight_scale"],
            parameters["w2_weight_scale"],
            self._number,
        )

    def weight_loader(
        self, param: nn.Parameter, loaded_weight: torch.Tensor, shard_id: tuple[str, int] | None = None
    ) -> None:
        """Copy a checkpoint's tensor into ``param``; one of an expert that lies elsewhere is left out.

        Args:
            param: a parameter of this layer.
            loaded_weight: all of it, or with a shard one matrix.
            shard_id: (``w1`` for the gate, ``w3`` for up, ``w2`` for down; number of the expert on all ranks).

        Raises: CheckpointError for another shard or shape.
        """
        if shard_id is None:
            copy_checked(param.data, loaded_weight, self.prefix)
            return
        kind, expert = shard_id
        if kind not in SHARDS or not 0 <= expert < self.routing.num_experts:
            raise CheckpointError(
                f"{self.prefix or type(self).__name__} has no shard {shard_id!r}.",
                remedy=f"use one of {', '.join(SHARDS)} and an expert below {self.routing.num_experts}.",
            )
        local = expert - self.first
        if not 0 <= local < self.local_experts:
            return
        target = param.data[local]
        if kind != "w2":
            half = self.intermediate_size
            target = target.narrow(0, half if kind == "w3" else 0, half)
        if target.dim() == 1:  # scales of rows: one for each, or one for all
            loaded_weight = loaded_weight.reshape(-1)
            if loaded_weight.numel() == 1:
                loaded_weight = loaded_weight.expand(target.shape)
        copy_checked(target, loaded_weight, f"{self.prefix} expert {expert} {kind}")

    def extra_repr(self) -> str:
        """Return what repr shows."""
        r = self.routing
        return (
            f"num_experts={r.num_experts}, top_k={r.top_k}, hidden_size={self.hidden_size}, "
            f"intermediate_size={self.intermediate_size}, ep={self.ep_rank}/{self.ep_size}, backend={self.served_by}"
        )


def share_of(num_experts: int, ep_size: int, ep_rank: int, layer: str = "") -> tuple[int, int]:
    """Return (first expert, number of experts) of a rank: equal runs, the first ranks' one longer where need be.

    Raises: ConfigError, with the layer's name, for a rank that is none, or more ranks than experts.
    """
    if not 1 <= ep_size <= num_experts or not 0 <= ep_rank < ep_size:
        raise ConfigError(
            f"Rank {ep_rank} of {ep_size} cannot hold a part of {num_experts} experts.",
            who=layer,
            remedy="use at most one rank for each expert, and ranks from 0.",
        )
    base, more = divmod(num_experts, ep_size)
    return ep_rank * base + min(ep_rank, more), base + (ep_rank < more)


def choose(problem: MoEProblem, wanted: str | None = None, *, layer: str = "") -> Selection:
    """Return the backend of a layer; ``wanted`` None takes ``moe_backend`` of the configuration in force.

    Raises: see ``select``.
    """
    if wanted is None:
        wanted = context.get_current_config().kernel_config.moe_backend
    found = select(problem, moe_backends.view, wanted, layer=layer)
    logger.debug("%s: MoE backend %s", layer, found.name)
    return found


def _parameter(shape: tuple[int, ...], dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)


def _first(output: torch.Tensor | tuple[torch.Tensor, torch.Tensor | None]) -> torch.Tensor:
    """Return y of what a linear layer returned: y, or (y, bias to add)."""
    return output if isinstance(output, torch.Tensor) else output[0]
