"""Steps of batches on which an attention backend is judged against float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch
from torch import Tensor

from opdock.config import OpdockConfig
from opdock.nn.attention import Attention, AttentionMetadata, PagedKVCache, set_forward_context
from opdock.nn.attention.dense import attend
from opdock.nn.attention.gathering import gather
from opdock.platforms import configure

TOLERANCES = {torch.float64: 1e-6, torch.float32: 3e-5, torch.float16: 4e-3, torch.bfloat16: 2.5e-2}
"""The largest error of a result, for values of a normal distribution: two roundings of the largest of them."""

SCALE = 1.3
"""Times head_size ** -0.5: the scale of scores; not one, which kernels take by themselves."""

K_SCALE, V_SCALE = 0.7, 1.3
"""Of an 8-bit cache."""


@dataclass(frozen=True)
class AttentionCase:
    """One step.

    Attributes:
        query_lens: new tokens of each request.
        seq_lens: positions of each request after the step.
        block_size: positions of a block.
        heads: query heads.
        kv_heads: key and value heads.
        head_size: length of a head.
        padding: rows behind the tokens, whose slot is -1.
        window: sliding window, or None.
        soft_cap: of the scores, or None.
        alibi: whether there are slopes.
        sinks: whether there are sinks.
        kv_dtype: of the cache; None: as the queries.
    """

    query_lens: tuple[int, ...]
    seq_lens: tuple[int, ...]
    block_size: int = 16
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 64
    padding: int = 0
    window: int | None = None
    soft_cap: float | None = None
    alibi: bool = False
    sinks: bool = False
    kv_dtype: torch.dtype | None = field(default=None)

    def __str__(self) -> str:
        """Say what differs from the defaults."""
        plain = AttentionCase(self.query_lens, self.seq_lens)
        parts = [f"{n}={v}" for n, v in vars(self).items() if v != getattr(plain, n)]
        return f"{list(self.query_lens)} of {list(self.seq_lens)} {' '.join(parts)}".strip()


def cases(*, block_size: int = 16, long: bool = False) -> Iterator[AttentionCase]:
    """Yield the grid for blocks of ``block_size`` positions; ``long`` adds prompts of 8,192 positions."""
    b = block_size
    edges = (1, b - 1, b, b + 1, 3 * b)
    decode = AttentionCase((1,) * 5, edges, b)
    prompts = AttentionCase(edges, edges, b)
    later = AttentionCase((3, 1, b, 2, 5), (3 * b, 1, 2 * b + 1, b + 1, b + 3), b)
    mixed = AttentionCase((1, 2 * b + 3, 1, 7), (4 * b + 1, 2 * b + 3, 1, 2 * b), b, padding=3)
    for case in (decode, prompts, later, mixed):
        yield case
        yield replace(case, heads=2)
        yield replace(case, heads=6, head_size=80)
        yield replace(case, kv_heads=1, head_size=128)
        for feature in ({"window": b + 3}, {"window": 1}, {"soft_cap": 1.0}, {"alibi": True}, {"sinks": True}):
            yield replace(case, **feature)
        yield replace(case, window=b + 3, soft_cap=1.0, alibi=True, sinks=True)
    yield AttentionCase((0, 1, 0), (0, 2, 5), b, padding=2)
    yield AttentionCase((1, 1), (0, 3), b, sinks=True)  # a request of a captured batch that is not there
    for head_size in (96, 192, 256):
        yield replace(mixed, head_size=head_size)
    for kv_dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        yield replace(mixed, kv_dtype=kv_dtype)
        yield replace(decode, kv_dtype=kv_dtype)
    yield AttentionCase((1, 1, 33), (8192, 8191, 1025), b, heads=8, head_size=128)
    if long:
        yield AttentionCase((33, 1), (8192, 8192), b, heads=8, head_size=128)
        yield AttentionCase((8192,), (8192,), b, heads=2, kv_heads=1)


class Step:
    """A case on a device: a layer, a cache whose unwritten slots are NaN, and the step's tensors.

    The cache lies between two blocks of no cache; rows of padding are NaN too, and beside them query, key and value
    are columns of one tensor. ``around`` is the memory of keys and values with these blocks, ``before`` what it held
    before the step.
    """

    def __init__(
        self, case: AttentionCase, backend: str | None, *, dtype: torch.dtype, device: str, seed: int = 0
    ) -> None:
        """Build the layer, write the positions before the step, and make the step.

        Raises: UnsupportedError if the backend does not take the case.
        """
        self.case, self.dtype = case, dtype
        self.generator = torch.Generator().manual_seed(seed)
        heads = case.heads
        with configure.set_current_config(OpdockConfig()):
            self.layer = Attention(
                heads,
                case.head_size,
                SCALE * case.head_size**-0.5,
                case.kv_heads,
                prefix="layer",
                sliding_window=case.window,
                logits_soft_cap=case.soft_cap,
                alibi_slopes=-torch.arange(1, heads + 1).float() / heads / 8 if case.alibi else None,
                sinks=self._random(heads, dtype=torch.float32) if case.sinks else None,
                attn_backend=backend,
            ).to(device)
        needed = [-(-n // case.block_size) for n in case.seq_lens]
        count = sum(needed) + 3
        self.cache = PagedKVCache(
            {"layer": self.layer},
            num_blocks=count,
            block_size=case.block_size,
            dtype=case.kv_dtype or dtype,
            model_dtype=dtype,
            device=device,
        )
        keys, values = (_with_nan(tensor) for tensor in self.cache.tensors["layer"])
        self.around, self.front = (keys[0], values[0]), keys[2]
        self.cache.tensors = MappingProxyType({"layer": (keys[1], values[1])})
        self.cache.bind()
        self.layer.k_scale.fill_(K_SCALE)  # without meaning for a cache of the model's dtype
        self.layer.v_scale.fill_(V_SCALE)
        order = torch.randperm(count, generator=self.generator).tolist()
        self.tables = [[order.pop() for _ in range(n)] for n in needed]
        self._write(device)
        self.metadata = self._metadata(list(case.query_lens), device)
        rows = self.metadata.num_tokens
        widths = [n * case.head_size for n in (heads, case.kv_heads, case.kv_heads)]
        joint = self._random(rows, sum(widths))
        joint[rows - case.padding :] = float("nan")
        made = joint.to(device).split(widths, dim=1)  # as a model's projection gives them
        self.query, self.key, self.value = made if case.padding else (part.contiguous() for part in made)
        self.before = tuple(whole.clone() for whole in self.around)

    def _random(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.randn(*shape, generator=self.generator).to(dtype or self.dtype)

    def _metadata(self, query_lens: list[int], device: str) -> AttentionMetadata:
        """Return the step's metadata; requests of no positions keep their rows, as in a captured batch."""
        case = self.case
        present = [min(new, total) for new, total in zip(query_lens, case.seq_lens, strict=True)]
        made = AttentionMetadata.build(
            query_lens=present,
            seq_lens=case.seq_lens,
            block_tables=self.tables,
            block_size=case.block_size,
            device=device,
            num_tokens=sum(query_lens) + case.padding,
        )
        if present == query_lens:
            return made
        starts = torch.tensor([0, *query_lens]).cumsum(0).int().to(device)
        slots = [
            slot
            for new, here, part in zip(query_lens, present, self._parts(made, present), strict=True)
            for slot in [*part, *[-1] * (new - here)]
        ] + [-1] * case.padding
        return replace(
            made,
            query_start_loc=starts,
            slot_mapping=torch.tensor(slots, device=device),
            max_query_len=max(query_lens),
            query_lens=None,
            context_lens=None,
        )

    @staticmethod
    def _parts(made: AttentionMetadata, lens: list[int]) -> list[list[int]]:
        return [part.tolist() for part in made.slot_mapping[: sum(lens)].split(lens)]

    def _write(self, device: str) -> None:
        """Write the positions before the step, in one step of their own."""
        case = self.case
        lens = [max(0, total - new) for new, total in zip(case.query_lens, case.seq_lens, strict=True)]
        if not sum(lens):
            return
        metadata = AttentionMetadata.build(
            query_lens=lens, seq_lens=lens, block_tables=self.tables, block_size=case.block_size, device=device
        )
        shape = (sum(lens), case.kv_heads, case.head_size)
        key, value = self._random(*shape).to(device), self._random(*shape).to(device)
        self.layer.impl.update_cache(key, value, *self.cache.tensors["layer"], metadata)

    def run(self) -> Tensor:
        """Return the layer's result, (rows, heads * head_size)."""
        with torch.inference_mode(), set_forward_context(self.metadata, self.cache):
            result: Tensor = self.layer(self.query, self.key, self.value)
        return result

    def run_into_nan(self) -> Tensor:
        """Return the backend's result over the cache as it is, in memory that held NaN; see ``run``."""
        rows, heads = self.query.shape[0], (self.case.heads, self.case.head_size)
        query = self.query.view(rows, *heads)
        key, value = (t.view(rows, self.case.kv_heads, heads[1]) for t in (self.key, self.value))
        output = torch.full((rows, *heads), float("nan"), dtype=self.dtype, device=self.query.device)
        with torch.inference_mode(), set_forward_context(self.metadata, self.cache):
            self.layer.impl.forward(query, key, value, *self.cache.tensors["layer"], self.metadata, output)
        return output.flatten(1)

    def expected(self) -> Tensor:
        """Return the formula's result in float64, from what the cache holds after the step."""
        case, layer = self.case, self.layer
        keys, values = self.cache.tensors["layer"]
        out = torch.zeros(self.query.shape, dtype=torch.float64, device=self.query.device)
        starts, rows = self.metadata.query_start_loc.tolist(), self.query.double().unflatten(-1, (case.heads, -1))
        for request, total in enumerate(case.seq_lens):
            start, end = starts[request], starts[request + 1]
            if end == start or not total:
                continue
            table, wide = self.metadata.block_table, torch.float64
            k = gather(keys, table, request, total, layer.k_scale, wide)
            v = gather(values, table, request, total, layer.v_scale, wide)
            result = attend(rows[start:end], k, v, layer.spec, alibi_slopes=layer.alibi_slopes, sinks=layer.sinks)
            out[start:end] = result.flatten(1)
        return out

    def fault_of_cache(self) -> str:
        """Return what is wrong with what the step wrote to the caches, "" if nothing is."""
        slots = self.metadata.slot_mapping.cpu()
        rows = torch.arange(len(slots))[slots >= 0]
        at = slots[rows] + self.front
        given = (self.key, self.value), (self.layer.k_scale, self.layer.v_scale)
        for name, new, scale, now, then in zip(("key", "value"), *given, self.around, self.before, strict=True):
            after = now.cpu().flatten(0, 1)
            others = torch.ones(len(after), dtype=torch.bool)
            others[at] = False
            changed = (_bits(after) != _bits(then.cpu().flatten(0, 1))).flatten(1).any(1) & others
            if bool(changed.any()):
                slot, most = int(changed.nonzero()[0]) - self.front, len(after) - 2 * self.front
                where = f"slot {slot}" if 0 <= slot < most else "memory beside the slots"
                return f"{where} of the {name} cache is written, and is none of this step's"
            held, want = _bits(after)[at].view(after.dtype).double(), new.cpu()[rows].double()
            want = want.view(held.shape)
            if now.dtype == new.dtype:
                wrong = held != want
            else:
                steps, factor = torch.finfo(now.dtype), float(scale)
                want = want.clamp(-steps.max * factor, steps.max * factor)
                allowed = want.abs() * steps.eps + steps.smallest_normal * steps.eps * factor
                wrong = ~((held * factor - want).abs() <= allowed)
            if bool(wrong.any()):
                row = int(rows[wrong.flatten(1).any(1).nonzero()[0]])
                return f"slot {int(slots[row])} of the {name} cache does not hold the {name} of row {row}"
        return ""


def _bits(tensor: Tensor) -> Tensor:
    """Return a view whose equal elements have equal bits: NaN is equal to itself."""
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(integers[tensor.dtype.itemsize])


def _with_nan(like: Tensor) -> tuple[Tensor, Tensor, int]:
    """Return memory full of NaN, a cache inside it, and the slots in front of that.

    A block lies at each end of the cache, where a tensor is a piece of memory.
    """
    try:
        room = int(like.data_ptr() != 0)
    except RuntimeError:
        room = 0
    whole = torch.empty(like.shape[0] + 2 * room, *like.shape[1:], dtype=like.dtype, device=like.device)
    if whole.dtype.itemsize == 1:
        whole.view(torch.uint8).fill_(int(torch.full((), float("nan")).to(like.dtype).view(torch.uint8)))
    else:
        whole.fill_(float("nan"))
    return whole, whole[1:-1] if room else whole, room * like.shape[1]


def judge(case: AttentionCase, backend: str | None, *, dtype: torch.dtype, device: str) -> str:
    """Return what is wrong with a backend's result of a case, "" if nothing is."""
    step = Step(case, backend, dtype=dtype, device=device)
    inputs = [(t, t.clone()) for t in (step.query, step.key, step.value, step.metadata.seq_lens)]
    results = {"": step.run().double()}
    fault = step.fault_of_cache()  # first: what is expected follows from the cache
    if fault:
        return fault
    results["forward() into memory that held NaN: "] = step.run_into_nan().double()
    fault = step.fault_of_cache()
    if fault:
        return f"forward() alone: {fault}"
    if any(not torch.equal(_bits(now.cpu()), _bits(then.cpu())) for now, then in inputs):
        return "a tensor that it is given is changed"
    want = step.expected()
    if not bool(want.isfinite().all()):
        return "positions before the step are not where the block table says that they are"
    for how, got in results.items():
        if not bool(got.isfinite().all()):
            return f"{how}{int((~got.isfinite()).sum())} values are NaN or infinite"
        error = float((got - want).abs().max()) if got.numel() else 0.0
        limit = TOLERANCES[dtype]
        if error > limit:
            return f"{how}largest error {error:.3g} against float64, {limit:.3g} is allowed"
    return ""
