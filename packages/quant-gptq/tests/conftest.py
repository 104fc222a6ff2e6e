"""Writes GPTQ layers from plain codes, by the format's description: an independent packer, bit by bit. No torch."""

import numpy as np
import pytest

CONFIG = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": False}


def words(codes, bits):
    """Pack uint [n, width] into int32 [n, width * bits / 32]: a stream of bits, the lowest first."""
    bit = (codes[..., None].astype(np.int64) >> np.arange(bits)) & 1
    packed = np.packbits(bit.reshape(len(codes), -1).astype(np.uint8), axis=1, bitorder="little")
    return np.ascontiguousarray(packed).view("<i4")


def layer(out_features, in_features, *, bits=4, group_size=32, seed=0, g_idx=None, v2=False, least_zero=1):
    """Return (tensors by leaf, the matrix float64 [out_features, in_features])."""
    rng = np.random.default_rng(seed)
    size = in_features if group_size < 0 else group_size
    groups = in_features // size
    g_idx = np.arange(in_features, dtype=np.int32) // size if g_idx is None else g_idx
    codes = rng.integers(0, 2**bits, (out_features, in_features))
    zeros = rng.integers(least_zero, 2**bits, (groups, out_features))
    scales = rng.uniform(0.01, 0.1, (groups, out_features)).astype(np.float16)
    matrix = scales.astype(np.float64)[g_idx].T * (codes - zeros[g_idx].T)
    tensors = {
        "qweight": np.ascontiguousarray(words(codes, bits).T),
        "qzeros": words(zeros if v2 else zeros - 1, bits),
        "scales": scales,
        "g_idx": g_idx,
    }
    return tensors, matrix


def scattered(in_features, group_size, seed=0):
    """Return g_idx of inputs that were taken in a random order."""
    order = np.random.default_rng(seed).permutation(in_features)
    g_idx = np.empty(in_features, np.int32)
    g_idx[order] = np.arange(in_features) // group_size
    return g_idx


@pytest.fixture(scope="session")
def gptq_layer():
    """Make a layer: see `layer`."""
    return layer


@pytest.fixture(scope="session")
def gptq_config():
    """quantization_config of a layer as `gptq_layer()` makes it."""
    return CONFIG


@pytest.fixture(scope="session")
def gptq_scattered():
    """Make `g_idx` out of order: see `scattered`."""
    return scattered
