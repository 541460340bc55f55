"""Keys and values in blocks that requests are given as they grow."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from opdock.errors import ConfigError, OpdockError, OrderError, UnsupportedError

if TYPE_CHECKING:
    from opdock.nn.attention.attention import Attention

_log = logging.getLogger("opdock")
KV_CACHE_DTYPES: Mapping[torch.dtype, str] = MappingProxyType(
    {
        torch.float16: "float16",
        torch.bfloat16: "bfloat16",
        torch.float32: "float32",
        torch.float64: "float64",
        torch.float8_e4m3fn: "fp8_e4m3",
        torch.float8_e4m3fnuz: "fp8_e4m3",
        torch.float8_e5m2: "fp8_e5m2",
    }
)
"""What a cache may hold, and how backends name it."""

FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2)
"""What a quantised cache may hold."""


class CacheMemoryError(OpdockError, MemoryError):
    """There is no memory for a paged cache; the message says how much it takes."""


class BlockAllocator:
    """Which blocks of a cache are free.

    Args:
        num_blocks: blocks of the cache, numbered from 0.
    """

    def __init__(self, num_blocks: int) -> None:
        """Begin with all blocks free."""
        self.num_blocks = num_blocks
        self._free = deque(range(num_blocks))
        self._taken: set[int] = set()

    @property
    def num_free(self) -> int:
        """Number of free blocks."""
        return len(self._free)

    def allocate(self, count: int = 1) -> list[int]:
        """Return ``count`` blocks that nobody else has.

        Raises: ConfigError for a number below 0; UnsupportedError, and none is taken, if fewer are free.
        """
        if count < 0:
            raise ConfigError(f"{count} blocks cannot be allocated.", remedy="use a number from 0.")
        if count > len(self._free):
            raise UnsupportedError(
                f"The cache has {len(self._free)} free blocks of {self.num_blocks}, and {count} are needed.",
                remedy="free the blocks of finished requests, or allocate a cache of more blocks.",
            )
        found = [self._free.popleft() for _ in range(count)]
        self._taken.update(found)
        return found

    def free(self, blocks: Iterable[int]) -> None:
        """Take blocks back; ConfigError, and nothing changed, for one that is not taken."""
        given = list(blocks)
        wrong = [b for b in given if b not in self._taken]
        if wrong or len(set(given)) != len(given):
            raise ConfigError(
                f"Block {wrong[0] if wrong else given} cannot be freed.",
                why="It is not taken." if wrong else "One of them is named twice.",
                remedy="free each block that allocate() returned once.",
            )
        self._taken.difference_update(given)
        self._free.extend(given)

    def extend(self, blocks: list[int], positions: int, block_size: int) -> None:
        """Append blocks to a request's list until it holds ``positions`` positions."""
        missing = -(-positions // block_size) - len(blocks)
        if missing > 0:
            blocks += self.allocate(missing)


class PagedKVCache:
    """The keys and values of all attention layers of a model, in blocks shared by all requests.

    Per layer two tensors (num_blocks, block_size, num_kv_heads, head_size), uninitialised. A block belongs to one
    request, and to no layer: its number is that of the same place in every layer.

    Args:
        layers: the attention layers by name, see ``attention_layers``.
        num_blocks: number of blocks.
        block_size: positions of a block, from 1; kernels want a multiple of 16.
        dtype: of the tensors; an 8-bit float is written over the layer's scales. None takes torch's default.
        model_dtype: of the queries; None: that of the cache, or torch's default beside an 8-bit cache.
        device: None takes torch's default.

    Raises: ConfigError for sizes below 1 and a dtype that is none of a cache; UnsupportedError, naming the layer, if
        no attention backend takes such a cache; CacheMemoryError where there is no memory for it.
    """

    def __init__(
        self,
        layers: Mapping[str, Attention],
        *,
        num_blocks: int,
        block_size: int = 16,
        dtype: torch.dtype | None = None,
        model_dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        """Allocate."""
        if num_blocks < 1 or block_size < 1:
            raise ConfigError(
                f"A cache of {num_blocks} blocks of {block_size} positions is not possible.",
                remedy="use numbers from 1.",
            )
        self.num_blocks, self.block_size = num_blocks, block_size
        self.dtype = torch.get_default_dtype() if dtype is None else dtype
        if self.dtype not in KV_CACHE_DTYPES:
            what = f"A cache cannot hold {self.dtype!r}."
            raise ConfigError(what, remedy=f"use a dtype of torch: {', '.join(map(str, KV_CACHE_DTYPES))}.")
        wide = torch.get_default_dtype() if self.dtype in FP8_DTYPES else self.dtype
        self.model_dtype = wide if model_dtype is None else model_dtype
        self.layers: Mapping[str, Attention] = MappingProxyType(dict(layers))
        for layer in layers.values():
            layer.check_cache(self.dtype, block_size, self.model_dtype)
        self.tensors: Mapping[str, tuple[Tensor, Tensor]] = MappingProxyType(self._allocate(device))
        self.allocator = BlockAllocator(num_blocks)

    def _allocate(self, device: torch.device | str | None) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the tensors of each layer; CacheMemoryError, with the numbers, where there is no memory for them."""
        made: dict[str, tuple[Tensor, Tensor]] = {}
        try:
            for name, layer in self.layers.items():
                shape = (self.num_blocks, self.block_size, layer.num_kv_heads, layer.head_size)
                key, value = (torch.empty(shape, dtype=self.dtype, device=device) for _ in range(2))
                made[name] = key, value
        except RuntimeError as err:
            numbers = sum(2 * layer.num_kv_heads * layer.head_size for layer in self.layers.values())
            block = numbers * self.block_size * self.dtype.itemsize
            size = f"{self.num_blocks * block / 2**30:,.1f} GiB, {block / 2**10:,.1f} KiB for each block"
            raise CacheMemoryError(
                f"There is no memory for a cache of {self.num_blocks} blocks of {self.block_size} positions.",
                why=[
                    f"They take {size} in {len(self.layers)} layers of {self.dtype}.",
                    str(err).strip().partition("\n")[0],
                ],
                remedy="use a smaller num_blocks; a batch takes fewer with a smaller max_len or max_requests.",
            ) from err
        return made

    @classmethod
    def for_model(
        cls,
        model: nn.Module,
        *,
        num_blocks: int,
        block_size: int = 16,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> PagedKVCache:
        """Return a cache for a model, bound to it; dtype and device default to those of its first parameter."""
        first = next(model.parameters(), None)
        model_dtype = None if first is None else first.dtype
        cache = cls(
            attention_layers(model),
            num_blocks=num_blocks,
            block_size=block_size,
            dtype=dtype or model_dtype,
            model_dtype=model_dtype,
            device=device or (None if first is None else first.device),
        )
        cache.bind()
        return cache

    def bind(self) -> None:
        """Make the layers use this cache from now on; they take the paged path whenever no other cache is given.

        Where one of them raises, none of them uses it.
        """
        self._say_scales_are_missing()
        try:
            for name, layer in self.layers.items():
                layer.bind_cache(*self.tensors[name], self.model_dtype)
        except BaseException:
            self.unbind()
            raise

    def _say_scales_are_missing(self) -> None:
        """Warn, once, of layers whose scales nobody gave, where a cache holds no large numbers without."""
        if self.dtype not in FP8_DTYPES or self.dtype == torch.float8_e5m2:
            return
        untold = [(name, layer) for name, layer in self.layers.items() if not layer.told_of_scales]
        without = [name for name, layer in untold if bool((layer.k_scale == 1) & (layer.v_scale == 1))]
        for name in without:
            self.layers[name].told_of_scales = True
        if without:
            _log.warning(
                "%d of %d attention layers (%s first) have no scales for their cache of %s: keys and values beyond %g "
                "are cut off. A checkpoint may hold scales; opdock.nn.attention.calculate_kv_scales finds them.",
                len(without),
                len(self.layers),
                without[0],
                self.dtype,
                torch.finfo(self.dtype).max,
            )

    def unbind(self) -> None:
        """Let the layers forget the cache; one that was bound to another cache since goes on with that."""
        for name, layer in self.layers.items():
            if layer.key_cache is self.tensors[name][0]:
                layer.unbind_cache()

    def require_bound(self) -> None:
        """Raise OrderError, with the layer's name, unless all layers use this cache."""
        for name, layer in self.layers.items():
            if layer.key_cache is not self.tensors[name][0]:
                raise not_bound(name, layer)


def require_fp8(kv_dtype: torch.dtype) -> None:
    """Raise ConfigError unless a cache of this dtype has scales."""
    if kv_dtype not in FP8_DTYPES:
        remedy = f"use one of {', '.join(map(str, FP8_DTYPES))}."
        raise ConfigError(f"A cache of {kv_dtype!r} has no scales.", remedy=remedy)


def not_bound(name: str, layer: Attention) -> OrderError:
    """Return the error for a layer that does not use the cache of the step."""
    if layer.key_cache is None:
        return OrderError(
            "A step over a paged cache was begun, and a layer does not use it.",
            who=f"layer {name}",
            why="No cache is bound to it: it would take all tokens of the step for one sequence.",
            remedy="call bind() of the cache first.",
        )
    return OrderError(
        "A step over a paged cache was begun, and a layer uses another one.",
        who=f"layer {name}",
        why="Another cache was bound to it since: blocks and slots of the step are none of that.",
        remedy="call bind() of the step's cache, or go on with the other one.",
    )


def attention_layers(model: nn.Module) -> dict[str, Attention]:
    """Return the attention layers of a model by their ``prefix``, or by their path where they have none.

    Raises: ConfigError if two have one name.
    """
    from opdock.nn.attention.attention import Attention

    found: dict[str, Attention] = {}
    for path, module in model.named_modules():
        if not isinstance(module, Attention):
            continue
        name = module.prefix or path
        if name in found:
            raise ConfigError(
                f"Duplicate layer name: {name}",
                why="Two attention layers would share one cache.",
                remedy="give each layer the prefix of its place in the model.",
            )
        module.prefix = name
        found[name] = module
    return found


def copy_blocks(caches: Sequence[tuple[Tensor, Tensor]], block_mapping: Tensor) -> None:
    """Copy whole blocks inside each cache.

    Args:
        caches: key and value cache of each layer; both are written.
        block_mapping: (pairs, 2) integers, source and destination; no destination may be a source or come twice.

    Raises: ConfigError for a mapping that breaks this, where it lies on the host.
    """
    blocks = min((cache.shape[0] for pair in caches for cache in pair), default=0)
    source, destination = _checked(block_mapping, blocks, blocks, one_cache=True).unbind(1)
    for pair in caches:
        for cache in pair:
            raw = cache.view(torch.uint8) if cache.dtype in FP8_DTYPES else cache
            raw.index_copy_(0, destination.to(cache.device), raw.index_select(0, source.to(cache.device)))


def swap_blocks(source: Tensor, destination: Tensor, block_mapping: Tensor) -> None:
    """Copy whole blocks from one cache tensor to another, for example from device to host.

    Args:
        source: (num_blocks, block_size, num_kv_heads, head_size).
        destination: likewise with its own number of blocks; written.
        block_mapping: (pairs, 2) integers: block of source, block of destination.

    Raises: ConfigError if blocks of the two differ in shape or dtype, and for a mapping on the host that names a block
        that is not there, or a destination twice.
    """
    if source.shape[1:] != destination.shape[1:] or source.dtype != destination.dtype:
        raise ConfigError(
            "Blocks of two different caches cannot be swapped.",
            why=[
                f"source:      {tuple(source.shape)}, {source.dtype}",
                f"destination: {tuple(destination.shape)}, {destination.dtype}",
            ],
            remedy="allocate both caches with one block size, dtype and number of heads.",
        )
    pairs = _checked(block_mapping, source.shape[0], destination.shape[0])
    if source.dtype in FP8_DTYPES:
        source, destination = source.view(torch.uint8), destination.view(torch.uint8)
    moved = source.index_select(0, pairs[:, 0].to(source.device))
    destination.index_copy_(0, pairs[:, 1].to(destination.device), moved.to(destination.device))


def _checked(mapping: Tensor, sources: int, destinations: int, *, one_cache: bool = False) -> Tensor:
    """Return a mapping as int64; ConfigError for another shape, and where it can be read, for blocks that cannot be."""
    why, dtype = "", getattr(mapping, "dtype", None)
    if dtype is None or dtype.is_floating_point or dtype.is_complex:
        why = f"It is a {type(mapping).__name__} of {dtype}." if dtype else f"It is a {type(mapping).__name__}."
    elif mapping.dim() != 2 or mapping.shape[1] != 2:
        why = f"Its shape is {tuple(mapping.shape)}."
    elif mapping.device.type == "cpu":
        pairs = mapping.tolist()
        wrong = [(s, d) for s, d in pairs if not (0 <= s < sources and 0 <= d < destinations)]
        written = [d for _, d in pairs]
        if wrong:
            why = f"{wrong[0]}: the blocks are 0 to {sources - 1}, and 0 to {destinations - 1}."
        elif len({*written}) != len(written):
            why = "A block is written twice."
        elif one_cache and {*written} & {s for s, _ in pairs}:
            why = "A block is read and written."
    if why:
        raise ConfigError(
            "The mapping of blocks cannot be carried out.",
            why=why,
            remedy="give pairs of a source and a destination of its own, a tensor of integers of shape (pairs, 2).",
        )
    return mapping.long()
