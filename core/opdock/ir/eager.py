"""Is a call that failed the fast tests plain eager code all the same?"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_PLAIN = (torch.Tensor, torch.nn.Parameter, type(None))


def is_plain(tensors: Sequence[object]) -> bool:
    """Return whether the call may go directly to the provider.

    Parameters, and ``torch.device`` as a context or a default, are plain eager code. Dispatch modes, tensor
    subclasses, function modes and function transforms are not.
    """
    c = torch._C
    if c._len_torch_dispatch_stack() or c._functorch.peek_interpreter_stack() is not None:
        return False
    for tensor in tensors:
        if isinstance(tensor, list | tuple):
            if not all(type(t) in _PLAIN for t in tensor):
                return False
        elif type(tensor) not in _PLAIN:
            return False
    depth = c._len_torch_function_stack()
    if not depth:
        return True
    from torch.utils._device import DeviceContext

    return all(isinstance(c._get_function_stack_at(i), DeviceContext) for i in range(depth))
