"""Writes AWQ layers from plain codes, by the description of AutoAWQ's two layouts. No torch."""

import numpy as np
import pytest

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
CONFIG = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}


def packed(codes, order):
    """Pack [n, width] into int32 [n, width / 8]: nibble k of a word is code order[k] of its eight."""
    eights = codes.reshape(len(codes), -1, 8).astype(np.int64)
    words = sum(eights[..., place] << 4 * nibble for nibble, place in enumerate(order))
    return words.astype(np.uint32).view(np.int32)


def layer(out_features, in_features, *, group_size=32, seed=0, layout="gemm"):
    """Return (tensors by leaf, the matrix float64 [out_features, in_features])."""
    rng = np.random.default_rng(seed)
    size = in_features if group_size < 0 else group_size
    groups = in_features // size
    codes = rng.integers(0, 16, (out_features, in_features))
    zeros = rng.integers(0, 16, (out_features, groups))
    scales = rng.uniform(0.01, 0.1, (out_features, groups)).astype(np.float16)
    matrix = scales.astype(np.float64).repeat(size, axis=1) * (codes - zeros.repeat(size, axis=1))
    if layout == "gemm":
        tensors = {"qweight": packed(codes.T, ORDER), "qzeros": packed(zeros.T, ORDER), "scales": scales.T.copy()}
        return tensors, matrix
    wide = -(-groups // 8) * 8 * {32: 4, 64: 2}.get(size, 1) if groups <= 8 else None
    assert wide, "only rows of few groups are written here"
    pad = ((0, 0), (0, wide - groups))
    tensors = {"qweight": packed(codes, range(8)), "qzeros": packed(np.pad(zeros, pad), range(8))}
    return {**tensors, "scales": np.pad(scales, pad)}, matrix


@pytest.fixture(scope="session")
def awq_layer():
    """Make a layer: see `layer`."""
    return layer


@pytest.fixture(scope="session")
def awq_config():
    """quantization_config of a layer as `awq_layer()` makes it."""
    return CONFIG
