"""The backends that come with opdock: Triton, torch's grouped product, and the definition."""

from __future__ import annotations

import torch

from opdock.nn.kernels import triton
from opdock.nn.moe.backend import ExpertInputs, MoEBackend, MoEProblem, register_moe_backend
from opdock.nn.moe.grouped import grouped_experts
from opdock.nn.moe.native import ACTIVATIONS, fused_experts
from opdock.nn.moe.routing import Routing

_FP8 = torch.float8_e4m3fn
_CONVERTS = (8, 9)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _no_activation(problem: MoEProblem) -> str:
    return f"no activation {problem.activation!r}: it has {', '.join(ACTIVATIONS)}"


@register_moe_backend("triton")
class TritonBackend(MoEBackend):
    """Grouped products in Triton, planned on the device: no word to the host, so CUDA graphs can hold them."""

    rank = 30
    batch_invariant = True

    @classmethod
    def why_not(cls, problem: MoEProblem) -> str:
        """Say no without Triton or a GPU, for other dtypes, and for 8-bit floats where the GPU has none."""
        if reason := triton.why_not():
            return reason
        if problem.device_type != "cuda" and not (triton.interpreted() and problem.device_type == "cpu"):
            return f"Triton runs on GPUs of device type 'cuda', not {problem.device_type!r}"
        if problem.dtype not in (torch.float16, torch.bfloat16, torch.float32):
            return f"rows of {_name(problem.dtype)}"
        if problem.dtype == torch.bfloat16 and triton.interpreted():
            return "Triton's interpreter multiplies bfloat16 wrongly; float32 and float16 are right"
        if problem.activation not in ACTIVATIONS:
            return _no_activation(problem)
        if problem.quantised:
            if problem.weight_dtype != _FP8:
                return f"matrices of {_name(problem.weight_dtype)}"
            if problem.platform != "cuda" or problem.capability is None or problem.capability < _CONVERTS:
                return f"float8_e4m3fn needs an NVIDIA GPU of capability {_CONVERTS[0]}.{_CONVERTS[1]} or more"
        if problem.local_experts > 4096:
            return f"{problem.local_experts} experts; a plan holds 4096"
        return ""

    @classmethod
    def route(
        cls, problem: MoEProblem, logits: torch.Tensor, routing: Routing, bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose in one kernel, where the numbers fit."""
        from opdock.nn.kernels.triton import moe_route

        if routing.num_experts > moe_route.MOST_EXPERTS or logits.dtype == torch.float64:
            return super().route(problem, logits, routing, bias)
        return moe_route.route(
            logits.contiguous(),
            bias,
            top_k=routing.top_k,
            sigmoid=routing.scoring == "sigmoid",
            renormalize=routing.renormalize,
            scaling=routing.scaling_factor,
            groups=routing.num_groups,
            topk_groups=routing.topk_groups,
            top2=routing.group_score == "top2",
        )

    @classmethod
    def apply(cls, problem: MoEProblem, given: ExpertInputs) -> torch.Tensor:
        """Run the kernels."""
        from opdock.nn.kernels.triton import moe

        x, w13, w2, weights, ids, *others = given
        return moe.fused_experts(
            x.contiguous(),
            w13,
            w2,
            weights.float().contiguous(),
            ids.contiguous(),
            problem.activation,
            *others,
            fixed=problem.batch_invariant,
        )


@register_moe_backend("torch_grouped")
class GroupedBackend(MoEBackend):
    """torch's grouped product; on the CPU a product for each expert in the rows' own dtype."""

    rank = 20

    @classmethod
    def why_not(cls, problem: MoEProblem) -> str:
        """Say no where torch has no such product for the device, the dtype or the sizes."""
        if not hasattr(torch, "_grouped_mm"):
            return f"torch {torch.__version__} has no grouped product"
        if problem.quantised:
            return f"matrices of {_name(problem.weight_dtype)}"
        if problem.activation not in ACTIVATIONS:
            return _no_activation(problem)
        allowed: tuple[torch.dtype, ...] = (torch.bfloat16,)
        if problem.device_type == "cpu":
            allowed = (torch.bfloat16, torch.float16, torch.float32)
        elif problem.device_type != "cuda":
            return f"torch's grouped product is not known to run on {problem.device_type!r}"
        elif problem.capability is None or problem.capability < (9, 0) or problem.platform != "cuda":
            return "torch's grouped product needs an NVIDIA GPU of capability 9.0 or more"
        if problem.dtype not in allowed:
            return f"rows of {_name(problem.dtype)}"
        bad = [n for n in (problem.hidden_size, problem.intermediate_size) if n * problem.dtype.itemsize % 16]
        if bad:
            return f"rows of {bad[0]} numbers are no multiple of 16 bytes"
        return ""

    @classmethod
    def apply(cls, problem: MoEProblem, given: ExpertInputs) -> torch.Tensor:
        """Sort, multiply, sort back and add."""
        return grouped_experts(*given[:5], problem.activation, given.expert_map)


@register_moe_backend("native")
class NativeBackend(MoEBackend):
    """The definition, expert by expert in float32 or more; with batch invariance row by row."""

    rank = 0
    batch_invariant = True

    @classmethod
    def why_not(cls, problem: MoEProblem) -> str:
        """Say no only for an activation that it does not know, and for dtypes that nothing computes with."""
        if not problem.dtype.is_floating_point or problem.dtype.itemsize < 2:
            return f"rows of {_name(problem.dtype)}"
        if problem.quantised and (not problem.weight_dtype.is_floating_point or problem.weight_dtype.itemsize > 1):
            return f"matrices of {_name(problem.weight_dtype)} for rows of {_name(problem.dtype)}"
        return "" if problem.activation in ACTIVATIONS else _no_activation(problem)

    @classmethod
    def apply(cls, problem: MoEProblem, given: ExpertInputs) -> torch.Tensor:
        """Run the definition."""
        return fused_experts(*given[:5], problem.activation, *given[5:], by_row=problem.batch_invariant)

    @classmethod
    def why_no_capture(cls) -> str | None:
        """Return that the host asks the device."""
        return "The host reads from the device which experts are chosen, in each step."
