"""Packages with one provider, whose predicate, kernel or torch op is wrong."""

from __future__ import annotations

from negative.activation import PLATFORM
from negative.base import ADD_NORM, NORM, SILU, Edit, Negative

KERNELS, PROVIDERS = "kernels.py", "providers.py"

_NORM, _ADD, _SILU = "[rms_norm/good]", "[fused_add_rms_norm/good]", "[silu_and_mul/good]"
_NORM_CALL = "    return torch.ops.opdock_good.rms_norm(x, weight, epsilon, variance_size)\n"
_SILU_CALL = "    return torch.ops.opdock_good.silu_and_mul(x)\n"
_ADD_CALL = "    torch.ops.opdock_good.add_rms_norm_(x, x_residual, weight, epsilon)\n    return x, x_residual\n"
_SILU_TAKES = '    return x.dtype != torch.float16 or "no float16"\n'
_SILU_BODY = "    out.copy_(wide[..., :half] * torch.sigmoid(wide[..., :half]) * wide[..., half:])\n    return out\n"
_SILU_NEW = "    out = torch.empty((*x.shape[:-1], half), dtype=x.dtype, device=x.device)\n"
_SILU_FAKE = "    return torch.empty((*x.shape[:-1], x.shape[-1] // 2), dtype=x.dtype, device=x.device)\n"
_NORM_BODY = "    out.copy_(normalise(x, weight, epsilon, size))\n    return out\n"
_MEAN = "torch.rsqrt(part.pow(2).mean(-1, keepdim=True) + epsilon)"
_ADD_SCHEMA = "add_rms_norm_(Tensor(a!) x, Tensor(b!) residual, Tensor? weight, float epsilon) -> ()"


def _takes(text: str) -> tuple[Edit, ...]:
    """Return the edit of silu_and_mul's predicate."""
    return ((PROVIDERS, _SILU_TAKES, "    " + text.replace("\n", "\n    ") + "\n"),)


def _silu(old: str, new: str) -> tuple[Edit, ...]:
    return ((KERNELS, old, new),)


def _after_silu(text: str) -> tuple[Edit, ...]:
    """Return the edit that makes the kernel of silu_and_mul do more before it returns ``out``."""
    return _silu(
        _SILU_BODY, _SILU_BODY.replace("    return out", "    " + text.replace("\n", "\n    ") + "\n    return out")
    )


NEGATIVES = (
    # -- the predicate
    Negative(
        "predicate reads data",
        "provider.predicate" + _SILU,
        "reads data, or fails, on fake tensors",
        "a range of values that the kernel needs",
        SILU,
        _takes('return bool(x.abs().amax() < 100) or "large values"'),
    ),
    Negative(
        "predicate reads an address",
        "provider.predicate" + _SILU,
        "reads an address on fake tensors",
        "alignment for wide loads: a fake tensor's address is 0, so compiled code always takes it",
        SILU,
        _takes('return x.data_ptr() % 16 == 0 or "not aligned"'),
    ),
    Negative(
        "predicate differs on fake tensors",
        "provider.predicate" + _SILU,
        "answers otherwise on fake tensors than on real ones",
        "a test of the exact class of a tensor",
        SILU,
        _takes('return type(x) is torch.Tensor or "a subclass"'),
    ),
    Negative(
        "predicate takes nothing",
        "provider.predicate" + _SILU,
        "takes none of the inputs that the kit makes",
        "a condition that is the wrong way round",
        SILU,
        _takes('return x.dtype == torch.float16 or "only float16"'),
    ),
    Negative(
        "predicate changes its mind",
        "provider.predicate" + _SILU,
        "another answer the second time",
        "a budget of memory that the predicate itself uses up",
        SILU,
        (
            (PROVIDERS, "def silu_takes(x):\n", "seen = []\n\n\ndef silu_takes(x):\n"),
            *_takes('seen.append(1)\nreturn len(seen) % 2 == 0 or "busy"'),
        ),
    ),
    # -- results
    Negative(
        "takes what it cannot run",
        "provider.results" + _SILU,
        "raises RuntimeError on an input that supports_args takes",
        "a kernel for rows of a multiple of 32 elements",
        SILU,
        _silu(_SILU_NEW, '    if half % 32:\n        raise RuntimeError("hidden size not supported")\n' + _SILU_NEW),
    ),
    Negative(
        "results of another dtype",
        "provider.results" + _SILU,
        "Result 0 has dtype torch.float64, the native one torch.float32",
        "a result in the dtype that the kernel computes in",
        SILU,
        (
            (KERNELS, _SILU_NEW, _SILU_NEW.replace("x.dtype", "torch.float64")),
            (KERNELS, _SILU_FAKE, _SILU_FAKE.replace("x.dtype", "torch.float64")),
        ),
    ),
    Negative(
        "results of another shape",
        "provider.results" + _SILU,
        "Result 0 has shape (1, 1, 64), the native one (1, 64)",
        "a batch dimension that the library wants",
        SILU,
        ((PROVIDERS, _SILU_CALL, _SILU_CALL.replace("(x)\n", "(x).unsqueeze(0)\n")),),
    ),
    Negative(
        "results with other strides",
        "provider.results" + _SILU,
        "Result 0 has strides",
        "results in the column-major layout of a BLAS",
        SILU,
        (
            (
                KERNELS,
                _SILU_BODY,
                _SILU_BODY.replace("return out", "return out.t().contiguous().t() if out.dim() == 2 else out"),
            ),
            (KERNELS, _SILU_FAKE, _SILU_FAKE.rstrip() + ".t().contiguous().t()\n"),
        ),
    ),
    Negative(
        "one result of two",
        "provider.results" + _ADD,
        "It returns ['Tensor'], native 2 tensors",
        "a kernel that updates the residual, which the caller is thought to hold",
        ADD_NORM,
        ((PROVIDERS, "    return x, x_residual\n", "    return (x,)\n"),),
    ),
    # -- values
    Negative(
        "wrong formula",
        "provider.values" + _NORM,
        "compare the provider with the op's definition",
        "the epsilon outside of the root",
        NORM,
        ((KERNELS, _MEAN, "1 / (part.pow(2).mean(-1, keepdim=True).sqrt() + epsilon ** 0.25)"),),
    ),
    Negative(
        "tail of a row is not computed",
        "provider.values" + _SILU,
        "hidden_size=2,",
        "vector loads of four elements, and no loop for the rest",
        SILU,
        _silu(_SILU_BODY, _SILU_BODY.replace("    return out", "    out[..., half - half % 4 :] = 0\n    return out")),
    ),
    Negative(
        "residual is not written",
        "provider.values" + _ADD,
        "result 1 is wrong",
        "a kernel that only normalises in place",
        ADD_NORM,
        ((KERNELS, "    residual.copy_(total)\n", ""),),
    ),
    Negative(
        "epsilon is ignored",
        "provider.arguments" + _NORM,
        "epsilon=0.25",
        "a kernel that is compiled for one epsilon",
        NORM,
        ((KERNELS, _MEAN, _MEAN.replace("+ epsilon", "+ 1e-5")),),
    ),
    Negative(
        "variance_size is ignored",
        "provider.arguments" + _NORM,
        "variance_size=32",
        "a parameter that came later than the kernel",
        NORM,
        ((KERNELS, "part = wide if size is None else wide[..., :size]", "part = wide"),),
    ),
    Negative(
        "weight is taken for granted",
        "provider.arguments" + _NORM,
        "weight=None",
        "a norm without a weight is rare",
        NORM,
        ((KERNELS, "    if weight is not None:\n", "    if True:\n"),),
    ),
    Negative(
        "sum of squares overflows",
        "provider.magnitudes" + _NORM,
        "activations times 300",
        "squares in half precision",
        NORM,
        (
            (PLATFORM, "[torch.float32]", "[torch.float16]"),
            (KERNELS, "part.pow(2)", "part.to(x.dtype).pow(2).double()"),
        ),
    ),
    Negative(
        "NaN is swallowed",
        "provider.magnitudes" + _SILU,
        "a row of nan",
        "a maximum that ignores NaN: a broken model looks well",
        SILU,
        _after_silu("out.nan_to_num_(0.0)"),
    ),
    Negative(
        "infinity becomes NaN",
        "provider.magnitudes" + _SILU,
        "activations times 300",
        "exp(x) / (1 + exp(x)) in place of 1 / (1 + exp(-x))",
        SILU,
        _silu("torch.sigmoid(wide[..., :half])", "(wide[..., :half].exp() / (1 + wide[..., :half].exp()))"),
    ),
    Negative(
        "no rows",
        "provider.zero_rows" + _SILU,
        "ZeroDivisionError",
        "a grid that is computed from the number of rows",
        SILU,
        _silu(_SILU_NEW, _SILU_NEW + "    width = x.numel() // x.shape[0]\n"),
    ),
)
