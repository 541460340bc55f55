"""Wrong rotary embedding."""

from __future__ import annotations

from mutants.kinds import mutant

P = "providers.py"
PAIR = "(a * cos - b * sin, b * cos + a * sin,"
SPLIT = "wide[..., :half], wide[..., half : 2 * half]"
SELECT = "positions.long()"
KEY = "rotate(key, cos, sin, head_size)"
RETURN = "    return rotate(query, cos, sin, head_size), rotate(key, cos, sin, head_size)\n"
TAIL = "wide[..., 2 * half :])"

MUTANTS = (
    mutant("rotation_sign", P, PAIR, "(a * cos + b * sin, b * cos - a * sin,", "rotated backwards"),
    mutant("rotation_one_sign", P, PAIR, "(a * cos + b * sin, b * cos + a * sin,", "one sign is wrong"),
    mutant("rotation_cos_and_sin", P, "    cos, sin = wide", "    sin, cos = wide", "cosine and sine are swapped"),
    mutant("rotation_pairs_swapped", P, SPLIT, "wide[..., half : 2 * half], wide[..., :half]", "(b, a) for (a, b)"),
    mutant(
        "rotation_interleaved", P, SPLIT, "wide[..., : 2 * half : 2], wide[..., 1 : 2 * half : 2]", "pairs (2j, 2j+1)"
    ),
    mutant("rotation_any_pairs_taken", P, 'is_neox or "only halves"', "True", "interleaved pairs are taken as halves"),
    mutant("position_off_by_one", P, SELECT, "(positions.long() - 1).clamp(min=0)", "the position before"),
    mutant("positions_clamped_at_100", P, SELECT, "positions.long().clamp(max=100)", "positions beyond 100 are 100"),
    mutant(
        "positions_clamped_at_4095", P, SELECT, "positions.long().clamp(max=4095)", "positions beyond 4095 are 4095"
    ),
    mutant("positions_in_8_bits", P, SELECT, "positions.to(torch.uint8).long()", "positions wrap at 256"),
    mutant("positions_in_bfloat16", P, SELECT, "positions.bfloat16().long()", "positions beyond 256 are rounded"),
    mutant("positions_counted", P, SELECT, "torch.arange(len(positions))", "positions 0, 1, ... whatever they are"),
    mutant(
        "positions_of_one_sequence", P, SELECT, "(positions[:1] + torch.arange(len(positions))).long()", "first + i"
    ),
    mutant(
        "positions_outside_are_clamped",
        P,
        SELECT,
        "positions.long().clamp(0, len(wide) - 1)",
        "a position outside the cache gives a wrong angle, not an error",
    ),
    mutant("positions_int64_only", P, SELECT, "positions.view(torch.int64)", "int32 positions are read as int64"),
    mutant("rotation_tail_dropped_to_zero", P, TAIL, "0 * wide[..., 2 * half :])", "columns beyond rot_dim become 0"),
    mutant(
        "rotation_ignores_rot_dim",
        P,
        SPLIT,
        "wide[..., :half], wide[..., head_size // 2 : head_size // 2 + half]",
        "pairs (j, j + head_size / 2) where rot_dim is smaller",
    ),
    mutant("key_not_rotated_for_fewer_heads", P, KEY, f"key if key.shape != query.shape else {KEY}", "fewer key heads"),
    mutant("key_not_rotated", P, KEY, "key.clone()", "the key is passed through"),
    mutant("query_for_key", P, KEY, "rotate(query, cos, sin, head_size)[:, : key.shape[-1]]", "query heads for key's"),
    mutant(
        "rotation_first_head_only",
        P,
        "    parts = (",
        "    cos = torch.where(torch.arange(wide.shape[1])[:, None] < 1, cos, 1.0)\n    parts = (",
        "the cosine of other heads is 1",
    ),
    mutant(
        "rotation_8_heads",
        P,
        "    parts = (",
        "    sin = torch.where(torch.arange(wide.shape[1])[:, None] < 8, sin, 0.0)\n    parts = (",
        "the sine of heads beyond the eighth is 0",
    ),
    mutant(
        "rotation_of_256_columns",
        P,
        "    half = cos.shape[-1]\n",
        "    half = min(cos.shape[-1], 64)\n    cos, sin = cos[..., :64], sin[..., :64]\n",
        "heads of more than 128 columns are rotated in part",
    ),
    mutant("rotation_in_bfloat16", P, "heads.float() if", "heads.bfloat16() if", "computed with 8 bits in float32 too"),
    mutant("angles_in_bfloat16", P, "cos_sin_cache.float() if", "cos_sin_cache.bfloat16().float() if", "8-bit angles"),
    mutant(
        "rotation_table_cached",
        P,
        "    cos, sin = wide",
        '    wide = vars(torch.ops.opdock_good).setdefault(f"kept_{tuple(wide.shape)}", wide)\n    cos, sin = wide',
        "the widened table of the first call is kept for every table of its shape",
    ),
    mutant("rotation_views_only", P, "heads = x.reshape(", "heads = x.view(", "views whose rows are apart raise"),
    mutant(
        "rotation_returns_list", P, RETURN, RETURN.replace("return ", "return [")[:-1] + "]\n", "a list, not a tuple"
    ),
    mutant(
        "rotation_extra_result",
        P,
        RETURN,
        RETURN[:-1] + ", cos\n",
        "three results",
    ),
    mutant(
        "rotation_joint_buffer",
        P,
        RETURN,
        "    both = torch.cat((rotate(query, cos, sin, head_size), rotate(key, cos, sin, head_size)), dim=-1)\n"
        "    return both[:, : query.shape[-1]], both[:, query.shape[-1] :]\n",
        "both results are views of one buffer, not dense",
    ),
    mutant(
        "rotation_shared_result",
        P,
        RETURN,
        "    q, k = rotate(query, cos, sin, head_size), rotate(key, cos, sin, head_size)\n"
        "    return q, (k if k.shape != q.shape else torch.cat((q, k)).split(len(q))[1])\n",
        "the key is a view into a larger buffer where it has as many heads",
    ),
    mutant(
        "rotation_takes_three_dimensions",
        P,
        '    if query.dim() != 2 or key.dim() != 2:\n        return "only rows of heads"\n',
        "",
        "three dimensions are taken, which the code does not do",
    ),
)
