"""Packages whose layers fit and compute, and not what the in-tree layers do."""

from __future__ import annotations

from negative.base import GELU, ROW, Negative

_LAYERS = "layers.py"
_ROW = "class GoodRowParallelLinear(RowParallelLinear):\n"

NEGATIVES = (
    Negative(
        "other parameters",
        "layer.state_dict[row_parallel_linear]",
        "packed: (64,) torch.float32, in-tree missing",
        "weights in the layout of the kernel: no checkpoint has them",
        ROW,
        (
            (
                _LAYERS,
                _ROW,
                _ROW + "    def __init__(self, *args, **kwargs):\n        super().__init__(*args, **kwargs)\n"
                "        self.packed = torch.nn.Parameter(torch.zeros(64))\n\n",
            ),
        ),
    ),
    Negative(
        "layer that computes something else",
        "layer.values[gelu_and_mul]",
        "of the layer is wrong",
        "gate and up in the other order",
        GELU,
        ((_LAYERS, "gate, up = x.chunk", "up, gate = x.chunk"),),
    ),
    Negative(
        "layer without its bias",
        "layer.values[row_parallel_linear]",
        "It gives 2 tensors, the in-tree layer 1",
        "skip_bias_add as another release meant it",
        ROW,
        ((_LAYERS, "self.bias if self.skip_bias_add else None", "self.bias"),),
    ),
    Negative(
        "layer that cannot be copied",
        "layer.copies[gelu_and_mul]",
        "The layer cannot be copied with copy.deepcopy",
        "a handle of the driver as an attribute",
        GELU,
        (
            (
                _LAYERS,
                "    def forward_oot(",
                (
                    '    def __init__(self, approximate="none"):\n        super().__init__(approximate)\n'
                    "        self.stream = (i for i in ())\n\n    def forward_oot("
                ),
            ),
        ),
    ),
    Negative(
        "copy that computes something else",
        "layer.copies[gelu_and_mul]",
        "A copy made with copy.deepcopy computes something else",
        "a state that leaves out what the constructor makes",
        GELU,
        (
            (
                _LAYERS,
                "    def forward_oot(",
                (
                    "    scale = 0.0\n\n"
                    '    def __init__(self, approximate="none"):\n'
                    "        super().__init__(approximate)\n        self.scale = 1.0\n\n"
                    "    def __getstate__(self):\n"
                    '        return {k: v for k, v in super().__getstate__().items() if k != "scale"}\n\n'
                    "    def forward_oot("
                ),
            ),
            (_LAYERS, "approximate=self.approximate) * up", "approximate=self.approximate) * up * self.scale"),
        ),
    ),
    Negative(
        "layer that reads data",
        "layer.compiled[gelu_and_mul]",
        "The layer cannot be compiled",
        "a branch on what a tensor holds",
        GELU,
        (
            (
                _LAYERS,
                "        gate, up = x.chunk",
                "        if not x.abs().max().item():\n            return x[..., ::2]\n        gate, up = x.chunk",
            ),
        ),
    ),
    Negative(
        "layer that is another one in compiled code",
        "layer.compiled[gelu_and_mul]",
        "The layer computes something else in compiled code",
        "a path for compiled code that was not kept up",
        GELU,
        (
            (
                _LAYERS,
                "approximate=self.approximate)",
                'approximate="tanh" if torch.compiler.is_compiling() else self.approximate)',
            ),
        ),
    ),
)
