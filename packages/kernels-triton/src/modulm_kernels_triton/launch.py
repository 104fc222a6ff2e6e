"""What every product shares around its kernel: the device's context and size, and sums of parts. Knows no layout."""

from contextlib import AbstractContextManager, nullcontext

import torch


def widens(x: torch.Tensor) -> bool:
    """Say whether products need wider numbers: the interpreter takes the bits of bfloat16 for whole numbers."""
    return not x.is_cuda and x.dtype is torch.bfloat16


def on_device(x: torch.Tensor) -> AbstractContextManager[object]:
    """Make a tensor's device the current one, where Triton launches."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def num_processors(tensor: torch.Tensor) -> int:
    """Return the multiprocessors of a tensor's device; the interpreter has one."""
    return torch.cuda.get_device_properties(tensor.device).multi_processor_count if tensor.is_cuda else 1


def partial_sums(x: torch.Tensor, out_features: int, split: int) -> torch.Tensor:
    """Return [split, num_tokens, out_features] to write to: float32 where there are parts to add up, else x's dtype."""
    return x.new_empty(split, len(x), out_features, dtype=torch.float32 if split > 1 else x.dtype)


def added(parts: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the parts' sum: in one order whatever ran first, so that a result is the same every time."""
    return parts[0] if len(parts) == 1 else parts.sum(0).to(dtype)
