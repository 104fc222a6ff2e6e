"""Splitting what several would share."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def divide(numerator: int, denominator: int) -> int:
    """Return the quotient of what divides without rest."""
    assert numerator % denominator == 0, f"{numerator} is not divisible by {denominator}"
    return numerator // denominator


def split_tensor_along_last_dim(
    tensor: "torch.Tensor", num_partitions: int, contiguous_split_chunks: bool = False
) -> "Sequence[torch.Tensor]":
    """Return equal parts of the last dimension."""
    parts = tensor.split(divide(tensor.shape[-1], num_partitions), dim=-1)
    return tuple(part.contiguous() for part in parts) if contiguous_split_chunks else parts
