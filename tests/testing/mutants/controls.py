"""Correct changes: nothing may be found wrong with them."""

from __future__ import annotations

from mutants.kinds import control

K, P, L, F = "kernels.py", "providers.py", "layers.py", "platform.py"
SQUARE = "part.pow(2).mean(-1, keepdim=True)"
SILU = "wide[..., :half] * torch.sigmoid(wide[..., :half]) * wide[..., half:]"

MUTANTS = (
    control("norm_in_float32", K, "    wide = x.double()\n    part", "    wide = x.float()\n    part", "float32 sums"),
    control(
        "norm_other_order", K, SQUARE, "part.flip(-1).pow(2).cumsum(-1)[..., -1:] / part.shape[-1]", "another order"
    ),
    control(
        "norm_by_division",
        K,
        "wide * torch.rsqrt(" + SQUARE + " + epsilon)",
        f"wide / ({SQUARE} + epsilon).sqrt()",
        "division by the root",
    ),
    control(
        "norm_by_vector_norm",
        K,
        SQUARE,
        "torch.linalg.vector_norm(part, dim=-1, keepdim=True).square() / part.shape[-1]",
        "by the norm of the row",
    ),
    control("norm_rounded_once", K, "y.to(weight.dtype) * weight", "y * weight", "rounded once, after the weight"),
    control(
        "sum_rounded_before_variance",
        K,
        "    out = normalise(total,",
        "    total = total.to(x.dtype).float()\n    out = normalise(total,",
        "the rounded sum is normalised",
    ),
    control(
        "norm_takes_any_weight",
        P,
        "if weight is not None and weight.dtype != x.dtype:",
        "if weight is not None and not weight.is_floating_point():",
        "mixed dtypes, done right",
    ),
    control(
        "silu_by_tanh",
        K,
        "torch.sigmoid(wide[..., :half])",
        "(0.5 * (1 + torch.tanh(0.5 * wide[..., :half])))",
        "sigmoid by tanh",
    ),
    control(
        "silu_rounded_twice",
        K,
        SILU,
        "torch.nn.functional.silu(wide[..., :half]).to(x.dtype) * x[..., half:]",
        "as native rounds",
    ),
    control(
        "silu_in_float32",
        K,
        "    wide = x.double()\n    out = torch.empty((",
        "    wide = x.float()\n    out = torch.empty((",
        "float32",
    ),
    control(
        "rotation_in_float64", P, "heads.float() if x.dtype != torch.float64 else heads", "heads.double()", "float64"
    ),
    control(
        "rotation_by_addcmul",
        P,
        "(a * cos - b * sin, b * cos + a * sin,",
        "(torch.addcmul(a * cos, b, sin, value=-1), torch.addcmul(b * cos, a, sin),",
        "fused multiply and add",
    ),
    control(
        "gelu_in_float32",
        L,
        "F.gelu(gate, approximate=self.approximate) * up",
        "(F.gelu(gate.float(), approximate=self.approximate) * up.float()).to(x.dtype)",
        "rounded once",
    ),
    control(
        "linear_by_matmul",
        L,
        "F.linear(x, self.weight, bias)",
        "torch.matmul(x, self.weight.t()) + (0 if bias is None else bias)",
        "matmul",
    ),
    control(
        "attention_grouped",
        L,
        "attn_mask=mask, scale=self.scale)",
        "attn_mask=mask, scale=self.scale, enable_gqa=True)",
        "grouping",
    ),
    control(
        "dtypes_with_float16",
        F,
        "[torch.float32, torch.bfloat16]",
        "[torch.float32, torch.bfloat16, torch.float16]",
        "one dtype more, which all but one provider take",
    ),
)
