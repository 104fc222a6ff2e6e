"""Caches of signed bytes with scales, read and written with numpy alone; `native/attention.hpp` has the layout."""

import numpy as np


def quantised(numbers):
    """Return codes from -127 to 127 and scales, one for each row of the last dimension."""
    numbers = numbers.astype(np.float64)
    scales = np.abs(numbers).max(-1, keepdims=True) / 127
    return np.rint(numbers / np.where(scales, scales, 1)).astype(np.int8), scales.astype(np.float32)


def rounded(numbers):
    """Return what remains of numbers: float32."""
    codes, scales = quantised(numbers)
    return codes * scales


def _places(block, size):
    """Where each number of a block's keys and values is among its bytes: [2, block, size]."""
    offset, d = np.mgrid[:block, :size]
    first = offset // 4 * 4
    keys = d // 4 * 4 * block + offset * 4 + d % 4
    values = first * size + d * np.minimum(4, block - first) + offset - first
    return np.stack([keys, values])


def put(cache, block, offset, key, value):
    """Write a token, both of [heads, size]."""
    *_, block_size, size = cache.shape
    size -= 4
    places = _places(block_size, size)
    chunks = cache.reshape(*cache.shape[:3], -1)
    for part, numbers in enumerate((key, value)):
        codes, scales = quantised(numbers)
        chunks[block, part][:, places[part, offset]] = codes
        begin = block_size * size + 4 * offset
        chunks[block, part, :, begin : begin + 4] = scales.view(np.int8)


def contents(cache):
    """Return codes [num_blocks, 2, heads, block, size] and scales without the last dimension."""
    *_, block_size, size = cache.shape
    size -= 4
    chunks = cache.reshape(*cache.shape[:3], -1)
    codes = np.stack([chunks[:, part][..., place] for part, place in enumerate(_places(block_size, size))], axis=1)
    return codes, chunks[..., block_size * size :].copy().view(np.float32)


def empty(num_blocks, heads, block, size):
    """Return a cache whose scales are NaN and whose bytes are anything."""
    rng = np.random.default_rng(0)
    cache = rng.integers(-128, 128, (num_blocks, 2, heads, block * (size + 4)), np.int8)
    cache[..., block * size :] = np.full(block, np.nan, np.float32).view(np.int8)
    return cache.reshape(num_blocks, 2, heads, block, size + 4)
