"""Tensors as the arrays that weights hold."""

import ml_dtypes
import torch

_VIEWS = {
    torch.bfloat16: (torch.uint16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
}


def array(tensor):
    """Return the same numbers; what numpy has no type for has that of ml_dtypes."""
    if tensor.dtype not in _VIEWS:
        return tensor.numpy()
    bits, dtype = _VIEWS[tensor.dtype]
    return tensor.view(bits).numpy().view(dtype)
