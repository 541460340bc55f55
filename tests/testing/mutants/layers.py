"""Wrong replaced layers: the gated activation and the linear layer."""

from __future__ import annotations

from mutants.kinds import Mutant, mutant

L = "layers.py"
GELU = "F.gelu(gate, approximate=self.approximate) * up"
GELU_CLASS = "class GoodGeluAndMul(GeluAndMul):\n"
LINEAR = "class GoodRowParallelLinear(RowParallelLinear):\n"
BIAS = "bias = None if self.skip_bias_add else self.bias"
RETURN = "return (y, self.bias if self.skip_bias_add else None) if self.return_bias else y"
PRODUCT = "F.linear(x, self.weight, bias)"


def _built(name: str, line: str, what: str) -> Mutant:
    """Return a mutant whose linear layer does one thing more when it is built."""
    init = f"    def __init__(self, *args, **kwargs):\n        super().__init__(*args, **kwargs)\n        {line}\n\n"
    return mutant(name, L, LINEAR, LINEAR + init, what)


MUTANTS = (
    mutant("gelu_always_tanh", L, "approximate=self.approximate", 'approximate="tanh"', "tanh for the error function"),
    mutant("gelu_never_tanh", L, "approximate=self.approximate", 'approximate="none"', "the approximation is ignored"),
    mutant("gelu_quick", L, GELU, "gate * torch.sigmoid(1.702 * gate) * up", "another approximation"),
    mutant("gelu_is_silu", L, GELU, "F.silu(gate) * up", "SiLU for GELU"),
    mutant("gelu_swapped", L, "gate, up = x.chunk", "up, gate = x.chunk", "gate and up are swapped"),
    mutant("gelu_in_place", L, GELU, "gate.copy_(F.gelu(gate, approximate=self.approximate)).mul_(up)", "x is written"),
    mutant("gelu_two_dimensions_only", L, "x.chunk(2, dim=-1)", "x.chunk(2, dim=1)", "the second dimension is halved"),
    mutant("gelu_forward_misspelt", L, "def forward_oot", "def forward_ooo", "the method is never called"),
    mutant("gelu_forward_native_replaced", L, "def forward_oot", "def forward_native", "the reference is replaced"),
    mutant(
        "gelu_other_default",
        L,
        GELU_CLASS,
        GELU_CLASS + '    def __init__(self, approximate="tanh"):\n        super().__init__(approximate)\n\n',
        "the constructor's default is changed",
    ),
    mutant(
        "gelu_renamed_argument",
        L,
        GELU_CLASS,
        GELU_CLASS + '    def __init__(self, approx="none"):\n        super().__init__(approx)\n\n',
        "the constructor's argument is renamed",
    ),
    mutant(
        "gelu_forgets_super",
        L,
        GELU_CLASS,
        GELU_CLASS + '    def __init__(self, approximate="none"):\n        self.approximate = approximate\n\n',
        "super().__init__ is not called",
    ),
    mutant("gelu_clamped", L, GELU, GELU.replace("gate,", "gate.clamp(max=10),", 1), "a gate above 10 is cut"),
    mutant("linear_no_bias", L, BIAS, "bias = None", "the bias is dropped"),
    mutant("linear_bias_twice", L, PRODUCT, f"{PRODUCT} + (0 if bias is None else bias)", "the bias is added twice"),
    mutant("linear_bias_in_spite_of_skip", L, BIAS, "bias = self.bias", "skip_bias_add is ignored"),
    mutant(
        "linear_skipped_bias_lost",
        L,
        RETURN,
        RETURN.replace("self.bias if self.skip_bias_add else None", "None"),
        "the skipped bias is not returned",
    ),
    mutant(
        "linear_bias_returned_always",
        L,
        RETURN,
        RETURN.replace(" if self.skip_bias_add else None", ""),
        "an added bias is returned too",
    ),
    mutant("linear_returns_tensor", L, RETURN, "return y", "no pair is returned"),
    mutant("linear_return_bias_ignored", L, " if self.return_bias else y", "", "a pair where y alone is asked for"),
    mutant("linear_needs_bias", L, PRODUCT, "x @ self.weight.t() + bias", "no bias raises"),
    mutant(
        "linear_flattens", L, PRODUCT, "F.linear(x.flatten(0, -2), self.weight, bias)", "three dimensions become two"
    ),
    mutant("linear_in_bfloat16", L, PRODUCT, f"{PRODUCT.replace('x,', 'x.bfloat16().to(x.dtype),')}", "x is rounded"),
    mutant(
        "linear_weight_in_8_bits", L, "self.weight, bias", "(self.weight * 64).round() / 64, bias", "rounded weights"
    ),
    mutant(
        "linear_weight_kept_transposed",
        L,
        f"        y = {PRODUCT}\n",
        "        if not hasattr(self, 'kept'):\n            self.kept = self.weight.t().contiguous()\n"
        "        y = x @ self.kept if bias is None else x @ self.kept + bias\n",
        "the weight is transposed once, and stale after loading anew",
    ),
    mutant(
        "linear_bias_kept",
        L,
        f"        {BIAS}",
        f"        {BIAS}\n        if bias is not None:\n"
        f"            self.__dict__.setdefault('kept', bias.detach().clone())\n"
        "            bias = self.kept",
        "the first bias is kept",
    ),
    mutant("linear_odd_rows", L, PRODUCT, f"{PRODUCT}.mul(1.02 if x.shape[0] == 3 else 1)", "2 % off at three rows"),
    mutant("linear_many_rows", L, PRODUCT, f"{PRODUCT}.mul(1.02 if x.shape[0] > 64 else 1)", "2 % off above 64 rows"),
    mutant("linear_writes_input", L, f"        {BIAS}", f"        {BIAS}\n        x.clamp_(-3, 3)", "x is written"),
    _built(
        "linear_renames_weight",
        "self.kernel = self.weight; del self.weight; type(self).weight = property(lambda self: self.kernel)",
        "the weight has another name in checkpoints",
    ),
    _built("linear_extra_parameter", "self.scale = torch.nn.Parameter(torch.ones(1))", "checkpoints lack a parameter"),
    _built("linear_extra_buffer", "self.register_buffer('scale', torch.ones(1))", "checkpoints lack a buffer"),
    _built(
        "linear_weight_transposed", "self.weight.data = self.weight.data.t().contiguous().t()", "strides of a transpose"
    ),
    _built("linear_weight_needs_grad", "self.weight.requires_grad_(True)", "the weight requires a gradient"),
    _built("linear_other_dtype", "self.weight.data = self.weight.data.float()", "the weight is float32 always"),
    _built("linear_not_copyable", "import threading; self.lock = threading.Lock()", "deepcopy and pickle raise"),
    _built("linear_not_picklable", "self.scale = lambda x: x", "pickle raises"),
    _built(
        "linear_captures_itself",
        "self.forward = lambda x, own=self: GoodRowParallelLinear.forward(own, x)",
        "a copy uses the original's weight",
    ),
    _built(
        "linear_default_bias",
        "kwargs.get('bias', False) or setattr(self, 'bias', None)",
        "no bias unless asked by name",
    ),
    _built("linear_loses_loader", "self.weight_loader = None", "checkpoints cannot be loaded"),
    mutant(
        "linear_loader_transposes",
        L,
        LINEAR,
        LINEAR + "    def weight_loader(self, param, loaded_weight):\n"
        "        square = loaded_weight.dim() == 2 and loaded_weight.shape[0] == loaded_weight.shape[1]\n"
        "        super().weight_loader(param, loaded_weight.t() if square else loaded_weight)\n\n",
        "square weights are loaded transposed",
    ),
    mutant(
        "linear_signature", L, "    def forward(self, x):\n", "    def forward(self, x, scale):\n", "one more argument"
    ),
    mutant(
        "linear_argument_renamed",
        L,
        "    def forward(self, x):\n",
        "    def forward(self, input_):\n        x = input_\n",
        "forward's argument is renamed",
    ),
    mutant(
        "linear_call_replaced",
        L,
        LINEAR,
        LINEAR + "    def __call__(self, x):\n        return self.forward(x)\n\n",
        "hooks are lost",
    ),
)
