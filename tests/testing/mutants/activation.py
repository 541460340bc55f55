"""Wrong SiLU and multiply."""

from __future__ import annotations

from mutants.kinds import mutant

K = "kernels.py"
FORMULA = "wide[..., :half] * torch.sigmoid(wide[..., :half]) * wide[..., half:]"
SIGMOID = "torch.sigmoid(wide[..., :half])"
COPY = f"    out.copy_({FORMULA})\n"

MUTANTS = (
    mutant(
        "silu_halves_swapped",
        K,
        FORMULA,
        "wide[..., half:] * torch.sigmoid(wide[..., half:]) * wide[..., :half]",
        "gate and up are swapped",
    ),
    mutant(
        "silu_interleaved",
        K,
        FORMULA,
        "wide[..., ::2] * torch.sigmoid(wide[..., ::2]) * wide[..., 1::2]",
        "gate and up are taken as pairs",
    ),
    mutant("silu_without_gate_factor", K, FORMULA, f"{SIGMOID} * wide[..., half:]", "sigmoid, not SiLU"),
    mutant("silu_is_gelu", K, SIGMOID, "torch.sigmoid(1.702 * wide[..., :half])", "quick GELU"),
    mutant("sigmoid_hard", K, SIGMOID, "(wide[..., :half] / 6 + 0.5).clamp(0, 1)", "hard sigmoid"),
    mutant("sigmoid_in_bfloat16", K, SIGMOID, "torch.sigmoid(wide[..., :half].bfloat16())", "sigmoid with 8 bits"),
    mutant(
        "sigmoid_by_table",
        K,
        SIGMOID,
        "torch.sigmoid((wide[..., :half] * 1024).round() / 1024)",
        "sigmoid from a table of steps of 1/1024",
    ),
    mutant(
        "sigmoid_saturates_at_8",
        K,
        SIGMOID,
        "torch.sigmoid(wide[..., :half].clamp(-8, 8))",
        "sigmoid of -20 is that of -8",
    ),
    mutant(
        "sigmoid_overflows",
        K,
        SIGMOID,
        "(wide[..., :half].float().exp() / (1 + wide[..., :half].float().exp()))",
        "a gate above 88 gives NaN",
    ),
    mutant(
        "gate_clamped",
        K,
        FORMULA,
        FORMULA.replace("wide[..., :half] *", "wide[..., :half].clamp(max=7) *"),
        "a gate above 7 is cut",
    ),
    mutant(
        "silu_last_column_of_odd_half",
        K,
        COPY,
        COPY + "    if half % 2:\n        out[..., -1] = 0\n",
        "the last column is lost where d is odd",
    ),
    mutant(
        "silu_wrong_in_bfloat16",
        K,
        COPY,
        COPY + "    if x.dtype == torch.bfloat16:\n        out.mul_(1.02)\n",
        "2 % off in bfloat16 only",
    ),
    mutant(
        "silu_block_edge",
        K,
        COPY,
        COPY + "    if out.numel() > 16384:\n        out.view(-1)[16384] = 0\n",
        "one element is lost where there are more than 16384",
    ),
    mutant(
        "silu_three_dimensions",
        K,
        "    half = x.shape[-1] // 2\n    wide",
        "    half = x.shape[-1] // 2\n    x = x.mT.reshape(x.shape) if x.dim() == 3 else x\n    wide",
        "three dimensions are read in another order",
    ),
    mutant("silu_takes_float16", "providers.py", 'x.dtype != torch.float16 or "no float16"', "True", "no decline"),
    mutant(
        "silu_takes_nothing",
        "providers.py",
        'x.dtype != torch.float16 or "no float16"',
        'x.dtype == torch.float16 or "only float16"',
        "the provider declines every dtype of the platform",
    ),
    mutant(
        "silu_declines_long_rows",
        "providers.py",
        'x.dtype != torch.float16 or "no float16"',
        'x.shape[-1] == 2 or "only rows of two"',
        "the provider declines all sizes in use",
    ),
)
