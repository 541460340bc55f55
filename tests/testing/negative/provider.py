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
    # -- memory
    Negative(
        "rows are thought to be dense",
        "provider.layouts" + _SILU,
        "padded rows",
        "a kernel that knows a pointer and two sizes",
        SILU,
        _silu(
            "    wide = x.double()\n    out = torch.empty((*x.shape[:-1], half)",
            "    dense = torch.empty(x.shape).stride()\n"
            "    wide = x.as_strided(x.shape, dense, x.storage_offset()).double()\n"
            "    out = torch.empty((*x.shape[:-1], half)",
        ),
    ),
    Negative(
        "an input is written",
        "provider.mutation" + _NORM,
        "It writes x, which it does not declare",
        "the input as scratch memory",
        NORM,
        ((KERNELS, _NORM_BODY, _NORM_BODY.replace("    return out", "    x.zero_()\n    return out")),),
    ),
    Negative(
        "input returned",
        "provider.mutation" + _NORM,
        "register it with inplace=True if it writes its activations",
        "an in-place kernel for an op that is not",
        NORM,
        (
            (
                PROVIDERS,
                _NORM_CALL,
                "    return x.copy_(torch.ops.opdock_good.rms_norm(x, weight, epsilon, variance_size))\n",
            ),
        ),
    ),
    Negative(
        "the weight is written",
        "provider.mutation" + _ADD,
        "It writes weight, which it does not declare",
        "a weight that is converted where it lies",
        ADD_NORM,
        (
            (
                KERNELS,
                "    x.copy_(out)\n",
                "    x.copy_(out)\n    if weight is not None:\n        weight.add_(0.5)\n",
            ),
        ),
    ),
    Negative(
        "one row too many",
        "provider.bounds" + _ADD,
        "It writes outside x",
        "blocks of rows, and no test in the last one",
        ADD_NORM,
        (
            (
                KERNELS,
                "    x.copy_(out)\n",
                (
                    "    x.copy_(out)\n"
                    "    end = x.storage_offset() + x.numel()\n"
                    "    behind = x.untyped_storage().nbytes() // x.element_size() - end\n"
                    "    if x.is_contiguous() and behind >= x.shape[-1]:\n"
                    "        x.as_strided((x.shape[-1],), (1,), end).zero_()\n"
                ),
            ),
        ),
    ),
    Negative(
        "padding is written",
        "provider.bounds" + _ADD,
        "columns of a wider tensor",
        "rows that are written up to the next multiple of 16 elements",
        ADD_NORM,
        (
            (
                KERNELS,
                "    x.copy_(out)\n",
                (
                    "    x.copy_(out)\n"
                    "    if x.dim() == 2 and x.stride(0) >= 3 * x.shape[1]:\n"
                    "        x.as_strided((x.shape[0], 8), (x.stride(0), 1), x.storage_offset() + x.shape[1]).zero_()\n"
                ),
            ),
        ),
    ),
    Negative(
        "in place, and new tensors",
        "provider.aliasing" + _ADD,
        "It is registered with inplace=True, and result 0 is no activation",
        "a declaration that was copied from another provider",
        ADD_NORM,
        ((PROVIDERS, "    return x, x_residual\n", "    return x.clone(), x_residual.clone()\n"),),
    ),
    Negative(
        "two results in one buffer",
        "provider.aliasing" + _ADD,
        "Results 0 and 1 share their memory",
        "one allocation in place of two: a caller that frees one frees nothing",
        ADD_NORM,
        (
            (PROVIDERS, ", inplace=True", ""),
            (
                PROVIDERS,
                _ADD_CALL,
                (
                    "    both = torch.stack((x, x_residual.to(x.dtype)))\n"
                    "    torch.ops.opdock_good.add_rms_norm_(both[0], both[1], weight, epsilon)\n"
                    "    return both[0], both[1]\n"
                ),
            ),
        ),
    ),
    Negative(
        "one buffer for every call",
        "provider.own_results" + _SILU,
        "A later call changes the results of an earlier one",
        "memory that is allocated once: the first layer's results are gone when the second runs",
        SILU,
        (
            (KERNELS, "def silu_and_mul(x):\n", "buffers = {}\n\n\ndef silu_and_mul(x):\n"),
            (
                KERNELS,
                _SILU_NEW,
                (
                    "    key = (*x.shape[:-1], half), x.dtype\n"
                    "    out = buffers.setdefault(key, torch.empty(key[0], dtype=x.dtype, device=x.device))\n"
                ),
            ),
        ),
    ),
    Negative(
        "bits depend on the batch",
        "provider.batch_invariance" + _NORM,
        "It declares batch_invariant, and result 0 depends on the batch",
        "another kernel from 32 rows on",
        NORM,
        (
            (
                KERNELS,
                "    wide = x.double()\n    part",
                "    wide = x.double() if x.shape[0] <= 32 else x\n    part",
            ),
        ),
    ),
    # -- behind the op
    Negative(
        "state between calls",
        "provider.overloads" + _SILU,
        "keep no state between calls",
        "a scale that follows the largest value seen so far",
        SILU,
        (
            (KERNELS, "def silu_and_mul(x):\n", "calls = []\n\n\ndef silu_and_mul(x):\n    calls.append(1)\n"),
            (KERNELS, "* wide[..., half:])", "* wide[..., half:] * (1 + 1e-7 * (len(calls) % 2)))"),
        ),
    ),
    Negative(
        "op without a fake",
        "provider.fake" + _SILU,
        "torch.library.register_fake",
        "a kernel that was only tried in eager code",
        SILU,
        ((KERNELS, '@register_fake("opdock_good::silu_and_mul")\n', ""),),
    ),
    Negative(
        "fake with another shape",
        "provider.fake" + _SILU,
        "Result 0 on fake tensors is another than on real ones",
        "a fake that was copied from an op whose result is like its input",
        SILU,
        ((KERNELS, _SILU_FAKE, "    return torch.empty_like(x)\n"),),
    ),
    Negative(
        "fake with another dtype",
        "provider.fake" + _SILU,
        "compiled code believes it",
        "a fake that promises the dtype that the kernel computes in",
        SILU,
        ((KERNELS, _SILU_FAKE, _SILU_FAKE.replace("x.dtype", "torch.float64")),),
    ),
    Negative(
        "fake with other strides",
        "provider.fake" + _SILU,
        "fake: (torch.float32, 'cpu', (7, 128), (1, 7))",
        "a fake that promises the layout of a view",
        SILU,
        ((KERNELS, _SILU_FAKE, _SILU_FAKE.rstrip() + ".t().contiguous().t()\n"),),
    ),
    Negative(
        "provider reads data",
        "provider.fake" + _SILU,
        "It cannot run on fake tensors",
        "a fast way out where everything is zero",
        SILU,
        ((PROVIDERS, _SILU_CALL, "    if x.numel() and float(x.abs().max()) < 0:\n        return x\n" + _SILU_CALL),),
    ),
    Negative(
        "provider takes an address",
        "provider.fake" + _SILU,
        "It cannot run on fake tensors",
        "a kernel that is called through ctypes, not as a torch op",
        SILU,
        ((PROVIDERS, _SILU_CALL, '    assert x.data_ptr() or not x.numel(), "no memory"\n' + _SILU_CALL),),
    ),
    Negative(
        "compiled code is declined",
        "provider.compiled" + _SILU,
        "Compiled code runs native, eager code good",
        "a predicate that keeps the provider out of compiled code, where it once failed",
        SILU,
        _takes('return not torch.compiler.is_compiling() or "not in compiled code"'),
    ),
    Negative(
        "schema hides every write",
        "provider.compiled" + _ADD,
        "declare every write",
        "a schema without (a!): compiled code drops a call whose results nobody uses",
        ADD_NORM,
        ((KERNELS, _ADD_SCHEMA, _ADD_SCHEMA.replace("(a!)", "").replace("(b!)", "")),),
    ),
    Negative(
        "schema hides one write",
        "provider.compiled" + _ADD,
        "Argument residual is not defined as mutable but was mutated",
        "a schema that was not changed when the kernel was: a compiler may move what reads the residual",
        ADD_NORM,
        ((KERNELS, _ADD_SCHEMA, _ADD_SCHEMA.replace("(b!)", "")),),
    ),
)
