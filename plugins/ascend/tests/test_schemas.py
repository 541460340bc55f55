"""The operators of the installed torch_npu have the schemas that this package was written for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

SCHEMAS = {
    "npu::npu_rms_norm": "(Tensor input, Tensor gamma, float epsilon=9.9999999999999995e-07) -> (Tensor, Tensor)",
    "npu::npu_gemma_rms_norm": "(Tensor input, Tensor gamma, float epsilon=9.9999999999999995e-07) -> (Tensor, Tensor)",
    "npu::npu_add_rms_norm": "(Tensor x1, Tensor x2, Tensor gamma, float epsilon=9.9999999999999995e-07) -> "
    "(Tensor, Tensor, Tensor)",
    "npu::npu_swiglu": "(Tensor input, int dim=-1) -> Tensor",
    "npu::npu_gelu_mul": '(Tensor input, *, str approximate="none") -> Tensor',
    "npu::npu_mrope": "(Tensor positions, Tensor query, Tensor key, Tensor cos_sin_cache, int head_size, *, "
    'int[]? mrope_section=None, str? rotary_mode="half", str? cache_mode="default") -> (Tensor, Tensor)',
    "npu::npu_rotary_mul": '(Tensor input, Tensor r1, Tensor r2, str rotary_mode="half", Tensor? rotate=None) -> '
    "Tensor",
    "npu::npu_dynamic_quant": "(Tensor input, *, Tensor? smooth_scales=None, Tensor? group_index=None, "
    'int? dst_type=None, str quant_mode="pertoken", float dst_type_max=0.) -> (Tensor, Tensor)',
    "npu::npu_quant_matmul": "(Tensor x1, Tensor x2, Tensor scale, *, Tensor? offset=None, Tensor? pertoken_scale=None,"
    " Tensor? bias=None, int? output_dtype=None, int? x1_dtype=None, int? x2_dtype=None, "
    "int? pertoken_scale_dtype=None, int? scale_dtype=None, int[]? group_sizes=None, Tensor? y_scale=None) -> Tensor",
    "npu::npu_fusion_attention": "(Tensor query, Tensor key, Tensor value, int head_num, str input_layout, "
    "Tensor? pse=None, Tensor? padding_mask=None, Tensor? atten_mask=None, float scale=1., float keep_prob=1., "
    "int pre_tockens=2147483647, int next_tockens=2147483647, int inner_precise=0, int[]? prefix=None, "
    "int[]? actual_seq_qlen=None, int[]? actual_seq_kvlen=None, int sparse_mode=0, bool gen_mask_parallel=True, "
    'bool sync=False, str softmax_layout="", Tensor? sink=None, Tensor? dropout_mask=None, int seed=0, int offset=0) '
    "-> (Tensor, Tensor, Tensor, Tensor, int, int, int)",
    "atb::_npu_paged_attention": "(Tensor query, Tensor key_cache, Tensor value_cache, int num_kv_heads, "
    "int num_heads, float scale_value, Tensor block_table, Tensor context_lens, Tensor(a!) out, *, "
    "Tensor? workspace=None) -> ()",
    "atb::_npu_reshape_and_cache": "(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
    "Tensor slot_indices) -> ()",
}


def _overload(name: str) -> Any:
    namespace, _, base = name.partition("::")
    return getattr(getattr(torch.ops, namespace), base).default


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_registered_schema_is_the_one_that_is_called(torch_npu: Any, name: str) -> None:
    assert str(_overload(name)._schema) == name + SCHEMAS[name]


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_reference_that_stands_in_has_the_parameters_of_the_schema(torch_npu: Any, name: str) -> None:
    """``others`` stands for options that have no reference."""
    import inspect

    from npu_standin.references import REFERENCES

    theirs = [argument.name for argument in _overload(name)._schema.arguments]
    mine = [parameter for parameter in inspect.signature(REFERENCES[name]).parameters if parameter != "others"]
    assert mine == theirs[: len(mine)]
    assert len(mine) == len(theirs) or "others" in inspect.signature(REFERENCES[name]).parameters


def test_every_reference_is_of_an_operator_that_is_called_here(torch_npu: Any) -> None:
    from npu_standin.references import REFERENCES

    assert set(REFERENCES) == set(SCHEMAS)


def test_an_operator_that_nobody_stands_in_for_fails_and_gives_no_numbers(torch_npu: Any) -> None:
    x = torch.ones(2, 64, device="npu")
    with pytest.raises(RuntimeError):
        torch_npu.npu_fast_gelu(x).cpu()


def test_an_operator_on_a_cpu_tensor_is_not_run_elsewhere(torch_npu: Any) -> None:
    with pytest.raises(NotImplementedError):
        torch_npu.npu_rms_norm(torch.ones(2, 64), torch.ones(64))
