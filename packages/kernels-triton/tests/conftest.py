"""Without a GPU the kernels run in Triton's interpreter, which is chosen before Triton is imported. Weights as tests
want them."""

import os

import numpy as np
import pytest

from modulm.interfaces.quantization import Float8, GroupedInt, Reordered

os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def grouped():
    """Make integers of some bits: `grouped(out_features, in_features, bits, group_size)`, -1 for a group a row."""

    def make(rows, width, bits, group_size, seed=0, reordered=False):
        rng = np.random.default_rng(seed)
        size = width if group_size < 0 else group_size
        codes = rng.integers(0, 2**bits, (rows, width)).astype(np.uint8)
        scales = rng.uniform(0.01, 0.1, (rows, width // size)).astype(np.float16)
        zeros = rng.integers(0, 2**bits, scales.shape).astype(np.float32)
        packed = codes[:, ::2] | codes[:, 1::2] << 4 if bits <= 4 else codes
        weight = GroupedInt(
            out_features=rows, in_features=width, bits=bits, group_size=size, codes=packed, scales=scales,
            minimums=-(scales.astype(np.float32) * zeros),
        )  # fmt: skip
        if not reordered:
            return weight
        order = rng.permutation(width).astype(np.int32)
        return Reordered(out_features=rows, in_features=width, weight=weight, order=order)

    return make


@pytest.fixture(scope="session")
def floats():
    """Make 8-bit floats: `floats(out_features, in_features, block, dtype)`."""

    def make(rows, width, block, dtype="float8_e4m3fn", seed=0):
        import ml_dtypes

        rng = np.random.default_rng(seed)
        high, wide = (side or whole for side, whole in zip(block, (rows, width), strict=True))
        data = rng.normal(size=(rows, width)).astype(getattr(ml_dtypes, dtype))
        scales = rng.uniform(0.5, 2, (-(-rows // high), -(-width // wide))).astype(np.float32)
        return Float8(out_features=rows, in_features=width, data=data, scales=scales, block=(high, wide))

    return make
