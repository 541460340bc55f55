"""Packages whose providers and replacements are registered, and never run, or do not fit what they stand for."""

from __future__ import annotations

from negative.activation import PLATFORM
from negative.base import ATTENTION, GELU, SILU, Negative

_LAYERS = "layers.py"
_GELU = "class GoodGeluAndMul(GeluAndMul):\n    def forward_oot(self, x: torch.Tensor) -> torch.Tensor:"
_SILU_LAYER = """\
from opdock.nn.layers import SiluAndMul


@SiluAndMul.register_oot
class GoodSiluAndMul(SiluAndMul):
    def forward_oot(self, x):
        return self.forward_native(x)
"""

NEGATIVES = (
    Negative(
        "provider in no priority",
        "registration.provider_is_tried[silu_and_mul/good]",
        "No priority lists provider good of op silu_and_mul",
        "a provider that is registered and forgotten",
        SILU,
        ((PLATFORM, '            silu_and_mul=["good", "native"],\n', ""),),
    ),
    Negative(
        "provider behind native",
        "registration.provider_is_tried[silu_and_mul/good]",
        "native comes first and takes any arguments",
        "the default order with the provider at its end",
        SILU,
        ((PLATFORM, 'silu_and_mul=["good", "native"]', 'silu_and_mul=["native", "good"]'),),
    ),
    Negative(
        "layer and provider for one op",
        "registration.one_way_for_each_op",
        "GoodSiluAndMul replaces SiluAndMul, and opdock-good provides IR op silu_and_mul too",
        "a port that keeps the layer of vLLM and adds the provider",
        SILU,
        (
            (
                PLATFORM,
                "    @classmethod\n    def import_ir_kernels",
                (
                    "    @classmethod\n    def register_oot(cls):\n        from opdock_good import layers\n\n"
                    "    @classmethod\n    def import_ir_kernels"
                ),
            ),
        ),
        ((_LAYERS, _SILU_LAYER),),
    ),
    Negative(
        "method of another platform",
        "registration.replacement_runs[GeluAndMul]",
        "GoodGeluAndMul defines forward_cuda, but good binds forward_oot",
        "code that was written for a platform that is in the tree",
        GELU,
        ((_LAYERS, "def forward_oot(", "def forward_cuda("),),
    ),
    Negative(
        "replacement that changes nothing",
        "registration.replacement_runs[GeluAndMul]",
        "GoodGeluAndMul changes nothing of GeluAndMul",
        "a placeholder",
        GELU,
        (
            (
                _LAYERS,
                GELU[_LAYERS][GELU[_LAYERS].index("    def forward_oot") :],
                '    """For later."""\n',
            ),
        ),
    ),
    Negative(
        "replacement with another constructor",
        "registration.replacement_signature[GeluAndMul]",
        "'approximate' is missing",
        "a constructor of an earlier release of the host",
        GELU,
        ((_LAYERS, _GELU, _GELU.replace("\n", "\n    def __init__(self):\n        super().__init__()\n\n", 1)),),
    ),
    Negative(
        "replacement with another default",
        "registration.replacement_signature[GeluAndMul]",
        "the default of 'approximate' is 'tanh', in-tree 'none'",
        "what the vendor's kernel computes",
        GELU,
        (
            (
                _LAYERS,
                _GELU,
                _GELU.replace(
                    "\n", '\n    def __init__(self, approximate="tanh"):\n        super().__init__(approximate)\n\n', 1
                ),
            ),
        ),
    ),
    Negative(
        "replacement with another forward",
        "registration.replacement_signature[Attention]",
        "'cache' is missing",
        "attention as an earlier host called it",
        ATTENTION,
        (
            (
                _LAYERS,
                "def forward(self, query, key, value, cache=None):",
                "def forward(self, query, key, value):\n        cache = None",
            ),
        ),
    ),
    Negative(
        "replacement that overrides __call__",
        "registration.replacement_keeps_the_dispatch[GeluAndMul]",
        "overrides __call__: it goes past the dispatch",
        "a way to save nn.Module's overhead",
        GELU,
        (
            (
                _LAYERS,
                _GELU,
                _GELU.replace("\n", "\n    def __call__(self, x):\n        return self.forward_oot(x)\n\n", 1),
            ),
        ),
    ),
)
