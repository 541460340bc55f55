"""What counts as an op of a model, and what serves it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import opdock
from opdock import ir
from opdock.errors import CheckpointError, ConfigError, UnsupportedError
from opdock.nn.coverage import Coverage, CoverageError, ModelOp, model_coverage
from opdock.nn.layers import RMSNorm, RowParallelLinear, SiluAndMul
from opdock.registry import switches

pytestmark = pytest.mark.usefixtures("taken_back")
LAYERS = 3  # of the small models


def covered(folder: Path, config: opdock.OpdockConfig | None = None, **options: Any) -> Coverage:
    with opdock.set_current_config(config or opdock.OpdockConfig()):
        return model_coverage(folder, dtype=torch.float32, **options)


def by_name(found: Coverage) -> dict[tuple[str, str], ModelOp]:
    return {(op.level, op.op): op for op in found.ops}


def silu(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def with_priority(**priorities: str) -> opdock.OpdockConfig:
    config = opdock.OpdockConfig()
    config.kernel_config.ir_op_priority = type(config.kernel_config.ir_op_priority)(priorities)
    return config


def test_without_a_vendor_every_op_is_native_and_counted_where_the_work_is_done(folder: Path) -> None:
    """A norm is its IR ops, a container is what it holds, a projection is itself."""
    found = covered(folder)
    counts = {key: (op.prompt_calls, op.token_calls) for key, op in by_name(found).items()}
    assert counts == {
        ("ir", "fused_add_rms_norm"): (2 * LAYERS, 2 * LAYERS),
        ("ir", "rms_norm"): (1, 1),
        ("ir", "rotary_embedding"): (LAYERS, LAYERS),
        ("ir", "silu_and_mul"): (LAYERS, LAYERS),
        ("layer", "attention"): (LAYERS, LAYERS),
        ("layer", "merged_column_parallel_linear"): (LAYERS, LAYERS),
        ("layer", "parallel_lm_head"): (1, 1),
        ("layer", "qkv_parallel_linear"): (LAYERS, LAYERS),
        ("layer", "row_parallel_linear"): (2 * LAYERS, 2 * LAYERS),
        ("layer", "vocab_parallel_embedding"): (1, 1),
    }
    assert found.share == 0.0 and not any(op.covered for op in found.ops)
    assert "no other provider is registered" in by_name(found)["ir", "rms_norm"].why_native()
    assert by_name(found)["layer", "attention"].why_native() == "no package replaces it"


def test_no_providers_body_runs(folder: Path) -> None:
    """Shapes come from the native definition on fake tensors."""

    @ir.ops.silu_and_mul.register_impl("vendor")
    def vendor(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError

    op = by_name(covered(folder, with_priority(silu_and_mul="vendor")))["ir", "silu_and_mul"]
    assert op.covered and [s.served_by for s in op.served] == ["vendor"]


def test_an_op_that_is_native_for_a_single_token_is_a_native_op(folder: Path) -> None:
    """Both ways are listed, with the reason of the one who declined."""
    takes = lambda x: x.shape[0] > 1 or "one row"  # noqa: E731
    ir.ops.silu_and_mul.register_impl("batched", supports_args=takes)(silu)
    found = covered(folder, with_priority(silu_and_mul="batched"), num_tokens=5)
    op = by_name(found)["ir", "silu_and_mul"]
    assert not op.covered and "batched: one row" in op.why_native()
    assert [(s.served_by, s.prompt_calls, s.token_calls) for s in op.served] == [
        ("batched", LAYERS, 0),
        ("native", 0, LAYERS),
    ]
    assert op.served[0].arguments == "x=float32[5x320]"
    (row,) = (r for r in found.rows if r.op == "silu_and_mul")
    assert row.arguments == "x=float32[1x320]" and row.use == f"calls for the prompt: {LAYERS}, for one token: {LAYERS}"


def test_a_replaced_layer_is_covered_if_it_changes_anything(folder: Path) -> None:
    """A class that only has another name is what it was."""

    @RowParallelLinear.register_oot
    class Vendor(RowParallelLinear):
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x)

    @SiluAndMul.register_oot
    class Idle(SiluAndMul):
        pass

    found = by_name(covered(folder))
    op = found["layer", "row_parallel_linear"]
    assert op.covered and op.served[0].served_by.endswith("Vendor") and op.why_native() == ""
    assert not found["ir", "silu_and_mul"].covered and ("layer", "silu_and_mul") not in found


def test_a_replacement_that_changes_nothing_is_native(folder: Path) -> None:
    @RowParallelLinear.register_oot
    class Idle(RowParallelLinear):
        pass

    op = by_name(covered(folder))["layer", "row_parallel_linear"]
    assert not op.covered and "leaves forward as it is" in op.why_native()


def test_a_vendors_method_that_does_the_work_takes_the_place_of_the_ir_op(folder: Path) -> None:
    """And where it calls the IR op for some calls, those are the IR op's."""

    @RMSNorm.register_oot
    class Vendor(RMSNorm):
        def forward_cpu(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
            if residual is None:
                return self.forward_native(x)
            return torch.nn.functional.rms_norm(x + residual, (x.shape[-1],), self.weight), x + residual

    found = by_name(covered(folder))
    layer = found["layer", "rms_norm"]
    assert layer.covered and layer.served[0].method == "forward_cpu" and layer.prompt_calls == 2 * LAYERS
    assert ("ir", "fused_add_rms_norm") not in found and found["ir", "rms_norm"].prompt_calls == 1


def test_a_vendors_method_without_a_fake_counts_and_says_so(folder: Path) -> None:
    """Shapes come from forward_native then, whose ops do not count."""

    @SiluAndMul.register_oot
    class Vendor(SiluAndMul):
        def forward_cpu(self, x: torch.Tensor) -> torch.Tensor:
            return silu(torch.from_numpy(x.numpy()))

    found = by_name(covered(folder))
    op = found["layer", "silu_and_mul"]
    assert op.covered and "fails on fake tensors" in op.served[0].reason and ("ir", "silu_and_mul") not in found


def test_a_replaced_layer_without_a_fake_is_an_error_that_names_it(folder: Path) -> None:
    """Its work cannot be guessed."""

    @RowParallelLinear.register_oot
    class Vendor(RowParallelLinear):
        def forward(self, x: torch.Tensor) -> Any:
            return x.numpy()

    with pytest.raises(UnsupportedError, match=r"Vendor\.forward fails on fake tensors[\s\S]*register_fake"):
        covered(folder)


def test_an_explicit_switch_makes_the_layer_native(folder: Path) -> None:
    """The vendor is out, and the reason is the switch."""
    ir.ops.silu_and_mul.register_impl("vendor")(silu)
    config = with_priority(silu_and_mul="vendor")
    config.compilation_config.custom_ops = ["-silu_and_mul"]
    found = by_name(covered(folder, config))
    assert not found["layer", "silu_and_mul"].covered
    assert "-silu_and_mul" in found["layer", "silu_and_mul"].why_native() and ("ir", "silu_and_mul") not in found
    assert switches.is_switched_off("silu_and_mul", config.compilation_config)


def test_a_predicate_that_raises_is_an_error_in_words(folder: Path) -> None:
    ir.ops.silu_and_mul.register_impl("broken", supports_args=lambda x: x.no_such)(silu)
    with pytest.raises(UnsupportedError, match="what serves IR op 'silu_and_mul'"):
        covered(folder, with_priority(silu_and_mul="broken"))


def test_the_share_that_is_required_is_exact(folder: Path) -> None:
    """The error lists what is native."""
    ir.ops.silu_and_mul.register_impl("vendor")(silu)
    found = covered(folder, with_priority(silu_and_mul="vendor"))
    assert (found.covered, len(found.ops), found.share, found.at_level("ir")) == (1, 10, 0.1, (1, 4))
    found.require(0.1)
    with pytest.raises(CoverageError, match=r"1 of 10 ops[\s\S]*native: layer attention") as raised:
        found.require(0.11)
    assert "silu_and_mul" not in "\n".join(raised.value.why)


@pytest.mark.parametrize("kind", ["llama_tied", "qwen3", "one_head_group"])
def test_every_kind_of_model_can_be_looked_at(checkpoints: Callable[[str], tuple[Path, Any]], kind: str) -> None:
    """Qwen 3 norms the heads of q and k as well; a prompt of one token is possible."""
    found = covered(checkpoints(kind)[0], num_tokens=1)
    assert by_name(found)["ir", "rms_norm"].prompt_calls == (1 + 2 * LAYERS if kind == "qwen3" else 1)
    assert found.to_dict()["schema"] == "opdock.coverage/1"


@pytest.mark.parametrize("num_tokens", [0, -1, 640])
def test_a_prompt_without_room_for_one_more_token_is_refused(folder: Path, num_tokens: int) -> None:
    with pytest.raises(ConfigError, match="from 1 to 639"):
        covered(folder, num_tokens=num_tokens)


def test_a_missing_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="missing"):
        covered(tmp_path / "missing")


def test_a_product_with_4_bit_weights_by_the_native_kernel_is_native() -> None:
    from opdock.nn.calls import _layer_call
    from opdock.nn.layers import ReplicatedLinear
    from opdock.nn.quantization import get_quantization_config

    method = get_quantization_config("awq").from_config({"bits": 4, "group_size": 32, "zero_point": True})
    with opdock.set_current_config():
        call = _layer_call(ReplicatedLinear(64, 32, bias=False, quant_config=method, prefix="x"), "")
    assert (call.method, call.native, call.distribution) == ("NativeInt4Linear", True, "")
