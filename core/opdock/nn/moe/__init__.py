"""Mixtures of experts: the layer, the choice of experts, and the backends that compute them."""

from opdock.nn.moe.backend import ExpertInputs, MoEBackend, MoEProblem, moe_backends, register_moe_backend
from opdock.nn.moe.fused_moe import FusedMoE, choose
from opdock.nn.moe.routing import Routing, route
from opdock.nn.moe.selector import Selection, Verdict, select

__all__ = [
    "ExpertInputs",
    "FusedMoE",
    "MoEBackend",
    "MoEProblem",
    "Routing",
    "Selection",
    "Verdict",
    "choose",
    "moe_backends",
    "register_moe_backend",
    "route",
    "select",
]
