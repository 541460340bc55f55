"""What names of vLLM are called here. The page ``docs/porting-from-vllm.md`` prints this table."""

from __future__ import annotations

from dataclasses import dataclass

ENGINE = "the engine's"
"""For what runs requests, schedules them and owns memory: a host of operators has no counterpart."""
LOGGING = "logging.getLogger(__name__)"


@dataclass(frozen=True)
class Port:
    """One row: a name of vLLM or the beginning of many, what it is here ("" for nothing), and what to know."""

    theirs: str
    ours: str
    note: str = ""

    @property
    def shown(self) -> str:
        """What is here, in words."""
        return self.ours or f"no counterpart: {self.note or ENGINE}"


_L, _N = "vllm.model_executor.layers", "opdock.nn.layers"
TABLE = (
    Port("vllm.platforms.Platform", "opdock.Platform"),
    Port("vllm.platforms.interface.Platform", "opdock.Platform"),
    Port("vllm.platforms.PlatformEnum", "opdock.PlatformEnum"),
    Port("vllm.platforms.interface.PlatformEnum", "opdock.PlatformEnum"),
    Port("vllm.platforms.CpuArchEnum", "opdock.CpuArchEnum"),
    Port("vllm.platforms.interface.CpuArchEnum", "opdock.CpuArchEnum"),
    Port("vllm.platforms.interface.DeviceCapability", "opdock.DeviceCapability"),
    Port("vllm.platforms.current_platform", "opdock.current_platform", "inside functions: it decides when looked at"),
    Port("vllm.platforms.cpu.CpuPlatform", "opdock.platforms.cpu.CpuPlatform"),
    Port("vllm.platforms.cuda", "opdock_cuda.platform.CudaPlatform", "of the package opdock-cuda"),
    Port(
        "vllm.platforms.resolve_current_platform_cls_qualname", "opdock.current_platform", "type() of it is the class"
    ),
    Port("vllm.platforms", "opdock.platforms"),
    Port("vllm.plugins", "opdock.discovery", "the host loads plugins; a plugin does not"),
    Port("vllm.model_executor.custom_op.CustomOp", "opdock.CustomOp"),
    Port("vllm.model_executor.custom_op.PluggableLayer", "opdock.PluggableLayer"),
    Port("vllm.model_executor.custom_op.op_registry", "opdock.registry.op_registry", "read-only; use register"),
    Port("vllm.model_executor.custom_op.op_registry_oot", "opdock.registry.op_registry_oot", "read-only; register_oot"),
    Port("vllm.model_executor.custom_op.maybe_get_oot_by_class", "opdock.registry.maybe_get_oot_by_class"),
    Port("vllm.model_executor.custom_op", "opdock.registry"),
    Port(f"{_L}.layernorm.RMSNorm", f"{_N}.RMSNorm"),
    Port(f"{_L}.layernorm.GemmaRMSNorm", f"{_N}.GemmaRMSNorm"),
    Port(f"{_L}.layernorm", "", "no such layer here yet"),
    Port(f"{_L}.activation.SiluAndMul", f"{_N}.SiluAndMul"),
    Port(f"{_L}.activation.GeluAndMul", f"{_N}.GeluAndMul"),
    Port(f"{_L}.activation", "", "no such layer here yet"),
    Port(f"{_L}.linear.LinearBase", f"{_N}.LinearBase"),
    Port(f"{_L}.linear.ReplicatedLinear", f"{_N}.ReplicatedLinear"),
    Port(f"{_L}.linear.ColumnParallelLinear", f"{_N}.ColumnParallelLinear"),
    Port(f"{_L}.linear.MergedColumnParallelLinear", f"{_N}.MergedColumnParallelLinear"),
    Port(f"{_L}.linear.QKVParallelLinear", f"{_N}.QKVParallelLinear"),
    Port(f"{_L}.linear.RowParallelLinear", f"{_N}.RowParallelLinear"),
    Port(f"{_L}.linear", "", "linear methods: a quantised layer is a replacement here"),
    Port(f"{_L}.rotary_embedding.get_rope", f"{_N}.get_rope"),
    Port(f"{_L}.rotary_embedding.RotaryEmbedding", f"{_N}.RotaryEmbedding"),
    Port(f"{_L}.rotary_embedding.base.RotaryEmbedding", f"{_N}.RotaryEmbedding"),
    Port(f"{_L}.rotary_embedding.Llama3RotaryEmbedding", f"{_N}.Llama3RotaryEmbedding"),
    Port(f"{_L}.rotary_embedding.LinearScalingRotaryEmbedding", f"{_N}.LinearScalingRotaryEmbedding"),
    Port(f"{_L}.rotary_embedding", "", "no such layer here yet"),
    Port(f"{_L}.vocab_parallel_embedding.VocabParallelEmbedding", f"{_N}.VocabParallelEmbedding"),
    Port(f"{_L}.vocab_parallel_embedding.ParallelLMHead", f"{_N}.ParallelLMHead"),
    Port(f"{_L}.vocab_parallel_embedding", "", "constants of the padding"),
    Port(f"{_L}.logits_processor.LogitsProcessor", f"{_N}.LogitsProcessor"),
    Port(f"{_L}.attention.Attention", "opdock.nn.attention.Attention"),
    Port(f"{_L}.attention.attention.Attention", "opdock.nn.attention.Attention"),
    Port(f"{_L}.attention", "opdock.nn.attention", "one class for any cache"),
    Port(f"{_L}.attention_layer_base", "", "the layer is one class here"),
    Port("vllm.attention.layer.Attention", "opdock.nn.attention.Attention"),
    Port("vllm.attention", "opdock.nn.attention", "backends go by names that are strings"),
    Port("vllm.v1.attention.backends.registry", "opdock.nn.attention", "backends go by names that are strings"),
    Port(f"{_L}.quantization", "opdock.nn.quantization", "a method is not found by class name"),
    Port(f"{_L}.fused_moe.FusedMoE", "opdock.nn.moe.FusedMoE"),
    Port(f"{_L}.fused_moe", "opdock.nn.moe", "backends go by names that are strings"),
    Port(_L, "", "no such layer here yet"),
    Port("vllm.ir.ops", "opdock.ir.ops"),
    Port("vllm.ir.register_op", "opdock.ir.register_op"),
    Port("vllm.ir.IrOp", "opdock.ir.IrOp"),
    Port("vllm.ir", "opdock.ir"),
    Port("vllm.kernels", "a module of providers", "imported by import_ir_kernels of the platform"),
    Port("vllm.utils.torch_utils.direct_register_custom_op", "opdock.direct_register_custom_op"),
    Port("vllm.utils.direct_register_custom_op", "opdock.direct_register_custom_op"),
    Port("vllm.logger.init_logger", LOGGING),
    Port("vllm.logger.logger", LOGGING),
    Port("vllm.logger", "logging", "opdock configures no logging"),
    Port("vllm.logging_utils", "logging", "opdock configures no logging"),
    Port("vllm.config.VllmConfig", "opdock.OpdockConfig", "what hooks get; it has no engine settings"),
    Port("vllm.config.vllm.VllmConfig", "opdock.OpdockConfig", "what hooks get; it has no engine settings"),
    Port("vllm.config.CompilationConfig", "opdock.CompilationConfig"),
    Port("vllm.config.CompilationMode", "opdock.CompilationMode"),
    Port("vllm.config.compilation.CompilationConfig", "opdock.CompilationConfig"),
    Port("vllm.config.compilation.CompilationMode", "opdock.CompilationMode"),
    Port("vllm.config.KernelConfig", "opdock.KernelConfig"),
    Port("vllm.config.kernel.IrOpPriorityConfig", "opdock.IrOpPriorityConfig"),
    Port("vllm.config.IrOpPriorityConfig", "opdock.IrOpPriorityConfig"),
    Port("vllm.config.get_current_vllm_config", "opdock.get_current_config"),
    Port("vllm.config.get_current_vllm_config_or_none", "opdock.get_current_config"),
    Port("vllm.config.set_current_vllm_config", "opdock.set_current_config"),
    Port("vllm.config", "", "settings of an engine"),
    Port("vllm.triton_utils", "triton", "import triton in the module of the kernels, not above"),
    Port("vllm.envs", "os.environ", "of VLLM_*, opdock reads VLLM_PLUGINS, VLLM_TARGET_DEVICE, VLLM_BATCH_INVARIANT"),
    Port("vllm.compilation.passes", "opdock.compile.fusion.Fusion", "given by Platform.compile_passes"),
    Port("vllm.compilation.decorators.support_torch_compile", 'torch.compile(model, backend="opdock")'),
    Port("vllm.compilation", "opdock.compile", "graphs are not split, and none is captured"),
    Port("vllm.distributed", "torch.distributed", "and the IR op opdock.ir.ops.all_reduce"),
    Port("vllm._custom_ops", "torch.ops", "the ops of your own extension"),
    Port("vllm._C", "torch.ops", "the ops of your own extension, loaded in import_kernels"),
    Port("vllm.model_executor.models", "", "plugins register no models here"),
    Port("vllm.ModelRegistry", "", "plugins register no models here"),
    Port("vllm.model_executor.model_loader", "", "plugins register no loaders here"),
    Port("vllm.model_executor.parameter", "torch.nn.Parameter"),
    Port("vllm.model_executor.utils", "", "attributes of weights for an engine's loader"),
    Port("vllm.model_executor", "", ENGINE),
    Port("vllm.forward_context", "", "what a forward needs is passed to it"),
    Port("vllm.lora", "", ENGINE),
    Port("vllm.utils", "", "helpers: take them from the standard library or write them"),
    Port("vllm.version", "opdock.__version__"),
    Port("vllm.v1", "", ENGINE),
    Port("vllm", "", ENGINE),
)


def port_of(name: str) -> Port:
    """Return the row for a dotted name of vLLM: the longest that it begins with."""
    fits = [p for p in TABLE if name == p.theirs or name.startswith(p.theirs + ".")]
    return max(fits, key=lambda p: len(p.theirs))


def as_markdown() -> str:
    """Return the table as the page has it."""
    rows = [f"| `{p.theirs}` | {f'`{p.ours}`' if p.ours else 'nothing'} | {p.note} |" for p in TABLE]
    return "\n".join(["| vLLM | here | |", "|---|---|---|", *rows]) + "\n"
