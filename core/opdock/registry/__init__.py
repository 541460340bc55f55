"""Op classes, their replacements, the switches over them, and torch-library registration."""

from opdock.registry.custom_op import CustomOp
from opdock.registry.library import direct_register_custom_op
from opdock.registry.op_class import OpClass
from opdock.registry.pluggable_layer import PluggableLayer
from opdock.registry.switches import ClassChoice, choose_class
from opdock.registry.tables import maybe_get_oot_by_class, op_registry, op_registry_oot

__all__ = [
    "ClassChoice",
    "CustomOp",
    "OpClass",
    "PluggableLayer",
    "choose_class",
    "direct_register_custom_op",
    "maybe_get_oot_by_class",
    "op_registry",
    "op_registry_oot",
]
