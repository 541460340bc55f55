"""A small correct package for CPU tensors, as text, from which broken ones are made by changing one place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

NAME = "opdock_good"

INIT = """\
import opdock


def probe():
    return None


register = opdock.platform_plugin("opdock_good.platform:GoodPlatform", probe=probe)
"""

PLATFORM = """\
import torch

from opdock import IrOpPriorityConfig, Platform, PlatformEnum


class GoodPlatform(Platform):
    _enum = PlatformEnum.OOT
    device_name = "good"
    device_type = "cpu"
    dispatch_key = "CPU"
    api_version = 1

    @property
    def supported_dtypes(self):
        return [torch.float32, torch.bfloat16]

    @classmethod
    def import_kernels(cls):
        from opdock_good import kernels

    @classmethod
    def import_ir_kernels(cls):
        from opdock_good import providers

    @classmethod
    def register_oot(cls):
        from opdock_good import layers

    @classmethod
    def get_default_ir_op_priority(cls, config):
        return IrOpPriorityConfig.with_default(
            ["native"],
            rms_norm=["good", "native"],
            fused_add_rms_norm=["good", "native"],
            silu_and_mul=["good", "native"],
            rotary_embedding=["good", "native"],
        )
"""

KERNELS = '''\
"""The kernels, as torch ops: rms_norm returns, add_rms_norm_ writes its first two arguments."""
import torch
from torch.library import Library, register_fake

library = Library("opdock_good", "DEF")
library.define("rms_norm(Tensor x, Tensor? weight, float epsilon, int? size) -> Tensor")
library.define("add_rms_norm_(Tensor(a!) x, Tensor(b!) residual, Tensor? weight, float epsilon) -> ()")
library.define("silu_and_mul(Tensor x) -> Tensor")


def normalise(x, weight, epsilon, size):
    wide = x.double()
    part = wide if size is None else wide[..., :size]
    y = wide * torch.rsqrt(part.pow(2).mean(-1, keepdim=True) + epsilon)
    if weight is not None:
        y = y.to(weight.dtype) * weight
    return y.to(x.dtype)


def rms_norm(x, weight, epsilon, size):
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    out.copy_(normalise(x, weight, epsilon, size))
    return out


def add_rms_norm_(x, residual, weight, epsilon):
    total = x.float() + residual.float() if x.dtype != torch.float64 else x + residual
    out = normalise(total, weight, epsilon, None).to(x.dtype)
    residual.copy_(total)
    x.copy_(out)


def silu_and_mul(x):
    half = x.shape[-1] // 2
    wide = x.double()
    out = torch.empty((*x.shape[:-1], half), dtype=x.dtype, device=x.device)
    out.copy_(wide[..., :half] * torch.sigmoid(wide[..., :half]) * wide[..., half:])
    return out


for name, kernel in (("rms_norm", rms_norm), ("add_rms_norm_", add_rms_norm_), ("silu_and_mul", silu_and_mul)):
    library.impl(name, kernel, "CPU")


@register_fake("opdock_good::rms_norm")
def fake_rms_norm(x, weight, epsilon, size):
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@register_fake("opdock_good::add_rms_norm_")
def fake_add_rms_norm_(x, residual, weight, epsilon):
    return None


@register_fake("opdock_good::silu_and_mul")
def fake_silu_and_mul(x):
    return torch.empty((*x.shape[:-1], x.shape[-1] // 2), dtype=x.dtype, device=x.device)
'''

PROVIDERS = """\
import torch
from torch import Tensor

from opdock import ir


def norm_takes(x, weight, epsilon, variance_size=None):
    if weight is not None and weight.dtype != x.dtype:
        return "weight and x differ in dtype"
    return True


@ir.ops.rms_norm.register_impl("good", supports_args=norm_takes, batch_invariant=True)
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    return torch.ops.opdock_good.rms_norm(x, weight, epsilon, variance_size)


def add_norm_takes(x, x_residual, weight, epsilon, variance_size=None):
    if variance_size is not None:
        return "no partial variance"
    if x.dtype != x_residual.dtype or (weight is not None and weight.dtype != x.dtype):
        return "dtypes differ"
    return True


@ir.ops.fused_add_rms_norm.register_impl("good", supports_args=add_norm_takes, inplace=True)
def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    torch.ops.opdock_good.add_rms_norm_(x, x_residual, weight, epsilon)
    return x, x_residual


def silu_takes(x):
    return x.dtype != torch.float16 or "no float16"


@ir.ops.silu_and_mul.register_impl("good", supports_args=silu_takes)
def silu_and_mul(x: Tensor) -> Tensor:
    return torch.ops.opdock_good.silu_and_mul(x)


def rotary_takes(positions, query, key, head_size, cos_sin_cache, is_neox=True):
    if query.dim() != 2 or key.dim() != 2:
        return "only rows of heads"
    return is_neox or "only halves"


@ir.ops.rotary_embedding.register_impl("good", supports_args=rotary_takes, batch_invariant=True)
def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox: bool = True
) -> tuple[Tensor, Tensor]:
    wide = cos_sin_cache.float() if cos_sin_cache.dtype != torch.float64 else cos_sin_cache
    cos, sin = wide.index_select(0, positions.long()).unsqueeze(1).chunk(2, dim=-1)
    return rotate(query, cos, sin, head_size), rotate(key, cos, sin, head_size)


def rotate(x, cos, sin, head_size):
    half = cos.shape[-1]
    heads = x.reshape(x.shape[0], x.shape[-1] // head_size, head_size)
    wide = heads.float() if x.dtype != torch.float64 else heads
    a, b = wide[..., :half], wide[..., half : 2 * half]
    parts = (a * cos - b * sin, b * cos + a * sin, wide[..., 2 * half :])
    return torch.cat(parts, dim=-1).to(x.dtype).reshape(x.shape)
"""

LAYERS = """\
import torch
import torch.nn.functional as F

from opdock.nn.attention import Attention
from opdock.nn.layers import GeluAndMul, RowParallelLinear


@GeluAndMul.register_oot
class GoodGeluAndMul(GeluAndMul):
    def forward_oot(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return F.gelu(gate, approximate=self.approximate) * up


@RowParallelLinear.register_oot
class GoodRowParallelLinear(RowParallelLinear):
    def forward(self, x):
        bias = None if self.skip_bias_add else self.bias
        y = F.linear(x, self.weight, bias)
        return (y, self.bias if self.skip_bias_add else None) if self.return_bias else y


@Attention.register_oot
class GoodAttention(Attention):
    def forward(self, query, key, value, cache=None):
        batch, past = (1, 0) if cache is None else (cache.batch, cache.length)
        new = query.shape[0] // batch
        q = query.reshape(batch, new, self.num_heads, self.head_size).transpose(1, 2)
        shape = (batch, new, self.num_kv_heads, self.head_size)
        k, v = key.reshape(shape).transpose(1, 2), value.reshape(shape).transpose(1, 2)
        if cache is not None:
            k, v = cache.append(k, v)
        k, v = (t.repeat_interleave(self.group, dim=1) for t in (k, v))
        mask = torch.ones(new, k.shape[2], dtype=torch.bool, device=q.device).tril(past)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.scale)
        return out.transpose(1, 2).reshape(batch * new, -1)
"""

FILES = {
    "__init__.py": INIT,
    "platform.py": PLATFORM,
    "kernels.py": KERNELS,
    "providers.py": PROVIDERS,
    "layers.py": LAYERS,
}


def changed(*edits: tuple[str, str, str]) -> dict[str, str]:
    """Return the package's files with each (file, old text, new text) replaced; every old text must be there once."""
    files = dict(FILES)
    for file, old, new in edits:
        if files[file].count(old) != 1:
            raise ValueError(f"{old!r} occurs {files[file].count(old)} times in {file}")
        files[file] = files[file].replace(old, new)
    return files


def write(
    folder: Path,
    files: dict[str, str] | None = None,
    *,
    name: str = NAME,
    entry_points: str = f"[vllm.platform_plugins]\n{NAME} = {NAME}:register\n",
    requires: Sequence[str] = ("opdock<0.2,>=0.1",),
) -> Path:
    """Write the package as pip would have installed it, and return the folder for ``sys.path``."""
    package = folder / NAME
    package.mkdir(parents=True)
    for file, text in (files or FILES).items():
        (package / file).write_text(text, encoding="utf-8")
    metadata = folder / f"{NAME}-1.0.dist-info"
    metadata.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name.replace('_', '-')}", "Version: 1.0"]
    lines += [f"Requires-Dist: {each}" for each in requires]
    (metadata / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (metadata / "entry_points.txt").write_text(entry_points, encoding="utf-8")
    recorded = [f"{NAME}/{file},," for file in (files or FILES)]
    (metadata / "RECORD").write_text("\n".join(recorded) + "\n", encoding="utf-8")
    return folder
