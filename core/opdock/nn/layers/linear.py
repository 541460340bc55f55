"""Linear layers under the names that vendors replace, for one rank.

The names say how several ranks would split the weight; with one rank nothing is split. A layer that joins
several matrices of a checkpoint takes them one by one: ``weight_loader(param, loaded_weight, shard_id)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn

from opdock.errors import CheckpointError, ConfigError, UnsupportedError
from opdock.nn.quantization.parameters import part_of, whole_of
from opdock.registry import PluggableLayer

if TYPE_CHECKING:
    from opdock.nn.quantization.config import QuantizationConfig

LinearOutput: TypeAlias = torch.Tensor | tuple[torch.Tensor, torch.Tensor | None]


class LinearBase(PluggableLayer):
    """y = x @ weight.T + bias; the base of every linear layer.

    Shapes: x (..., input_size); weight (output_size, input_size); bias (output_size,); y (..., output_size).

    Args:
        input_size: length of a row of x.
        output_size: length of a row of y.
        bias: whether there is a bias.
        skip_bias_add: return the bias beside y and do not add it, for an op that adds it later.
        params_dtype: of the activations and bias, and of an unquantised weight; None takes torch's default.
        quant_config: says how the weight is held; None: as it is.
        prefix: the layer's path in its model.
        return_bias: return (y, bias to add or None); False returns y alone.

    A class that replaces one of these and has a ``forward`` of its own calls ``self.quant_method.apply`` there, or sets
    ``applies_quant_method`` if it does so elsewhere; otherwise it serves unquantised layers only.

    Raises: UnsupportedError or ConfigError naming the layer if ``quant_config`` does not fit it.
    """

    applies_quant_method = False
    """Whether a ``forward`` that does not name ``quant_method`` takes its weight from it all the same."""

    def __init__(
        self,
        input_size: int,
        output_size: int,
        bias: bool = True,
        skip_bias_add: bool = False,
        params_dtype: torch.dtype | None = None,
        quant_config: QuantizationConfig | None = None,
        prefix: str = "",
        *,
        return_bias: bool = True,
    ) -> None:
        """Allocate the parameters of the weight, and the bias, uninitialised."""
        from opdock.nn.quantization.method import resolve_linear_method  # it imports this package

        super().__init__()
        self.input_size = input_size
        self.output_size = output_size
        self.skip_bias_add = skip_bias_add
        self.params_dtype = params_dtype or torch.get_default_dtype()
        self.prefix = prefix
        self.return_bias = return_bias
        self.output_partition_sizes: list[int] = list(getattr(self, "output_sizes", [output_size]))
        self.quant_config = quant_config
        self.quant_method = resolve_linear_method(quant_config, self, prefix)
        if self.quant_method.rewrites_weights and not self._applies_quant_method():
            raise _past_the_method(self)
        self.quant_method.create_weights(self, **self.weight_arguments())
        self.register_parameter("bias", _bias(output_size, self.params_dtype) if bias else None)

    def _applies_quant_method(self) -> bool:
        """Return whether ``forward`` asks the method for the product, as far as its code shows."""
        forward = type(self).forward
        code = getattr(forward, "__code__", None)
        return self.applies_quant_method or code is None or not {"quant_method", "super"}.isdisjoint(code.co_names)

    def weight_arguments(self) -> dict[str, Any]:
        """Return what ``create_weights`` is called with, now and before weights are loaded again."""
        return {
            "input_size_per_partition": self.input_size,
            "output_partition_sizes": self.output_partition_sizes,
            "input_size": self.input_size,
            "output_size": self.output_size,
            "params_dtype": self.params_dtype,
            "weight_loader": self.weight_loader,
        }

    @property
    def served_by(self) -> str:
        """The kernel that applies a quantised weight, for reports; ``forward`` where there is none."""
        kernel = getattr(self.quant_method, "kernel", None)
        return "forward" if kernel is None else type(kernel).__name__

    def forward(self, x: torch.Tensor) -> LinearOutput:
        """Return y, or (y, bias left to add)."""
        bias = self._parameters["bias"]
        if self.skip_bias_add:
            y = self.quant_method.apply(self, x)
            return (y, bias) if self.return_bias else y
        y = self.quant_method.apply(self, x, bias)
        return (y, None) if self.return_bias else y

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> LinearBase:
        """Move as a module does; quantised numbers and their scales keep their bits when the model's dtype changes."""
        before = {name: p.data for name, p in self._parameters.items() if p is not None and name != "bias"}
        if all(_is_plain(data) for data in before.values()):
            before = {}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, data in before.items():
            moved = self._parameters[name]
            if moved is not None and moved.dtype != data.dtype:
                moved.data = data.to(moved.device)
        return self

    def weight_loader(self, param: nn.Parameter, loaded_weight: torch.Tensor) -> None:
        """Copy a checkpoint's tensor into ``param``.

        Raises: CheckpointError if the shapes differ, or the dtypes of quantised numbers.
        """
        copy_checked(whole_of(param), loaded_weight, self.prefix)

    def extra_repr(self) -> str:
        """Return what repr shows."""
        return f"input_size={self.input_size}, output_size={self.output_size}, bias={self.bias is not None}"


def _past_the_method(layer: LinearBase) -> UnsupportedError:
    cls = type(layer)
    return UnsupportedError(
        f"{cls.__qualname__} cannot serve the quantised layer {layer.prefix!r}.",
        who=f"{cls.__module__}.{cls.__qualname__}, method {type(layer.quant_method).__name__}",
        why="Its forward never calls self.quant_method.apply, and would take quantised numbers for a weight.",
        remedy=f"call self.quant_method.apply(self, x, bias) there, or build the in-tree class: -{layer.name}.",
    )


def _bias(size: int, dtype: torch.dtype | None) -> nn.Parameter:
    return nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)


def copy_checked(target: torch.Tensor, source: torch.Tensor, where: str) -> None:
    """Copy ``source`` into ``target``; CheckpointError if their shapes differ, or the dtypes of quantised numbers.

    Dimensions of one are not compared.
    """
    if target.dtype != source.dtype and not (_is_plain(target) and _is_plain(source)):
        raise CheckpointError(
            f"A tensor of another kind of numbers stands for {where or 'a parameter'}.",
            who=where,
            why=[f"parameter   {target.dtype}", f"checkpoint  {source.dtype}"],
            remedy="use the config.json that belongs to these weights.",
        )
    if target.shape != source.shape and target.squeeze().shape == source.squeeze().shape:
        source = source.reshape(target.shape)
    if target.shape != source.shape:
        raise CheckpointError(
            f"A tensor does not fit {where or 'its parameter'}.",
            who=where,
            why=[f"parameter   {tuple(target.shape)}", f"checkpoint  {tuple(source.shape)}"],
            remedy="use the config.json that belongs to these weights.",
        )
    target.copy_(source)


_PLAIN = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.dtype in _PLAIN


@PluggableLayer.register("replicated_linear")
class ReplicatedLinear(LinearBase):
    """A linear layer whose weight every rank holds whole; see LinearBase."""


@PluggableLayer.register("column_parallel_linear")
class ColumnParallelLinear(LinearBase):
    """A linear layer whose output rows several ranks would share; see LinearBase."""


@PluggableLayer.register("row_parallel_linear")
class RowParallelLinear(LinearBase):
    """A linear layer whose input columns several ranks would share; see LinearBase."""


class _JoinedLinear(ColumnParallelLinear):
    """Several matrices with one input, stacked along the output."""

    def _offsets(self) -> dict[str | int, tuple[int, int]]:
        """Return shard id to (first row, number of rows)."""
        raise NotImplementedError

    def weight_loader(
        self, param: nn.Parameter, loaded_weight: torch.Tensor, loaded_shard_id: str | int | None = None
    ) -> None:
        """Copy one of the joined matrices, or with no shard id all of them, into its rows of ``param``.

        Raises: CheckpointError for another shard id or shape.
        """
        if loaded_shard_id is None:
            super().weight_loader(param, loaded_weight)
            return
        offsets = self._offsets()
        if loaded_shard_id not in offsets:
            raise CheckpointError(
                f"{self.prefix or type(self).__name__} has no shard {loaded_shard_id!r}.",
                who=f"layer {self.prefix}",
                why=f"It joins {len(offsets)} matrices of {', '.join(map(str, self.output_partition_sizes))} outputs.",
                remedy=f"use one of {', '.join(map(repr, offsets))}.",
            )
        first, rows = offsets[loaded_shard_id]
        where = f"{self.prefix} shard {loaded_shard_id!r}"
        part = part_of(param, list(offsets).index(loaded_shard_id), first, rows, where)
        copy_checked(part, loaded_weight, where)


@PluggableLayer.register("merged_column_parallel_linear")
class MergedColumnParallelLinear(_JoinedLinear):
    """Several linear layers with one input; shard ids are 0, 1, ... in the order of ``output_sizes``.

    Args:
        input_size: length of a row of x.
        output_sizes: length of each part of a row of y.
        bias, skip_bias_add, params_dtype, quant_config, prefix, return_bias: see LinearBase.
    """

    def __init__(
        self,
        input_size: int,
        output_sizes: Sequence[int],
        bias: bool = True,
        skip_bias_add: bool = False,
        params_dtype: torch.dtype | None = None,
        quant_config: QuantizationConfig | None = None,
        prefix: str = "",
        *,
        return_bias: bool = True,
    ) -> None:
        """Allocate the joined weight."""
        self.output_sizes = list(output_sizes)
        super().__init__(
            input_size,
            sum(output_sizes),
            bias,
            skip_bias_add,
            params_dtype,
            quant_config,
            prefix,
            return_bias=return_bias,
        )

    def _offsets(self) -> dict[str | int, tuple[int, int]]:
        sizes = self.output_sizes
        return {i: (sum(sizes[:i]), size) for i, size in enumerate(sizes)}


@PluggableLayer.register("qkv_parallel_linear")
class QKVParallelLinear(_JoinedLinear):
    """Query, key and value of an attention in one matrix; shard ids are "q", "k" and "v".

    Args:
        hidden_size: length of a row of x.
        head_size: length of a head.
        total_num_heads: number of query heads.
        total_num_kv_heads: number of key and value heads, a divisor of it; None: as many.
        bias, skip_bias_add, params_dtype, quant_config, prefix, return_bias: see LinearBase.

    Raises: ConfigError if the numbers of heads do not divide.
    """

    def __init__(
        self,
        hidden_size: int,
        head_size: int,
        total_num_heads: int,
        total_num_kv_heads: int | None = None,
        bias: bool = True,
        skip_bias_add: bool = False,
        params_dtype: torch.dtype | None = None,
        quant_config: QuantizationConfig | None = None,
        prefix: str = "",
        *,
        return_bias: bool = True,
    ) -> None:
        """Allocate the joined weight."""
        kv_heads = total_num_heads if total_num_kv_heads is None else total_num_kv_heads
        if kv_heads < 1 or total_num_heads % kv_heads:
            raise ConfigError(
                f"{total_num_heads} query heads cannot share {kv_heads} key and value heads.",
                who=f"layer {prefix}",
                why="Each key and value head serves a group of query heads of one size.",
                remedy="use a number of key and value heads that divides the number of query heads.",
            )
        q_size, kv_size = total_num_heads * head_size, kv_heads * head_size
        self.head_size = head_size
        self.total_num_heads = total_num_heads
        self.total_num_kv_heads = kv_heads
        self.output_sizes = [q_size, kv_size, kv_size]
        super().__init__(
            hidden_size,
            q_size + 2 * kv_size,
            bias,
            skip_bias_add,
            params_dtype,
            quant_config,
            prefix,
            return_bias=return_bias,
        )

    def _offsets(self) -> dict[str | int, tuple[int, int]]:
        q, k, v = self.output_sizes
        return {"q": (0, q), "k": (q, k), "v": (q + k, v)}
