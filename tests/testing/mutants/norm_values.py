"""Wrong values of the two norms: epsilon, variance, weight, residual, precision, extreme values."""

from __future__ import annotations

from mutants.kinds import mutant

K = "kernels.py"
ROOT = "torch.rsqrt(part.pow(2).mean(-1, keepdim=True) + epsilon)"
SQUARE = "part.pow(2).mean(-1, keepdim=True)"
WIDE = "    wide = x.double()\n    part"
WEIGHT = "y.to(weight.dtype) * weight"
TOTAL = "x.float() + residual.float()"
WRITES = "    residual.copy_(total)\n    x.copy_(out)\n"

MUTANTS = (
    mutant("epsilon_hard_coded", K, "+ epsilon)", "+ 1e-6)", "epsilon is 1e-6 whatever is asked"),
    mutant("epsilon_outside_root", K, ROOT, f"1 / ({SQUARE}.sqrt() + epsilon)", "epsilon is added after the root"),
    mutant("epsilon_twice", K, "+ epsilon)", "+ epsilon + epsilon)", "epsilon is added twice"),
    mutant("epsilon_squared", K, "+ epsilon)", "+ epsilon**2)", "epsilon is squared"),
    mutant("epsilon_missing", K, "+ epsilon)", ")", "epsilon is not added"),
    mutant("epsilon_at_least_1e_5", K, "+ epsilon)", "+ max(epsilon, 1e-5))", "a smaller epsilon is raised to 1e-5"),
    mutant("epsilon_at_most_1", K, "+ epsilon)", "+ min(epsilon, 1.0))", "an epsilon above 1 is cut"),
    mutant("epsilon_as_maximum", K, f"{SQUARE} + epsilon", f"{SQUARE}.clamp(min=epsilon)", "maximum, not sum"),
    mutant("sum_not_mean", K, ".mean(-1, keepdim=True)", ".sum(-1, keepdim=True)", "sum of squares, not mean"),
    mutant(
        "mean_over_one_less",
        K,
        ".mean(-1, keepdim=True)",
        ".sum(-1, keepdim=True) / max(1, part.shape[-1] - 1)",
        "the sum is divided by hidden - 1",
    ),
    mutant("absolute_maximum", K, SQUARE, "part.abs().amax(-1, keepdim=True).pow(2)", "largest element, not mean"),
    mutant("absolute_mean", K, SQUARE, "part.abs().mean(-1, keepdim=True).pow(2)", "mean of absolutes"),
    mutant(
        "mean_subtracted", K, SQUARE, "part.var(-1, keepdim=True, unbiased=False)", "variance about the mean: LayerNorm"
    ),
    mutant("variance_size_ignored", K, "wide if size is None else wide[..., :size]", "wide", "whole row counts"),
    mutant("variance_size_one_more", K, "wide[..., :size]", "wide[..., : size + 1]", "one column more counts"),
    mutant("variance_size_from_the_end", K, "wide[..., :size]", "wide[..., -size:]", "the last columns count"),
    mutant(
        "variance_over_whole_size",
        K,
        SQUARE,
        "part.pow(2).sum(-1, keepdim=True) / x.shape[-1]",
        "the partial sum is divided by the whole size",
    ),
    mutant("weight_none_crashes", K, "if weight is not None:", "if True:", "no weight raises"),
    mutant("weight_plus_one", K, WEIGHT, "y.to(weight.dtype) * (1 + weight)", "Gemma's 1 + weight for everyone"),
    mutant(
        "weight_ignored_with_partial_variance",
        K,
        "if weight is not None:",
        "if weight is not None and size is None:",
        "no weight where variance_size is given",
    ),
    mutant(
        "weight_of_another_dtype_taken",
        "providers.py",
        "if x.dtype != x_residual.dtype or (weight is not None and weight.dtype != x.dtype):",
        "if False:",
        "mixed dtypes are taken, and the residual keeps its own dtype",
    ),
    mutant(
        "weight_cast_first",
        K,
        WEIGHT,
        "y.to(x.dtype if x.dtype != torch.float32 else weight.dtype) * weight.to(torch.bfloat16)",
        "the weight is rounded to bfloat16",
    ),
    mutant("partial_variance_taken", "providers.py", "if variance_size is not None:", "if False:", "taken and ignored"),
    mutant("residual_not_written", K, WRITES, "    x.copy_(out)\n", "the residual is not written"),
    mutant("residual_is_normalised", K, "residual.copy_(total)", "residual.copy_(out)", "the normalised row is kept"),
    mutant(
        "residual_written_after_x",
        K,
        WRITES,
        "    x.copy_(out)\n    residual.add_(x)\n",
        "x is overwritten before the residual is added up",
    ),
    mutant("residual_not_added", K, TOTAL, "x.float()", "the residual is not added"),
    mutant("residual_subtracted", K, TOTAL, "x.float() - residual.float()", "wrong sign"),
    mutant("residual_keeps_x", K, "residual.copy_(total)", "residual.copy_(x)", "x is kept, not the sum"),
    mutant("sum_in_bfloat16", K, TOTAL, "(x.bfloat16() + residual.bfloat16()).float()", "float32 is summed in 16 bits"),
    mutant("squares_in_float16", K, SQUARE, "part.half().pow(2).mean(-1, keepdim=True).double()", "overflow at 256"),
    mutant(
        "sum_of_squares_in_bfloat16",
        K,
        SQUARE,
        "sum(c.bfloat16().pow(2) for c in part.split(1, -1)).double() / part.shape[-1]",
        "the accumulator has 8 bits",
    ),
    mutant("root_in_bfloat16", K, f"{SQUARE} + epsilon)", f"{SQUARE}.bfloat16() + epsilon)", "fast reciprocal root"),
    mutant(
        "epsilon_lost_in_bfloat16_only",
        K,
        "+ epsilon)",
        "+ (0.0 if x.dtype == torch.bfloat16 else epsilon))",
        "no epsilon, in bfloat16 only",
    ),
    mutant(
        "truncated_in_bfloat16",
        K,
        "    return y.to(x.dtype)\n",
        "    if x.dtype == torch.bfloat16:\n"
        "        y = (y.float().view(torch.int32) & -65536).view(torch.float32)\n"
        "    return y.to(x.dtype)\n",
        "bfloat16 is cut, not rounded",
    ),
    mutant(
        "clamped_at_100", K, WIDE, WIDE.replace("double()", "double().clamp(-100, 100)"), "values above 100 are cut"
    ),
    mutant(
        "clamped_at_65504",
        K,
        WIDE,
        WIDE.replace("double()", "double().clamp(-65504, 65504)"),
        "values beyond float16's are cut in float32 and bfloat16",
    ),
    mutant(
        "nan_becomes_zero", K, "    return y.to(x.dtype)\n", "    return y.nan_to_num(0.0).to(x.dtype)\n", "NaN is 0"
    ),
    mutant(
        "inf_swallowed",
        K,
        WIDE,
        WIDE.replace("double()", "double().nan_to_num(nan=float('nan'), posinf=1e30, neginf=-1e30)"),
        "infinities become large numbers",
    ),
    mutant(
        "subnormal_rows_are_zero",
        K,
        WIDE,
        WIDE.replace("    part", "    wide = torch.where(wide.abs() < 1e-6, 0.0, wide)\n    part"),
        "small values are flushed to zero",
    ),
)
