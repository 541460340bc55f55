"""A small correct package with an attention backend, as text, and faults that are seeded into it by one edit each."""

from __future__ import annotations

import package

ATTENTION = '''\
"""Attention over a paged cache, request by request, written without the host's helpers."""
import torch

from opdock.nn.attention import AttentionBackend, AttentionImpl, register_backend


class GoodImpl(AttentionImpl):
    def update_cache(self, key, value, key_cache, value_cache, metadata):
        slots = metadata.slot_mapping
        kept = slots >= 0
        for new, cache, scale in ((key, key_cache, self.layer.k_scale), (value, value_cache, self.layer.v_scale)):
            rows = cache.view(-1, *cache.shape[2:])
            if cache.dtype == torch.float8_e4m3fn:
                rows, new = rows.view(torch.uint8), (new / scale).clamp(-448, 448).to(cache.dtype).view(torch.uint8)
            rows[slots[kept]] = new[kept]

    def forward(self, query, key, value, key_cache, value_cache, metadata, output):
        output.zero_()
        spec, size, layer = self.spec, key_cache.shape[1], self.layer
        group = spec.num_heads // spec.num_kv_heads
        starts = metadata.query_start_loc.tolist()
        for request, total in enumerate(metadata.seq_lens.tolist()):
            start, end = starts[request], starts[request + 1]
            if start == end or not total:
                continue
            blocks = metadata.block_table[request, : -(-total // size)].long()
            k = self.read(key_cache, blocks, layer.k_scale)[:total]
            v = self.read(value_cache, blocks, layer.v_scale)[:total]
            k, v = (t.repeat_interleave(group, dim=1) for t in (k, v))
            scores = torch.einsum("qhd,khd->hqk", query[start:end], k) * spec.scale
            if spec.logits_soft_cap is not None:
                scores = spec.logits_soft_cap * torch.tanh(scores / spec.logits_soft_cap)
            first = total - (end - start)
            behind = torch.arange(first, total)[:, None] - torch.arange(k.shape[0])[None]
            if layer.alibi_slopes is not None:
                scores = scores - layer.alibi_slopes[:, None, None] * behind
            seen = behind >= 0
            if spec.sliding_window is not None:
                seen = seen & (behind < spec.sliding_window)
            scores = scores.masked_fill(~seen, float("-inf"))
            if layer.sinks is not None:
                scores = torch.cat((scores, layer.sinks[:, None, None].expand(-1, end - start, 1)), -1)
            weights = scores.softmax(-1)[..., : k.shape[0]]
            output[start:end] = torch.einsum("hqk,khd->qhd", weights, v)

    @staticmethod
    def read(cache, blocks, scale):
        if cache.dtype == torch.float8_e4m3fn:
            return cache.view(torch.uint8)[blocks].view(cache.dtype).flatten(0, 1).float() * scale
        return cache[blocks].flatten(0, 1)


@register_backend("GOOD_ATTN")
class GoodBackend(AttentionBackend):
    supported_dtypes = [torch.float32]
    supported_kv_cache_dtypes = ["auto", "fp8_e4m3"]

    @staticmethod
    def get_name():
        return "GOOD_ATTN"

    @staticmethod
    def get_impl_cls():
        return GoodImpl

    @classmethod
    def supports_sink(cls):
        return True

    @classmethod
    def supports_sliding_window(cls):
        return True

    @classmethod
    def supports_features(cls, *, alibi, soft_cap):
        return None
'''

PLATFORM = """\
import torch

from opdock import Platform, PlatformEnum


class GoodPlatform(Platform):
    _enum = PlatformEnum.OOT
    device_name = "good"
    device_type = "cpu"
    dispatch_key = "CPU"
    api_version = 1

    @property
    def supported_dtypes(self):
        return [torch.float32]

    @classmethod
    def register_oot(cls):
        from opdock_good import attention
"""

FILES = {"__init__.py": package.INIT, "platform.py": PLATFORM, "attention.py": ATTENTION}

_KEPT = "        kept = slots >= 0\n"
_BELOW = """\
        kept = slots >= -1
        key_cache, value_cache = (
            t.as_strided((t.shape[0] * t.shape[1] + 1, 1, *t.shape[2:]), (t.stride(1), *t.stride()[1:]),
                         t.storage_offset() - t.stride(1)) for t in (key_cache, value_cache)
        )
        slots = slots + 1
"""
_BLOCKS = "metadata.block_table[request, : -(-total // size)].long()"
_READ_V = "v = self.read(value_cache, blocks, layer.v_scale)[:total]"
_READ_K = "k = self.read(key_cache, blocks, layer.k_scale)[:total]"

_MASK = 'scores = scores.masked_fill(~seen, float("-inf"))'
_ADDED = 'scores = scores + torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))'
_WEIGHTS = "            weights = "
_CAPPED = "            if spec.logits_soft_cap is not None:\n                scores = scores.clamp(-1, 1)\n"
_QUERY = "query[start:end], k)"
_FLAT = "query.as_strided(query.shape, (query.shape[1] * query.shape[2], query.shape[2], 1))[start:end], k)"
_LENGTHS = "enumerate(metadata.seq_lens.tolist())"
_WHOLE_K, _WHOLE_V = ((text, text.removesuffix("[:total]")) for text in (_READ_K, _READ_V))

Edit = tuple[str, str]
FAULTS: dict[str, tuple[Edit, ...]] = {
    "ignores the block table": ((_BLOCKS, f"{_BLOCKS}[0] + torch.arange(-(-total // size))"),),
    "takes the block table of the first request": ((_BLOCKS, _BLOCKS.replace("[request,", "[0,")),),
    "takes blocks in another order": ((_BLOCKS, f"{_BLOCKS}.sort().values"),),
    "writes slot -1 to the last slot": ((_KEPT, "        kept = slots >= -1\n"),),
    "writes slot -1 below the cache": ((_KEPT, _BELOW),),
    "writes nothing": ((_KEPT, "        kept = slots >= 1 << 40\n"),),
    "writes values over keys": (("((key, key_cache,", "((value, key_cache,"),),
    "writes rows in another order": (("] = new[kept]", "] = new[kept].flip(0)"),),
    "multiplies unwritten values by zero": (_WHOLE_K, _WHOLE_V),
    "adds the mask to scores of unwritten keys": (_WHOLE_K, (_MASK, _ADDED), (": k.shape[0]]", ":total]")),
    "wrong causal offset with a prefix": (("torch.arange(first, total)", "torch.arange(end - start)"),),
    "sees one position too many": (("seen = behind >= 0", "seen = behind >= -1"),),
    "one token sees one position too few": (
        ("seen = behind >= 0", "seen = behind >= (1 if end - start == 1 and total > 1 else 0)"),
    ),
    "scale of the head size": (("* spec.scale", "* spec.head_size**-0.5"),),
    "heads of a group are interleaved": (("t.repeat_interleave(group, dim=1)", "t.repeat(1, group, 1)"),),
    "drops the window": (("if spec.sliding_window is not None", "if False"),),
    "window one too long": (("(behind < spec", "(behind <= spec"),),
    "drops the soft cap": (("if spec.logits_soft_cap is not None", "if False"),),
    "caps behind the bias": ((_WEIGHTS, _CAPPED + _WEIGHTS),),
    "drops sinks": (("if layer.sinks is not None", "if False"),),
    "drops ALiBi": (("if layer.alibi_slopes is not None", "if False"),),
    "ALiBi of the other sign": (("scores - layer.alibi", "scores + layer.alibi"),),
    "drops the scale of an 8-bit cache": ((".float() * scale", ".float()"),),
    "scale of an 8-bit cache in any cache": (
        ("cache[blocks].flatten(0, 1)\n", "cache[blocks].flatten(0, 1) * scale\n"),
    ),
    "leaves rows of no request as they were": (("        output.zero_()\n", ""),),
    "changes the query": ((_QUERY, "query[start:end].mul_(1.001), k)"),),
    "writes the cache while it reads": ((_WEIGHTS, f"            value_cache[0] += 1.0\n{_WEIGHTS}"),),
    "reads the query as if it were dense": ((_QUERY, _FLAT),),
    "needs lengths on the host": (
        (_LENGTHS, "enumerate(c + q for c, q in zip(metadata.context_lens, metadata.query_lens))"),
    ),
    "takes no case": (('["auto", "fp8_e4m3"]', '["none"]'),),
}
"""Name to (old text, new text) of ``attention.py``, each of which must be there once."""


def files_of(fault: str) -> dict[str, str]:
    """Return the package with a fault."""
    text = ATTENTION
    for old, new in FAULTS[fault]:
        if text.count(old) != 1:
            raise ValueError(f"{old!r} occurs {text.count(old)} times")
        text = text.replace(old, new)
    return {**FILES, "attention.py": text}
