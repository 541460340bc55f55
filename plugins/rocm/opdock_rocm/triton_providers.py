"""The providers named ``triton``: opdock's Triton kernels, for every IR op that has one."""

from __future__ import annotations

from opdock import ir
from opdock.nn.kernels.triton import providers
from opdock_rocm import probe

for _name, _fn, _facts in providers.all_ops(probe.why_not):
    ir.registry[_name].register_impl("triton", **_facts)(_fn)
