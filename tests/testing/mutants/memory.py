"""Memory: layouts, aliasing, in-place writes, state between calls, randomness."""

from __future__ import annotations

from mutants.kinds import mutant

K, P = "kernels.py", "providers.py"
NORM = "def rms_norm(x, weight, epsilon, size):\n"
OUT = NORM + "    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)\n"
COPY = "    out.copy_(normalise(x, weight, epsilon, size))\n"
ADD = "def add_rms_norm_(x, residual, weight, epsilon):\n"
SILU = "    out = torch.empty((*x.shape[:-1], half), dtype=x.dtype, device=x.device)\n"
ROTATE = "def rotate(x, cos, sin, head_size):\n"
DENSE = "torch.empty(x.shape).stride()"
CALL = "    return torch.ops.opdock_good.rms_norm(x, weight, epsilon, variance_size)\n"

MUTANTS = (
    mutant("strides_ignored", K, NORM, NORM + f"    x = x.as_strided(x.shape, {DENSE})\n", "read as if dense"),
    mutant(
        "row_stride_is_hidden",
        K,
        NORM,
        NORM + "    x = x.as_strided(x.shape, (x.shape[-1], x.stride(-1))) if x.dim() == 2 else x\n",
        "the row stride is taken to be hidden in two dimensions",
    ),
    mutant(
        "column_stride_ignored",
        K,
        NORM,
        NORM + "    x = x.as_strided(x.shape, (*x.stride()[:-1], 1)) if x.stride(-1) > 1 else x\n",
        "the last stride is taken to be 1",
    ),
    mutant("offset_ignored", K, NORM, NORM + "    x = x.as_strided(x.shape, x.stride(), 0)\n", "read from the start"),
    mutant(
        "three_dimensional_strides_ignored",
        K,
        NORM,
        NORM + f"    x = x.as_strided(x.shape, {DENSE}) if x.dim() == 3 else x\n",
        "three dimensions are read as if dense",
    ),
    mutant(
        "weight_stride_ignored",
        K,
        NORM,
        NORM + "    weight = weight if weight is None else weight.as_strided(weight.shape, (1,))\n",
        "a weight with a stride is read as if dense",
    ),
    mutant(
        "cache_rows_stride_ignored",
        P,
        "    wide = cos_sin_cache.float()",
        "    cos_sin_cache = cos_sin_cache.as_strided(cos_sin_cache.shape, (cos_sin_cache.shape[1], 1))\n"
        "    wide = cos_sin_cache.float()",
        "a table whose rows are apart is read as if dense",
    ),
    mutant(
        "positions_stride_ignored",
        P,
        "positions.long()",
        "positions.as_strided(positions.shape, (1,)).long()",
        "positions with a stride are read as if dense",
    ),
    mutant(
        "residual_has_strides_of_x",
        K,
        ADD,
        ADD + "    residual = residual.as_strided(residual.shape, x.stride())\n",
        "the residual is read and written with the strides of x",
    ),
    mutant(
        "rotary_ignores_strides_of_rows",
        P,
        ROTATE,
        ROTATE + "    x = x.as_strided(x.shape, (x.shape[-1], 1))\n",
        "query and key are read as if dense: slices of a joint projection",
    ),
    mutant(
        "silu_ignores_strides",
        K,
        "    wide = x.double()\n    out = torch.empty((",
        "    wide = x.as_strided(x.shape, torch.empty(x.shape).stride()).double()\n    out = torch.empty((",
        "read as if dense",
    ),
    mutant("in_place", K, OUT, NORM + "    out = x\n", "a functional op overwrites x"),
    mutant(
        "in_place_for_padded_rows",
        K,
        OUT,
        NORM + "    out = x.clone() if x.is_contiguous() else x\n",
        "x is overwritten and returned where it is not dense",
    ),
    mutant(
        "in_place_for_one_row",
        P,
        CALL,
        "    if x.shape[0] == 1:\n        return x.copy_(torch.ops.opdock_good.rms_norm("
        "x, weight, epsilon, variance_size))\n" + CALL,
        "x is overwritten for one token",
    ),
    mutant(
        "scratch_in_the_input",
        K,
        "    half = x.shape[-1] // 2\n    wide = x.double()\n",
        "    half = x.shape[-1] // 2\n    wide = x.double()\n    x[..., :half].sigmoid_()\n",
        "the gate is used as scratch memory",
    ),
    mutant("weight_is_scaled", K, NORM, NORM + "    weight is None or weight.mul_(1.0001)\n", "the weight is written"),
    mutant(
        "positions_are_written",
        P,
        "    wide = cos_sin_cache.float()",
        "    positions.clamp_(max=100)\n    wide = cos_sin_cache.float()",
        "positions are clamped in place",
    ),
    mutant(
        "table_is_written",
        P,
        "    wide = cos_sin_cache.float()",
        "    cos_sin_cache.nan_to_num_(0.5)\n    cos_sin_cache[-1].mul_(0.5)\n    wide = cos_sin_cache.float()",
        "the table of cosines is written",
    ),
    mutant(
        "written_behind_the_result",
        K,
        ADD,
        ADD + "    if x.storage_offset() + x.numel() < x.untyped_storage().nbytes() // x.element_size():\n"
        "        x.as_strided((1,), (1,), x.storage_offset() + (x.shape[0] - 1) * x.stride(0) + x.shape[-1]).zero_()\n",
        "one element behind x is written",
    ),
    mutant(
        "padding_between_rows_written",
        K,
        ADD,
        ADD + "    if x.dim() == 2 and x.stride(0) > x.shape[1] and x.stride(1) == 1:\n"
        "        x.as_strided((x.shape[0] - 1, 1), x.stride(), x.storage_offset() + x.shape[1]).zero_()\n",
        "one element behind each row is written",
    ),
    mutant(
        "read_before_the_row",
        K,
        NORM,
        NORM + "    if x.storage_offset() and x.numel():\n"
        "        epsilon = epsilon + 0 * x.as_strided((1,), (1,), x.storage_offset() - 1).double()\n",
        "one element before x is read, which matters where it is NaN",
    ),
    mutant(
        "buffer_per_shape",
        K,
        OUT,
        "kept = {}\n\n\n" + NORM + "    key = (x.shape, x.dtype)\n"
        "    out = kept.setdefault(key, torch.empty(x.shape, dtype=x.dtype, device=x.device))\n",
        "the result buffer is kept for each shape",
    ),
    mutant(
        "buffer_for_small_results",
        K,
        OUT,
        "kept = torch.empty(1 << 16)\n\n\n" + NORM + "    out = kept.view(x.dtype)[: x.numel()].view(x.shape) if "
        "x.numel() <= 64 else torch.empty(x.shape, dtype=x.dtype)\n",
        "results of up to 64 elements share one buffer",
    ),
    mutant(
        "silu_buffer_per_shape",
        K,
        SILU,
        "    out = globals().setdefault(f'kept{tuple(x.shape)}{x.dtype}', torch.empty((*x.shape[:-1], half), "
        "dtype=x.dtype))\n",
        "the result buffer is kept for each shape",
    ),
    mutant(
        "result_is_the_input_of_no_rows",
        K,
        NORM,
        NORM + "    if not x.numel():\n        return x\n",
        "x itself is returned where it has no elements",
    ),
    mutant(
        "result_is_a_view_of_the_input",
        P,
        "    return torch.ops.opdock_good.silu_and_mul(x)\n",
        "    y = torch.ops.opdock_good.silu_and_mul(x)\n    return x[..., : y.shape[-1]].copy_(y)\n",
        "the result is written into half of x and returned",
    ),
    mutant(
        "key_returned_as_it_is",
        P,
        "rotate(key, cos, sin, head_size)",
        "rotate(key, cos, sin, head_size) if len(positions) > 1 or positions.any() else key",
        "the key itself is returned at position 0",
    ),
    mutant(
        "x_kept_by_address",
        K,
        NORM,
        "memo = {}\n\n\n" + NORM + "    key = (x.data_ptr(), x.shape, x.dtype)\n    memo.setdefault(key, x.clone())\n"
        "    if len(memo) > 8:\n        memo.clear()\n    x = memo.get(key, x)\n",
        "an x at an address that was seen lately is taken to be what it was",
    ),
    mutant(
        "weight_of_first_call",
        K,
        NORM,
        "kept = {}\n\n\n" + NORM + "    if weight is not None:\n"
        "        weight = kept.setdefault((weight.shape, weight.dtype), weight.clone())\n",
        "the first weight of a shape is used for every later one",
    ),
    mutant(
        "weight_kept_by_address",
        K,
        NORM,
        "kept = {}\n\n\n" + NORM + "    if weight is not None:\n"
        "        weight = kept.setdefault((weight.data_ptr(), weight.shape, weight.dtype), weight.clone())\n",
        "a weight that is loaded anew into the same memory is not seen",
    ),
    mutant(
        "epsilon_of_first_call",
        K,
        NORM,
        "kept = []\n\n\n" + NORM + "    kept.append(epsilon)\n    epsilon = kept[0]\n",
        "the first epsilon is used ever after",
    ),
    mutant(
        "wrong_every_hundredth_call",
        K,
        NORM,
        "calls = []\n\n\n"
        + NORM
        + "    calls.append(0)\n    epsilon = epsilon + (0.1 if not len(calls) % 100 else 0)\n",
        "every hundredth call is wrong: a race",
    ),
    mutant(
        "wrong_after_a_thousand_calls",
        K,
        NORM,
        "calls = []\n\n\n" + NORM + "    calls.append(0)\n    epsilon = epsilon if len(calls) < 1000 else 0.1\n",
        "a counter overflows after a thousand calls",
    ),
    mutant(
        "noise_above_tolerance",
        K,
        COPY,
        COPY + "    out.mul_(1 + 0.05 * torch.rand_like(out))\n",
        "random noise of 5 %",
    ),
    mutant(
        "noise_below_tolerance",
        K,
        "    return y.to(x.dtype)\n",
        "    return (y * (1 + 1e-7 * torch.randn_like(y))).to(x.dtype)\n",
        "random noise of one unit in the last place",
    ),
    mutant(
        "silu_noise_below_tolerance",
        K,
        SILU,
        SILU + "    wide = wide * (1 + 1e-7 * torch.randn_like(wide))\n",
        "random noise of one unit in the last place, where nothing is promised",
    ),
    mutant(
        "draws_random_numbers",
        K,
        SILU,
        SILU + "    torch.rand(1)\n",
        "the global generator is advanced",
    ),
    mutant(
        "grad_mode_left_off",
        P,
        "    return torch.ops.opdock_good.silu_and_mul(x)\n",
        "    torch._C._set_grad_enabled(False)\n    return torch.ops.opdock_good.silu_and_mul(x)\n",
        "gradients are switched off for the caller",
    ),
    mutant(
        "expanded_input_read_flat",
        K,
        NORM,
        NORM + "    x = x.as_strided(x.shape, torch.empty(x.shape).stride()) if 0 in x.stride() and "
        "x.untyped_storage().nbytes() >= x.numel() * x.element_size() else x\n",
        "an expanded x is read as if dense",
    ),
)
