"""Causal attention: over a contiguous cache of sequences of one length, or over a paged cache of requests."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from opdock import context, env
from opdock.errors import ConfigError, RegistrationError
from opdock.nn.attention import ops  # noqa: F401 - defines the torch ops
from opdock.nn.attention.backend import AttentionBackend
from opdock.nn.attention.dense import attend, attend_by_rows
from opdock.nn.attention.forward_context import get_forward_context
from opdock.nn.attention.impl import AttentionImpl, AttentionSpec
from opdock.nn.attention.kv_cache import LayerCache
from opdock.nn.attention.paged_cache import require_fp8
from opdock.nn.attention.selector import choose_for_layer, resolve_backend
from opdock.nn.invariant import in_force
from opdock.registry import PluggableLayer


@PluggableLayer.register("attention")
class Attention(PluggableLayer):
    """softmax(scale * q @ k.T + causal mask) @ v for each head; groups of query heads share keys and values.

    Shapes: query (num_tokens, num_heads * head_size); key and value (num_tokens, num_kv_heads * head_size);
    num_tokens is batch * new positions, sequence by sequence, or all rows of a step; returns like query.

    Args:
        num_heads: query heads.
        head_size: length of a head.
        scale: multiplies the scores, no unit, normally head_size ** -0.5.
        num_kv_heads: key and value heads, a divisor of num_heads; None: as many.
        prefix: the layer's path in its model, by which a step finds it.
        sliding_window: positions that a token sees, itself included; None: all before it.
        logits_soft_cap: scores become cap * tanh(score / cap); None or 0: they stay.
        alibi_slopes: (num_heads,) float32; slope * (key position - query position) is added to the scores.
        sinks: (num_heads,); a logit of each head that takes part in the softmax and has no value.
        attn_backend: name of a backend, which then must fit; None: the first that fits.

    Attributes:
        k_scale: one float32; an 8-bit cache holds keys over it.
        v_scale: likewise for values.

    Raises: ConfigError if the numbers of heads do not divide, or a feature's numbers do not fit; UnknownNameError
        for a backend that is not there, UnsupportedError for one that cannot be loaded.
    """

    alibi_slopes: Tensor | None
    sinks: Tensor | None
    k_scale: Tensor
    v_scale: Tensor

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        prefix: str = "",
        *,
        sliding_window: int | None = None,
        logits_soft_cap: float | None = None,
        alibi_slopes: Tensor | None = None,
        sinks: Tensor | None = None,
        attn_backend: str | None = None,
    ) -> None:
        """Keep the numbers."""
        super().__init__()
        self.num_heads, self.head_size, self.scale, self.prefix = num_heads, head_size, scale, prefix
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if num_heads < 1 or self.num_kv_heads < 1 or num_heads % self.num_kv_heads:
            raise ConfigError(
                f"{num_heads} query heads cannot share {self.num_kv_heads} key and value heads.",
                who=f"layer {prefix}" if prefix else (),
                remedy="use a number of key and value heads that divides the number of query heads.",
            )
        if head_size < 1 or not math.isfinite(scale):
            raise ConfigError(
                f"Heads of {head_size} numbers with the scale {scale} are not possible.",
                who=f"layer {prefix}" if prefix else (),
                remedy="use a head_size from 1, and a finite scale, for example head_size**-0.5.",
            )
        self.group = num_heads // self.num_kv_heads
        _check_features(prefix, num_heads, sliding_window, logits_soft_cap, alibi_slopes, sinks)
        if attn_backend is not None:
            resolve_backend(attn_backend, who=f"layer {prefix}")
        self.attn_backend = attn_backend
        self.spec = AttentionSpec(
            num_heads=num_heads,
            num_kv_heads=self.num_kv_heads,
            head_size=head_size,
            scale=scale,
            sliding_window=sliding_window,
            logits_soft_cap=logits_soft_cap or None,
            has_alibi=alibi_slopes is not None,
            has_sinks=sinks is not None,
        )
        self.register_buffer("alibi_slopes", alibi_slopes, persistent=False)
        self.register_buffer("sinks", sinks, persistent=False)
        self.register_buffer("k_scale", torch.ones((), dtype=torch.float32), persistent=False)
        self.register_buffer("v_scale", torch.ones((), dtype=torch.float32), persistent=False)
        self.told_of_scales = False  # whether the log says that an 8-bit cache lacks them
        self.platform = context.platform()
        self._direct = not self.platform.opaque_attention_op()
        self.backend: type[AttentionBackend] | None = None
        self._impl: AttentionImpl | None = None
        self.key_cache: Tensor | None = None
        self.value_cache: Tensor | None = None

    @property
    def served_by(self) -> str:
        """The name of the backend that runs, or ``contiguous`` without a paged cache."""
        return "contiguous" if self.backend is None else self.backend.get_name()

    @property
    def impl(self) -> AttentionImpl:
        """What computes over the paged cache.

        Raises: ConfigError while no cache is bound.
        """
        if self._impl is None:
            raise ConfigError(
                f"The attention layer {self.prefix!r} has no paged cache.", remedy="call bind() of the cache first."
            )
        return self._impl

    def check_cache(self, kv_dtype: torch.dtype, block_size: int, dtype: torch.dtype) -> type[AttentionBackend]:
        """Return the backend for caches of ``kv_dtype`` and queries of ``dtype``.

        Raises: UnsupportedError, with all reasons, if the one asked for does not fit, or none does.
        """
        return choose_for_layer(
            self.spec,
            dtype=dtype,
            kv_dtype=kv_dtype,
            block_size=block_size,
            backend=self.attn_backend,
            platform=self.platform,
            device_type=self.k_scale.device.type,
            layer_name=self.prefix,
        )

    def bind_cache(self, key_cache: Tensor, value_cache: Tensor, dtype: torch.dtype) -> None:
        """Use these tensors (num_blocks, block_size, num_kv_heads, head_size) as paged cache from now on.

        Args:
            key_cache: not copied.
            value_cache: likewise.
            dtype: of the queries.
        """
        shape = (self.num_kv_heads, self.head_size)
        if key_cache.shape != value_cache.shape or key_cache.dim() != 4 or tuple(key_cache.shape[2:]) != shape:
            raise ConfigError(
                f"The cache does not fit the attention layer {self.prefix!r}.",
                why=[
                    f"the layer: heads and head size {shape}",
                    f"the cache: keys {tuple(key_cache.shape)}, values {tuple(value_cache.shape)}",
                ],
                remedy="allocate it for this layer.",
            )
        backend = self.check_cache(key_cache.dtype, key_cache.shape[1], dtype)
        spec = dataclasses.replace(self.spec, batch_invariant=env.batch_invariant())
        impl: object = backend.get_impl_cls()
        if not (isinstance(impl, type) and issubclass(impl, AttentionImpl)):
            raise RegistrationError(
                f"get_impl_cls() of {backend.get_name()} returns {impl!r}, which computes nothing.",
                who=[f"layer {self.prefix}", f"{backend.__module__}.{backend.__qualname__}"],
                remedy="subclass opdock.nn.attention.AttentionImpl.",
            )
        self._impl = impl(spec, self)
        self.backend = backend
        self.key_cache, self.value_cache = key_cache, value_cache

    def unbind_cache(self) -> None:
        """Forget the paged cache."""
        self.backend = self._impl = self.key_cache = self.value_cache = None

    def calculate_kv_scales(self, key: Tensor, value: Tensor, kv_dtype: torch.dtype) -> None:
        """Set the scales so that the largest of these keys and values is the largest number of an 8-bit cache.

        For a checkpoint without scales: once, from the keys and values of a text, before anything is in the cache.

        Args:
            key: of any shape.
            value: of any shape.
            kv_dtype: of the cache.

        Raises: ConfigError, with the layer's name, for NaN and infinite numbers, none at all, and another dtype.
        """
        require_fp8(kv_dtype)
        limit = torch.finfo(kv_dtype).max
        for scale, tensor in ((self.k_scale, key), (self.v_scale, value)):
            largest = tensor.detach().abs().amax().float() if tensor.numel() else torch.tensor(float("nan"))
            if not bool(largest.isfinite()):
                raise ConfigError(
                    "Keys and values with NaN or infinite numbers, or none at all, give no scale.",
                    who=f"layer {self.prefix}",
                    remedy="take those of a text that the model can compute.",
                )
            scale.copy_(torch.where(largest > 0, largest / limit, torch.ones_like(largest)))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Attention:  # noqa: FBT001, FBT002
        """Move as a module does; scales stay float32, and keep their bits, when the model's dtype changes."""
        kept = {name: getattr(self, name) for name in ("k_scale", "v_scale")}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, scale in kept.items():
            moved = getattr(self, name)
            if moved.dtype != scale.dtype:
                setattr(self, name, scale.to(moved.device))
        return self

    def forward(self, query: Tensor, key: Tensor, value: Tensor, cache: LayerCache | None = None) -> Tensor:
        """Attend to the cached positions and to those before and at each new one; append to the cache.

        With a paged cache bound, and none given, the tokens are those of the step in force: see
        ``set_forward_context``. Without any cache, all tokens are one sequence from its beginning.
        """
        if cache is None and self.key_cache is not None:
            return self._paged(query, key, value)
        batch, past = (1, 0) if cache is None else (cache.batch, cache.length)
        new = query.shape[0] // batch
        heads = (batch, new, self.num_kv_heads, self.head_size)
        k, v = key.view(heads).transpose(1, 2), value.view(heads).transpose(1, 2)
        if cache is not None:
            k, v = cache.append(k, v)
        if not self.spec.plain or in_force():
            return self._featured(query, k, v, batch)
        if new == 1:
            # query heads of a group see the same keys: as rows of one matrix they need no mask and no copies
            q = query.reshape(batch, self.num_kv_heads, self.group, self.head_size)
            out = F.scaled_dot_product_attention(q, k, v, scale=self.scale)
            return out.reshape(batch, self.num_heads * self.head_size)
        q = query.view(batch, new, self.num_heads, self.head_size).transpose(1, 2)
        mask = None
        if past:
            mask = torch.ones(new, past + new, dtype=torch.bool, device=q.device).tril(past)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=self.scale, enable_gqa=self.group > 1
        )
        return out.transpose(1, 2).reshape(batch * new, self.num_heads * self.head_size)

    def _paged(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend to the requests of the step: in one op where this is traced, else directly."""
        q = query.view(-1, self.num_heads, self.head_size)
        k = key.view(-1, self.num_kv_heads, self.head_size)
        v = value.view(-1, self.num_kv_heads, self.head_size)
        if self._direct and not torch.compiler.is_compiling() and not torch._C._len_torch_dispatch_stack():
            return self._now(q, k, v).view(query.shape)
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        together = self.backend is None or self.backend.forward_includes_kv_cache_update
        if not together:
            torch.ops.opdock.unified_kv_cache_update(k, v, self.key_cache, self.value_cache, self.prefix)
        torch.ops.opdock.unified_attention_with_output(
            q, k, v, output.view(q.shape), self.prefix, self.key_cache, self.value_cache, update_cache=together
        )
        return output

    def _now(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Do what the op does, without it."""
        key_cache, value_cache, impl = self.key_cache, self.value_cache, self.impl
        if key_cache is None or value_cache is None:
            raise ConfigError(f"The attention layer {self.prefix!r} has no paged cache.", remedy="call bind().")
        if not q.shape[0] == k.shape[0] == v.shape[0]:
            raise self.wrong_rows(q, k, v)
        _, metadata = get_forward_context().step(self.prefix, q.shape[0], key_cache)
        impl.update_cache(k, v, key_cache, value_cache, metadata)
        whole = impl.prompts_alone(q, k, v, metadata)
        if whole is not None:
            return whole
        output = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        impl.forward(q, k, v, key_cache, value_cache, metadata, output)
        return output

    def wrong_rows(self, query: Tensor, key: Tensor, value: Tensor) -> ConfigError:
        """Return the error for queries, keys and values that are not one of each for every token."""
        rows = [tensor.shape[0] for tensor in (query, key, value)]
        return ConfigError(
            f"{rows[0]} queries, {rows[1]} keys and {rows[2]} values are not one of each for every token.",
            who=f"layer {self.prefix}",
            why=f"A token has {self.num_heads} query heads and {self.num_kv_heads} key and value heads of "
            f"{self.head_size} numbers.",
            remedy="give the layer rows of one step.",
        )

    def _featured(self, query: Tensor, k: Tensor, v: Tensor, batch: int) -> Tensor:
        """Attend sequence by sequence, by the formula."""
        rows = query.view(batch, -1, self.num_heads, self.head_size)
        by_formula = attend_by_rows if in_force() else attend
        outs = [
            by_formula(
                q,
                keys.transpose(0, 1),
                values.transpose(0, 1),
                self.spec,
                alibi_slopes=self.alibi_slopes,
                sinks=self.sinks,
            )
            for q, keys, values in zip(rows, k, v, strict=True)
        ]
        return torch.cat(outs).flatten(1)

    def extra_repr(self) -> str:
        """Return what repr shows."""
        return f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, head_size={self.head_size}"


def _check_features(
    prefix: str,
    num_heads: int,
    window: int | None,
    soft_cap: float | None,
    alibi_slopes: Tensor | None,
    sinks: Tensor | None,
) -> None:
    """Raise ConfigError for a feature whose numbers do not fit."""
    who = f"layer {prefix}" if prefix else ()
    if window is not None and (window < 1 or window != int(window)):
        remedy = "use a whole number from 1, or None."
        raise ConfigError(f"sliding_window={window} is not possible.", who=who, remedy=remedy)
    if soft_cap is not None and not 0 <= soft_cap < math.inf:
        raise ConfigError(f"logits_soft_cap={soft_cap} is not possible.", who=who, remedy="use a number above 0.")
    for name, tensor in (("alibi_slopes", alibi_slopes), ("sinks", sinks)):
        shape = getattr(tensor, "shape", None)
        if tensor is not None and (shape is None or tuple(shape) != (num_heads,)):
            raise ConfigError(
                f"{name} of {'no shape' if shape is None else f'shape {tuple(shape)}'} does not fit {num_heads} heads.",
                who=who,
                remedy=f"give one number for each head, a tensor of shape ({num_heads},).",
            )
