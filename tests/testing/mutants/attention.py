"""Wrong attention."""

from __future__ import annotations

from mutants.kinds import mutant

L = "layers.py"
MASK = "torch.ones(new, k.shape[2], dtype=torch.bool, device=q.device).tril(past)"
APPEND = "            k, v = cache.append(k, v)\n"
QUERY = "q = query.reshape(batch, new, self.num_heads, self.head_size).transpose(1, 2)"
SDPA = "F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.scale)"
REPEAT = "t.repeat_interleave(self.group, dim=1)"

MUTANTS = (
    mutant("mask_one_more", L, ".tril(past)", ".tril(past + 1)", "each position sees the next one"),
    mutant("mask_one_less", L, ".tril(past)", ".tril(past - 1)", "no position sees itself"),
    mutant("mask_without_past", L, ".tril(past)", ".tril()", "cached steps see the first positions only"),
    mutant("mask_missing", L, "attn_mask=mask", "attn_mask=None", "every position sees every other"),
    mutant("mask_missing_with_cache", L, "attn_mask=mask", "attn_mask=mask if cache is None else None", "no mask"),
    mutant("mask_missing_with_past", L, "attn_mask=mask", "attn_mask=None if past else mask", "no mask after a prefix"),
    mutant("mask_top_left", L, "attn_mask=mask", "is_causal=True", "a causal mask from the top left"),
    mutant("mask_window_of_16", L, MASK, f"{MASK}.triu(past - 15)", "only the last 16 positions are seen"),
    mutant("mask_window_of_64", L, MASK, f"{MASK}.triu(past - 63)", "only the last 64 positions are seen"),
    mutant("mask_window_of_1024", L, MASK, f"{MASK}.triu(past - 1023)", "only the last 1024 positions are seen"),
    mutant("scale_ignored", L, ", scale=self.scale", "", "head_size ** -0.5 whatever is asked"),
    mutant("scale_inverted", L, "scale=self.scale", "scale=1 / self.scale", "divided by the scale"),
    mutant("scale_missing", L, "scale=self.scale", "scale=1.0", "scores are not scaled"),
    mutant("group_order", L, REPEAT, "t.repeat(1, self.group, 1, 1)", "heads of a group are interleaved"),
    mutant(
        "group_first_head", L, REPEAT, "t[:, :1].expand(-1, self.num_heads, -1, -1)", "all heads share the first keys"
    ),
    mutant("cache_not_appended", L, APPEND, "            pass\n", "the cache is not used"),
    mutant(
        "cache_read_not_written",
        L,
        APPEND,
        "            kept = [t.clone() for t in (cache._keys, cache._values)]\n"
        "            k, v = (t.clone() for t in cache.append(k, v))\n"
        "            cache._keys.copy_(kept[0]), cache._values.copy_(kept[1])\n",
        "this step is seen, and not kept",
    ),
    mutant("cache_advanced", L, APPEND, APPEND + "            cache._cache.advance(new)\n", "counted twice"),
    mutant(
        "cache_holds_swapped", L, APPEND, "            v, k = cache.append(v, k)\n", "keys and values are swapped in it"
    ),
    mutant(
        "cache_in_bfloat16", L, APPEND, "            k, v = cache.append(k.bfloat16(), v.bfloat16())\n", "rounded keys"
    ),
    mutant(
        "cache_view_scaled",
        L,
        APPEND,
        APPEND + "            k.mul_(1.0)\n            v[:, :, -1:].mul_(0.99)\n",
        "the last value is changed in the cache",
    ),
    mutant("key_and_value_swapped", L, "(q, k, v,", "(q, v, k,", "keys and values are swapped"),
    mutant("heads_not_joined", L, "out.transpose(1, 2).reshape", "out.reshape", "heads and positions are mixed up"),
    mutant("query_heads_mixed", L, QUERY, "q = query.reshape(batch, self.num_heads, new, self.head_size)", "mixed up"),
    mutant(
        "batch_mixed",
        L,
        QUERY,
        "q = query.reshape(new, batch, self.num_heads, self.head_size).permute(1, 2, 0, 3)",
        "tokens are taken position by position where there are several sequences",
    ),
    mutant(
        "batch_first_length", L, "1, 0) if cache is None", "1, 0) if cache is None or not cache.length", "batch of 1"
    ),
    mutant(
        "attention_in_bfloat16",
        L,
        SDPA,
        "F.scaled_dot_product_attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), attn_mask=mask, "
        "scale=self.scale).to(q.dtype)",
        "float32 is rounded",
    ),
    mutant("attention_result_shape", L, ".reshape(batch * new, -1)", ".reshape(batch, new, -1)", "three dimensions"),
    mutant(
        "attention_strided_query",
        L,
        "query.reshape(batch, new,",
        "query.view(batch, new,",
        "a slice of a joint projection raises",
    ),
    mutant(
        "attention_query_read_flat",
        L,
        f"        {QUERY}",
        f"        query = query.as_strided(query.shape, (query.shape[1], 1))\n        {QUERY}",
        "a slice of a joint projection is read as if dense",
    ),
    mutant("attention_dropout", L, "attn_mask=mask,", "attn_mask=mask, dropout_p=0.1,", "dropout in inference"),
    mutant(
        "attention_writes_query",
        L,
        f"        {SDPA and 'out = ' + SDPA}",
        f"        query.mul_(self.scale)\n        out = {SDPA}",
        "the query is written",
    ),
    mutant(
        "attention_single_token_uncached",
        L,
        "        out = F",
        "        if new == 1 and past:\n            mask[..., 0] = False\n        out = F",
        "the first position is not seen when decoding",
    ),
    mutant(
        "attention_long_context",
        L,
        "        out = F",
        "        if past > 256:\n            mask[..., :1] = False\n        out = F",
        "the first position is not seen beyond 256",
    ),
)
