"""All-reduce, alone and fused with norms: two processes with Gloo."""

from __future__ import annotations

import subprocess
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from opdock import ir
from opdock.ir.ops._numerics import ShapeError

OPS = ("all_reduce", "all_reduce_rms_norm", "all_reduce_fused_add_rms_norm")
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]

needs_gloo = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="needs torch.distributed with Gloo",
)


def arguments(name: str, group: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[Any, ...]:
    """Return arguments; x is that of the seed, the rest is the same everywhere."""
    rest = torch.Generator().manual_seed(1000)
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(seed)).to(dtype)
    residual, weight = torch.randn(4, 64, generator=rest).to(dtype), torch.randn(64, generator=rest).to(dtype)
    return {
        "all_reduce": (x, group),
        "all_reduce_rms_norm": (x, weight, 1e-6, group),
        "all_reduce_fused_add_rms_norm": (x, residual, weight, 1e-6, group),
    }[name]


def _values(rank: int, group: str) -> None:
    """Compare with sums that are computed from the seeds of both ranks, in float64."""
    for dtype in DTYPES:
        step = torch.finfo(dtype).eps
        x, weight, eps, _ = arguments("all_reduce_rms_norm", group, dtype, rank)
        residual = arguments("all_reduce_fused_add_rms_norm", group, dtype)[1]
        exact = sum(arguments("all_reduce", group, dtype, r)[0].double() for r in range(2))
        kept = x.clone()
        total = ir.ops.all_reduce(x, group)
        torch.testing.assert_close(total.double(), exact, rtol=step, atol=step)
        assert torch.equal(x, kept) and total.dtype == dtype

        y, s = ir.ops.all_reduce_rms_norm(x, weight, eps, group)
        assert torch.equal(s, total) and torch.equal(y, ir.ops.rms_norm(total, weight, eps))
        scaled = exact / (exact.square().mean(-1, True) + eps).sqrt() * weight.double()
        torch.testing.assert_close(y.double(), scaled, rtol=16 * step, atol=16 * step)

        made = ir.ops.all_reduce_fused_add_rms_norm(x, residual, weight, eps, group)
        parts = ir.ops.fused_add_rms_norm(total, residual, weight, eps)
        assert all(torch.equal(a, b) for a, b in zip(made, parts, strict=True))
        torch.testing.assert_close(made[1].double(), exact + residual.double(), rtol=2 * step, atol=4 * step)
        assert torch.equal(x, kept)


def _rows(rank: int, group: str) -> None:
    """No rows, three dimensions, strides; without a weight."""
    for x in (torch.ones(0, 64), torch.ones(2, 3, 64), torch.ones(64, 4).t(), torch.ones(4, 128)[:, 64:]):
        total, (y, s) = ir.ops.all_reduce(x, group), ir.ops.all_reduce_rms_norm(x, None, 0.0, group)
        assert torch.equal(total, 2 * x) and torch.equal(s, total) and torch.equal(y, torch.ones_like(y))
        assert total.is_contiguous() and s.is_contiguous() and y.is_contiguous()
        with FakeTensorMode() as mode:
            fake = ir.ops.all_reduce_rms_norm(mode.from_tensor(x), None, 0.0, group)
        assert [f.stride() for f in fake] == [y.stride(), s.stride()]


def _aliases(rank: int, group: str) -> None:
    """Results are new tensors."""
    for name in OPS:
        args = arguments(name, group, seed=rank)
        result = ir.registry[name].fn(*args)
        given = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)}
        made = [t.untyped_storage().data_ptr() for t in (result if isinstance(result, tuple) else (result,))]
        assert not given & set(made) and len(set(made)) == len(made)


def _opcheck(rank: int, group: str) -> None:
    """Schema, fake kernel, AOT dispatch; both ranks run the same collectives."""
    for name in OPS:
        torch.library.opcheck(ir.registry[name].torch_op, arguments(name, group, seed=rank))


def _errors(rank: int, group: str) -> None:
    """Both ranks make the mistake, so no rank waits."""
    x = torch.ones(2, 4)
    with pytest.raises(ShapeError, match="Remedy"):
        ir.ops.all_reduce_rms_norm(x, torch.ones(3), 1e-6, group)
    with pytest.raises(ShapeError, match="Remedy"):
        ir.ops.all_reduce_fused_add_rms_norm(x, x[:1], None, 1e-6, group)
    assert torch.equal(ir.ops.all_reduce(x, group), 2 * x)  # the group goes on


CHECKS = (_values, _rows, _aliases, _opcheck, _errors)


def _run(folder: str, rank: int) -> None:
    """Run every check and write what failed; a check that fails on one rank fails on both, or times out."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=timedelta(seconds=30)
    )
    group = dist.group.WORLD.group_name  # type: ignore[union-attr]
    for check in CHECKS:
        try:
            check(rank, group)
            said = "passed"
        except Exception:  # noqa: BLE001 - the parent raises it
            said = traceback.format_exc()
        Path(folder, f"{check.__name__}.{rank}").write_text(said, encoding="utf-8")
    dist.barrier()  # a rank that leaves while the other is at it may be aborted
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what the two processes said about each check; they run this file."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, __file__, str(folder)]
    ranks = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(2)
    ]
    try:
        printed = [process.communicate(timeout=120)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    # What counts is what they wrote: Gloo's threads may abort an interpreter that is leaving.
    files = {c.__name__: [folder / f"{c.__name__}.{rank}" for rank in range(2)] for c in CHECKS}
    return {
        name: "\n".join(f.read_text(encoding="utf-8") if f.exists() else "\n".join(printed) for f in both)
        for name, both in files.items()
    }


@needs_gloo
@pytest.mark.parametrize("check", [c.__name__ for c in CHECKS])
def test_two_ranks_agree_with_the_definition(check: str, said: dict[str, str]) -> None:
    """Sums, norms of them bit for bit as unfused, empty and strided inputs, aliases, opcheck, errors."""
    assert said[check] == "passed\npassed", said[check]


@needs_gloo
def test_unknown_groups_are_refused() -> None:
    """By torch, which names the group."""
    with pytest.raises(RuntimeError, match="no_such_group"):
        ir.ops.all_reduce(torch.ones(2), "no_such_group")


@pytest.mark.parametrize("name", OPS)
def test_fake_collectives_need_no_group_and_keep_the_number_of_tokens(name: str) -> None:
    """Compilation traces them; no guard is made."""
    shapes = ShapeEnv()
    mode = FakeTensorMode(shape_env=shapes)
    args: list[Any] = []
    for a in arguments(name, "no_such_group"):
        if isinstance(a, torch.Tensor):
            sizes = [DimDynamic.STATIC] if a.ndim == 1 else [DimDynamic.DYNAMIC, DimDynamic.STATIC]
            context: Any = StatelessSymbolicContext(dynamic_sizes=sizes)
            args.append(mode.from_tensor(a, symbolic_context=context))
        else:
            args.append(a)
    if name == "all_reduce_fused_add_rms_norm":  # two activations have two symbols: that they are equal is learnt
        assert args[0].shape[0] == args[1].shape[0]
    before = len(shapes.guards)
    result = ir.registry[name].fn(*args)
    assert len(shapes.guards) == before
    for made in result if isinstance(result, tuple) else (result,):
        assert isinstance(made.shape[0], torch.SymInt) and made.shape[-1] == 64


@pytest.mark.parametrize("name", OPS)
def test_no_inputs_are_made_up_for_a_group_that_is_not_there(name: str) -> None:
    """And the sum depends on the batch."""
    assert not ir.registry[name].has_input_generator
    assert not ir.registry[name].impls["native"].batch_invariant


if __name__ == "__main__":
    _run(sys.argv[1], int(sys.argv[2]))
