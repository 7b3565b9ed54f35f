"""Triton kernels run on the GPU where there is one, else in Triton's interpreter: the same source, the same tests.

Imported for its effect, before any kernel module: Triton reads the variable when a kernel is defined.
"""

import os

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.runtime.interpreter import _LangPatchScope

    set_attr = _LangPatchScope.set_attr

    def set_attr_for_numpy(scope, owner, name, value):
        """Triton 3.6 calls int() on arrays of one entry for loop bounds; NumPy 2.4 refuses."""
        if name == "__index__":
            set_attr(scope, owner, name, lambda tensor: int(tensor.handle.data.item()))
        else:
            set_attr(scope, owner, name, value)

    _LangPatchScope.set_attr = set_attr_for_numpy
