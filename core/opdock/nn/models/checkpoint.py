"""What a checkpoint must hold for a configuration, and the way from its tensors into the model.

Names and shapes are compared from the files' headers alone, before anything large is read or allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from opdock.errors import CheckpointError
from opdock.nn.layers.linear import copy_checked
from opdock.nn.models.config import ModelConfig
from opdock.nn.models.differences import DOWNLOAD, kinds, listed
from opdock.nn.models.left_out import check_left_out, is_left_out

if TYPE_CHECKING:
    import torch
    from torch import nn

Progress: TypeAlias = Callable[[int, int], object]


@dataclass(frozen=True)
class Target:
    """Where a tensor of a checkpoint goes.

    Args:
        param: name of the model's parameter.
        shape: that the tensor must have.
        shard: which of the joined matrices it is, (matrix, expert) in a mixture, or None for the whole parameter.
    """

    param: str
    shape: tuple[int, ...]
    shard: str | int | tuple[str, int] | None = None


class Checkpoint(Protocol):
    """An open checkpoint: its configuration, its header, and its tensors one by one.

    ``shapes`` and ``read`` use the names of Hugging Face checkpoints.
    """

    config: ModelConfig
    source: str

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return name to shape, from the header."""
        ...

    def read(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor once; a tensor may be a view of mapped memory."""
        ...


def checkpoint_plan(config: ModelConfig) -> dict[str, Target]:
    """Return the tensors that a decoder's checkpoint must hold: name to target."""
    from opdock.nn.models.plan import attention_plan, mlp_plan

    hidden = config.hidden_size
    plan = {
        "model.embed_tokens.weight": Target("model.embed_tokens.weight", (config.vocab_size, hidden)),
        "model.norm.weight": Target("model.norm.weight", (hidden,)),
    }
    if not config.tie_word_embeddings:
        plan["lm_head.weight"] = Target("lm_head.weight", (config.vocab_size, hidden))
    for i in range(config.num_layers):
        plan |= attention_plan(config, f"model.layers.{i}.self_attn.")
        plan |= mlp_plan(config, i)
        for name in ("input_layernorm", "post_attention_layernorm"):
            plan[f"model.layers.{i}.{name}.weight"] = Target(f"model.layers.{i}.{name}.weight", (hidden,))
    return plan


def ignorable(name: str, config: ModelConfig) -> bool:
    """Return whether a tensor that the plan lacks is known to be computed or shared, not loaded."""
    tied = name == "lm_head.weight" and config.tie_word_embeddings
    # DeepSeek-V3 stores layers behind the last one, which predict further tokens
    further = config.latent is not None and name.startswith(f"model.layers.{config.num_layers}.")
    scale = cache_scale(name, config) is not None
    return tied or further or scale or name.endswith("rotary_emb.inv_freq") or name == "rope_freqs.weight"


def cache_scale(name: str, config: ModelConfig) -> Target | None:
    """Return where a scale of an 8-bit KV cache goes, None for any other tensor; checkpoints need not have them."""
    mapper = {} if config.quant_config is None else config.quant_config.get_cache_scale_mapper()
    for stored, held in mapper.items():
        if name.endswith(stored):
            return Target(name.removesuffix(stored) + held, ())
    return None


def _alone(names: Iterable[str], config: ModelConfig) -> list[str]:
    """Return the scales of a cache's keys that come without those of its values, and the other way round."""
    held = {target.param: name for name in names if (target := cache_scale(name, config)) is not None}
    others = (("k_scale", "v_scale"), ("v_scale", "k_scale"))
    return [
        f"{name} without {other}"
        for param, name in held.items()
        for one, other in others
        if param.endswith(f".{one}") and param.removesuffix(one) + other not in held
    ]


def check_header(
    plan: Mapping[str, Target], shapes: Mapping[str, tuple[int, ...]], config: ModelConfig, source: str
) -> None:
    """Raise one CheckpointError that lists every missing, unexpected and mis-shaped tensor, and every lone scale."""
    missing = sorted(plan.keys() - shapes.keys())
    unexpected = sorted(n for n in shapes.keys() - plan.keys() if not ignorable(n, config))
    misshapen = [
        f"{name}: {tuple(shapes[name])} in the file, {plan[name].shape} by the configuration"
        for name in plan
        if name in shapes and tuple(shapes[name]) != plan[name].shape
    ]
    why = [
        *listed("missing", missing),
        *listed("unexpected", unexpected),
        *listed("of another shape", misshapen),
        *listed("scales of a cache without the other one", sorted(_alone(shapes, config))),
    ]
    if why:
        who, remedy, method = [source], DOWNLOAD, config.quant_config
        if method is not None:
            different, remedy = kinds(plan, shapes)
            who.append(f"{method.get_name()}: {type(method).__module__}.{type(method).__qualname__}")
            why = [*different, *why]
        raise CheckpointError("The checkpoint does not fit its configuration.", who=who, why=why, remedy=remedy)


def load_weights(
    model: nn.Module, plan: Mapping[str, Target], checkpoint: Checkpoint, progress: Progress | None = None
) -> None:
    """Copy the checkpoint's tensors into the model, one by one.

    Args:
        model: with uninitialised parameters.
        plan: from ``checkpoint_plan``; its header is checked already.
        checkpoint: open.
        progress: called with (numbers copied, numbers in all) after each tensor.

    Raises: CheckpointError naming the tensor and the checkpoint for numbers of another kind, or ones that no
        parameter takes and that are not neutral.
    """
    params = dict(model.named_parameters(remove_duplicate=False))
    scales = dict(model.named_buffers())
    cached: dict[str, tuple[str, torch.Tensor]] = {}
    total = sum(_numel(target.shape) for target in plan.values())
    done = 0
    for name, tensor in checkpoint.read():
        target = plan.get(name)
        if target is None:
            scale = cache_scale(name, checkpoint.config)
            if scale is not None:
                _set_scale(scales.get(scale.param), tensor, name, checkpoint.source)
                _require_same(cached.setdefault(scale.param, (name, tensor)), (name, tensor), checkpoint.source)
            elif is_left_out(name, plan):
                check_left_out(name, tensor, checkpoint.source)
            continue
        if target.param not in params:
            raise CheckpointError(
                f"The model has no parameter {target.param!r} for the tensor {name!r}.",
                who=checkpoint.source,
                why=_has(params, target.param.rpartition(".")[0]),
                remedy="a layer that replaces another must keep the names of its parameters.",
            )
        _require_finite(name, tensor, checkpoint.source)
        try:
            _copy(model, params[target.param], target, tensor)
        except CheckpointError as err:
            who = [*err.who, f"tensor {name}", checkpoint.source]
            raise CheckpointError(err.what, who=who, why=err.why, remedy=err.remedy) from err
        done += _numel(target.shape)
        if progress is not None:
            progress(done, total)


def _has(params: Mapping[str, object], module: str) -> str:
    """Return which parameters a module has, in words."""
    found = [name.removeprefix(f"{module}.") for name in params if name.rpartition(".")[0] == module]
    return f"{module} has {', '.join(found) or 'none'}"


def _set_scale(scale: torch.Tensor | None, tensor: torch.Tensor, name: str, source: str) -> None:
    """Copy a scale of a cache; the attention that does not have it has no 8-bit cache either."""
    if tensor.numel() != 1 or not 0 < float(tensor) < float("inf"):
        raise CheckpointError(
            f"The scale {name!r} is no positive number.",
            who=source,
            why="A cache has one scale for the keys of a layer, and one for the values.",
            remedy="use a checkpoint without scales of the cache, and calculate_kv_scales of the layers.",
        )
    if scale is not None:
        copy_checked(scale, tensor, name)


def _require_finite(name: str, tensor: torch.Tensor, source: str) -> None:
    """Raise CheckpointError for a scale with NaN or infinite numbers, whatever layer it is for."""
    if not name.endswith(_SCALES) or tensor.itemsize == 1 or not tensor.is_floating_point():
        return
    wrong = int((~tensor.isfinite()).sum())
    if wrong:
        raise CheckpointError(
            f"The scale {name!r} holds NaN or infinite numbers.",
            who=[f"layer {name.rpartition('.')[0]}", source],
            why=f"{wrong} of {tensor.numel()} numbers",
            remedy="download the checkpoint again, or quantise the model again: the scales belong to the weights.",
        )


_SCALES = ("_scale", "_scale_inv", ".scales")


def _require_same(first: tuple[str, torch.Tensor], again: tuple[str, torch.Tensor], source: str) -> None:
    """Raise CheckpointError if two tensors, each with its name, that go to one scale are not the same number."""
    if float(first[1]) != float(again[1]):
        raise CheckpointError(
            "The checkpoint has two scales for one cache.",
            who=source,
            why=[f"{name}: {float(number)}" for name, number in (first, again)],
            remedy="take the wrong one out, or use a checkpoint without scales of the cache.",
        )


def _copy(model: nn.Module, param: nn.Parameter, target: Target, tensor: torch.Tensor) -> None:
    owner = model.get_submodule(target.param.rpartition(".")[0])
    loader = getattr(param, "weight_loader", None) or getattr(owner, "weight_loader", None)
    if loader is None:
        copy_checked(param.data, tensor, target.param)
    elif target.shard is None:
        loader(param, tensor)
    else:
        loader(param, tensor, target.shard)


def _numel(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
