"""The one place where arrays of checkpoints and weights become torch tensors. Knows no kinds and no names."""

import warnings

import numpy as np
import torch


def to_torch(array: np.ndarray, device: str = "cpu") -> torch.Tensor:
    """Return the array on `device`, in its dtype; on the CPU it is the same memory, which nobody may write to.

    Types that numpy has from `ml_dtypes` go by the names that torch has for them.
    """
    plain = array if array.dtype.isbuiltin == 1 else array.view(f"u{array.itemsize}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of arrays that cannot be written
        tensor = torch.from_numpy(plain)
    return tensor.view(getattr(torch, array.dtype.name)).to(device)
