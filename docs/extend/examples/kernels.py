"""Multiplies plain weights in float64: slow, and exact enough to find out what another kernel rounds away."""

import numpy as np
import torch

from modulm.interfaces.kernels import KernelProvider
from modulm.interfaces.quantization import Dense
from modulm.interfaces.support import Accepted, Rejected


class Matrix:
    """A packed weight: what `linear` and `rows` need, laid out once."""

    def __init__(self, weight, device):
        self.data = torch.from_numpy(weight.data.astype(np.float64)).to(device)

    def linear(self, x):
        return (x.double() @ self.data.T).to(x.dtype)

    def rows(self, index, dtype):
        return self.data[index].to(dtype)

    @property
    def size_bytes(self):
        return self.data.nbytes


class Float64Kernels(KernelProvider):
    """Asked for each weight, in the order that the platform prefers; `kernels="NAME"` asks no other."""

    name = "float64"

    def supports(self, op, weight, device_type):
        if op not in ("linear", "embedding"):
            return Rejected(f"it has no {op!r}, only linear and embedding")
        if not isinstance(weight, Dense):
            return Rejected(f"it multiplies plain weights, not {type(weight).__name__}")
        return Accepted()

    def pack(self, weight, device, dtype):
        return Matrix(weight, device)
