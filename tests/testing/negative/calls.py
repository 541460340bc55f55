"""Packages with one provider that is right on dense inputs, and wrong in memory, behind the op or in compiled code."""

from __future__ import annotations

from negative.base import ADD_NORM, NORM, SILU, Negative
from negative.provider import (
    _ADD,
    _ADD_CALL,
    _ADD_SCHEMA,
    _NORM,
    _NORM_BODY,
    _NORM_CALL,
    _SILU,
    _SILU_CALL,
    _SILU_FAKE,
    _SILU_NEW,
    KERNELS,
    PROVIDERS,
    _silu,
    _takes,
)

NEGATIVES = (
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
        "provider.compiled" + _SILU,
        "Cannot access data pointer of Tensor",
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
