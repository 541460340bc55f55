"""Attention by FlashInfer, over the paged cache as it is: ``attn_backend="FLASHINFER"``.

One wrapper serves prompts, prompts with a prefix, single tokens and mixed steps. FlashInfer plans a step on the host;
the plan is kept for all layers of that step. Its kernels ``fa2`` are taken, from compute capability 8.0 on.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from opdock.errors import UnsupportedError
from opdock.nn.attention import AttentionImpl, AttentionMetadata, MultipleOf
from opdock_cuda.optional_attention import Library, LibraryBackend, LibraryImpl, lens_of

if TYPE_CHECKING:
    from opdock.nn.attention import Attention, AttentionSpec

NAME = "FLASHINFER"
LIBRARY = Library("flashinfer", "flashinfer-python", (0, 6))
KERNELS = "fa2"
NO_CAPTURE = "FlashInfer plans each step on the host: replays would keep the lengths of the captured step."
_SMALLEST_WORKSPACE = 128 << 20
_TILE = 128  # query rows of a program, at most
Call = tuple[tuple[Any, ...], dict[str, Any]]


class Shape(NamedTuple):
    """What a plan is made for, beside a step: the numbers of a layer, its dtype, and positions of a block."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float
    window: int | None
    soft_cap: float | None
    dtype: torch.dtype
    block_size: int

    @classmethod
    def of(cls, spec: AttentionSpec, dtype: torch.dtype, block_size: int) -> Shape:
        """Return that of a layer."""
        heads = spec.num_heads, spec.num_kv_heads, spec.head_size
        return cls(*heads, spec.scale, spec.sliding_window, spec.logits_soft_cap, dtype, block_size)

    def workspace(self, processors: int) -> int:
        """Return the bytes for partial results: two programs for each processor, their rows for a group of heads."""
        rows = 2 * processors * _TILE * self.num_heads // self.num_kv_heads
        return max(_SMALLEST_WORKSPACE, rows * (self.head_size + 1) * 4 + (1 << 20))


@dataclass(frozen=True)
class Pages:
    """The requests of a step that have new tokens and positions, as FlashInfer counts them; all on the host.

    Attributes:
        query_starts: (requests + 1,) int32, rows of the queries.
        page_starts: (requests + 1,) int32, blocks.
        last_page: (requests,) int32, positions in the last block of each.
        places: (blocks,) int64, where the blocks stand in the block table, row by row.
        rows: (tokens,) int64, their rows among those of the step; None: the first ones.
    """

    query_starts: Tensor
    page_starts: Tensor
    last_page: Tensor
    places: Tensor
    rows: Tensor | None

    @classmethod
    def of(cls, query_lens: list[int], seq_lens: list[int], block_size: int, columns: int) -> Pages | None:
        """Return them for a block table of so many columns; None: there are none."""
        starts, pages, last = [0], [0], []
        places: list[Tensor] = []
        rows: list[Tensor] = []
        row, gap = 0, False
        for request, (new, total) in enumerate(zip(query_lens, seq_lens, strict=True)):
            if new and total:
                blocks = -(-total // block_size)
                starts.append(starts[-1] + new)
                pages.append(pages[-1] + blocks)
                last.append(total - (blocks - 1) * block_size)
                places.append(torch.arange(request * columns, request * columns + blocks))
                rows.append(torch.arange(row, row + new))
                gap = gap or row + new != starts[-1]
            row += new
        if not last:
            return None
        query_starts, page_starts, last_page = (torch.tensor(n, dtype=torch.int32) for n in (starts, pages, last))
        return cls(query_starts, page_starts, last_page, torch.cat(places), torch.cat(rows) if gap else None)

    @property
    def tokens(self) -> int:
        """Number of rows."""
        return int(self.query_starts[-1])


def wrapper_call(workspace: Tensor) -> Call:
    """Return the arguments of ``BatchPrefillWithPagedKVCacheWrapper``."""
    return (workspace,), {"kv_layout": "NHD", "backend": KERNELS}


def plan_call(pages: Pages, blocks: Tensor, shape: Shape) -> Call:
    """Return the arguments of its ``plan``; blocks (blocks,) int32 are those of the requests, one after the other."""
    return (pages.query_starts, pages.page_starts, blocks, pages.last_page), {
        "num_qo_heads": shape.num_heads,
        "num_kv_heads": shape.num_kv_heads,
        "head_dim_qk": shape.head_size,
        "page_size": shape.block_size,
        "causal": True,
        "sm_scale": shape.scale,
        "window_left": -1 if shape.window is None else shape.window - 1,
        "logits_soft_cap": shape.soft_cap or 0.0,
        "q_data_type": shape.dtype,
        "kv_data_type": shape.dtype,
    }


def run_call(query: Tensor, key_cache: Tensor, value_cache: Tensor, output: Tensor) -> Call:
    """Return the arguments of its ``run``."""
    return (query, (key_cache, value_cache)), {"out": output}


@dataclass
class Plan:
    """A wrapper, and the step that it is planned for."""

    wrapper: Any
    step: weakref.ref[AttentionMetadata] | None = None
    pages: Pages | None = None
    rows: Tensor | None = None
    copied: Any = field(default=None)

    def follow(self, step: AttentionMetadata, shape: Shape, device: torch.device) -> None:
        """Plan the step, unless it is planned."""
        known = step.query_lens is not None
        if known and self.step is not None and self.step() is step:
            return
        self.step = None
        columns = step.block_table.shape[1]
        self.pages = pages = Pages.of(*lens_of(step), shape.block_size, columns)
        if pages is not None:
            blocks = step.block_table.flatten().index_select(0, pages.places.to(device))
            self.rows = None if pages.rows is None else pages.rows.to(device)
            if self.copied is not None:
                self.copied.synchronize()  # the last plan is copied from the memory that the next one is written to
            args, options = plan_call(pages, blocks, shape)
            self.wrapper.plan(*args, **options)
            if device.type == "cuda":
                self.copied = torch.cuda.Event()
                self.copied.record()
        self.step = weakref.ref(step)


class _Plans(threading.local):
    """The plans of this thread, by device, stream and shape."""

    def __init__(self) -> None:
        self.plans: dict[tuple[Any, ...], Plan] = {}
        self.workspaces: dict[tuple[Any, ...], Tensor] = {}

    def of(self, library: ModuleType, shape: Shape, device: torch.device) -> Plan:
        on_gpu = device.type == "cuda"
        stream = torch.cuda.current_stream(device).cuda_stream if on_gpu else 0
        place = (library, device, stream, shape)
        found = self.plans.get(place)
        if found is None:
            processors = torch.cuda.get_device_properties(device).multi_processor_count if on_gpu else 1
            size = shape.workspace(processors)
            piece = (device, stream, size)
            memory = self.workspaces.get(piece)
            if memory is None:
                memory = self.workspaces[piece] = torch.empty(size if on_gpu else 16, dtype=torch.uint8, device=device)
            args, options = wrapper_call(memory)
            found = Plan(library.BatchPrefillWithPagedKVCacheWrapper(*args, **options))
            self.plans[place] = found
        return found


_plans = _Plans()


class FlashInferImpl(LibraryImpl):
    """One plan for a step, and one call of FlashInfer for a layer."""

    def __init__(self, spec: AttentionSpec, layer: Attention) -> None:
        """Import FlashInfer."""
        super().__init__(spec, layer)
        self._library = LIBRARY.load(layer.prefix)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        metadata: AttentionMetadata,
        output: Tensor,
    ) -> None:
        """Plan the step if it is a new one, and run; see the base.

        Raises: UnsupportedError while a CUDA graph is captured.
        """
        if query.is_cuda and torch.cuda.is_current_stream_capturing():
            raise UnsupportedError(
                f"{NAME} cannot be captured in a CUDA graph.",
                who=f"layer {self.layer.prefix}",
                why=NO_CAPTURE,
                remedy="use CUDA_ATTN or TRITON_ATTN for what is captured.",
            )
        shape = Shape.of(self.spec, query.dtype, key_cache.shape[1])
        plan = _plans.of(self._library, shape, query.device)
        plan.follow(metadata, shape, query.device)
        if plan.pages is None:
            output.zero_()
            return
        tokens = plan.pages.tokens
        if plan.rows is None:
            args, options = run_call(query[:tokens], key_cache, value_cache, output[:tokens])
            plan.wrapper.run(*args, **options)
            output[tokens:].zero_()
            return
        found = torch.empty(tokens, *output.shape[1:], dtype=output.dtype, device=output.device)
        args, options = run_call(query.index_select(0, plan.rows), key_cache, value_cache, found)
        plan.wrapper.run(*args, **options)
        output.zero_().index_copy_(0, plan.rows, found)


class FlashInferBackend(LibraryBackend):
    """Causal attention, with sliding window and soft cap; blocks of any size, heads of 64, 128 or 256."""

    library: ClassVar[Library] = LIBRARY
    because: ClassVar[dict[str, str]] = {
        "head_size not supported": "64, 128 and 256 are",
        "dtype not supported": "float16 and bfloat16 are",
        "kv_cache_dtype not supported": "the cache must hold the dtype of the queries",
        "compute capability not supported": "8.0 and later are",
        "attention sinks not supported": "FlashInfer's kernels for them are of another kind",
        "ALiBi not supported": "FlashInfer has slopes of its own and takes none",
        "batch invariance not supported": "its splits follow the batch",
    }

    @staticmethod
    def get_name() -> str:
        """Return its name."""
        return NAME

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl]:
        """Return what computes."""
        return FlashInferImpl

    @classmethod
    def why_no_capture(cls) -> str | None:
        """Return why a step cannot be captured in a graph."""
        return NO_CAPTURE

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[int | MultipleOf]:
        """Return any."""
        return [MultipleOf(1)]

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        """Return those of its kernels."""
        return [64, 128, 256]

    @classmethod
    def supports_features(cls, *, alibi: bool, soft_cap: bool) -> str | None:
        """Return what is missing: ALiBi."""
        return "ALiBi not supported" if alibi else None
