"""What computes where there is no NPU: references of torch_npu's operators, under their true schemas.

torch_npu itself is the real one: its dispatcher registrations, meta functions, tensors, allocator and streams. Only the
kernels are replaced: those of aten by the CPU's, on the same memory (``host``), those of torch_npu by references that
refuse what the operators' documentation rules out (``references``). Every call of the latter is kept in ``calls``.
"""

from npu_standin.calls import Call, calls, forget
from npu_standin.install import install

__all__ = ["Call", "calls", "forget", "install"]
