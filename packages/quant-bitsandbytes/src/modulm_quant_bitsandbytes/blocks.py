"""4-bit layers of bitsandbytes: what a layer's `quant_state` says, its tensors checked, and their `Codebook4`.

Blocks run over the flattened matrix, so that one may span rows; two codes share a byte, the first in the high nibble.
Knows no configuration: `scheme.py` asks. Source: `QuantState` and the 4-bit functions of bitsandbytes/functional.py.
"""

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from modulm.errors import CheckpointError
from modulm.interfaces.checkpoint import expect, finite
from modulm.interfaces.quantization import Codebook4, Dense, Weight

if TYPE_CHECKING:
    from modulm.interfaces.checkpoint import Checkpoint

STATE = "weight.quant_state.bitsandbytes__"
"""Begins, within a layer, the name of the tensor that holds `quant_state`; the type of its codes ends it."""
TENSORS = ("weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map")
_TYPES = ("nf4", "fp4")
_STORED = ("uint8", "int8", "float16", "bfloat16", "float32")
"""What `bnb_4bit_quant_storage` may call the packed bytes: they are bytes under any of these names."""


class Blocks:
    """A layer of numbers that share scales by blocks. All its tensors are checked when it is made.

    Args:
        checkpoint: Where they are.
        module: The layer.
        state: Within the layer, the name of the tensor that begins with `STATE`.
        shape: What the model needs, out_features and in_features.

    Raises:
        CheckpointError: Naming the tensor, and the key of its JSON, that is missing or does not fit, or a tensor of
            scales that are no numbers.
    """

    bits = 4

    def __init__(self, checkpoint: "Checkpoint", module: str, state: str, shape: tuple[int, int]) -> None:
        self._checkpoint = checkpoint
        self._name = f"{module}.weight"
        self._shape = shape
        self._kind = state.removeprefix(STATE)
        self._read_state(_State(checkpoint, f"{module}.{state}"))
        self._check()

    @property
    def rule(self) -> str:
        """See `QuantizationScheme.rule`."""
        return f"{self._kind}, blocks of {self._size}" + (", scales of two levels" if self._nested else "")

    def _read_state(self, state: "_State") -> None:
        if self._kind not in _TYPES or state.keys.get("quant_type") != self._kind:
            raise state.refused("quant_type", f"it must end the tensor's name, and be one of {', '.join(_TYPES)}")
        if state.keys.get("shape") != list(self._shape):
            raise state.refused("shape", f"the model needs {list(self._shape)}")
        self._size = state.count("blocksize")
        self._nested: int | None = None
        if "nested_blocksize" in state.keys:
            self._nested = state.count("nested_blocksize")
            offset = state.keys.get("nested_offset")
            if not isinstance(offset, int | float) or not math.isfinite(offset):
                raise state.refused("nested_offset", "it must be a number")
            self._offset = np.float32(offset)

    def _check(self) -> None:
        name, count = self._name, math.prod(self._shape)
        num_blocks = -(-count // self._size)
        who = f"a layer of {self._shape[0]} x {self._shape[1]} ({self.rule})"
        floats = {f"{name}.quant_map": 16}
        if self._nested is None:
            floats[f"{name}.absmax"] = num_blocks
        else:
            expect(self._checkpoint, f"{name}.absmax", (num_blocks,), ("uint8",), who=who)
            floats |= {f"{name}.nested_absmax": -(-num_blocks // self._nested), f"{name}.nested_quant_map": 256}
        for tensor, size in floats.items():
            expect(self._checkpoint, tensor, (size,), ("float32",), who=who)
            finite(self._checkpoint, tensor)
        info = self._checkpoint.info(name)
        if info.size_bytes != (count + 1) // 2 or info.dtype not in _STORED:
            raise CheckpointError(
                f"Tensor {name!r} in {self._checkpoint.path} is {info.dtype} {list(info.shape)}, {info.size_bytes} "
                f"bytes, but {who} needs {(count + 1) // 2}. Check that the checkpoint is complete."
            )

    def weight(self) -> Weight:
        """Return the weight; plain numbers where a row has an odd number of codes."""
        packed = np.ascontiguousarray(self._checkpoint.tensor(self._name)).view(np.uint8).reshape(-1)
        codebook, scales = self._checkpoint.tensor(f"{self._name}.quant_map"), self._scales()
        if self._shape[1] % 2:
            codes = np.stack([packed >> 4, packed & 15], axis=-1).reshape(-1)[: math.prod(self._shape)]
            data = (codebook[codes] * scales.repeat(self._size)[: len(codes)]).reshape(self._shape)
            return Dense(out_features=self._shape[0], in_features=self._shape[1], data=data)
        return codebook4(packed >> 4 | packed << 4, scales, codebook, self._size, self._shape)

    def _scales(self) -> np.ndarray:
        """Return float32, one per block."""
        scales = self._checkpoint.tensor(f"{self._name}.absmax")
        if self._nested is None:
            return scales
        outer = self._checkpoint.tensor(f"{self._name}.nested_absmax").repeat(self._nested)[: len(scales)]
        inner: np.ndarray = self._checkpoint.tensor(f"{self._name}.nested_quant_map")[scales] * outer + self._offset
        return inner


def codebook4(
    codes: np.ndarray, scales: np.ndarray, codebook: np.ndarray, block_size: int, shape: tuple[int, int]
) -> Codebook4:
    """Return a weight of flat codes, the first in the low nibble, and of one scale per block of the flat matrix."""
    out_features, in_features = shape
    group = math.gcd(block_size, in_features)  # never spans blocks, and never rows
    if group < block_size:
        scales = scales[np.arange(0, out_features * in_features, group) // block_size]
    return Codebook4(
        out_features=out_features,
        in_features=in_features,
        group_size=group,
        codes=codes.reshape(out_features, -1),
        scales=scales.reshape(out_features, -1),
        codebook=codebook,
    )


class _State:
    """The JSON object in a tensor `quant_state`."""

    def __init__(self, checkpoint: "Checkpoint", name: str) -> None:
        self._what = f"tensor {name!r} in {checkpoint.path}"
        try:
            keys = json.loads(checkpoint.tensor(name).tobytes())
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"The JSON of {self._what} cannot be read: {error}. Fetch it again.") from error
        if not isinstance(keys, dict):
            raise CheckpointError(f"The JSON of {self._what} is {keys!r}, not an object. Fetch it again.")
        self.keys: dict[str, Any] = keys

    def count(self, key: str) -> int:
        """Return a whole number above 0."""
        value = self.keys.get(key)
        if type(value) is not int or value < 1:
            raise self.refused(key, "it must be a whole number above 0")
        return value

    def refused(self, key: str, why: str) -> CheckpointError:
        """Return the error about a key."""
        return CheckpointError(f"{key}={self.keys.get(key)!r} in {self._what} is refused: {why}.")
