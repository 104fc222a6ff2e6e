"""LLM.int8 layers: signed bytes with a scale per output row (`SCB` is 127 times it) -> `ChannelInt8`.

That bitsandbytes multiplies outlying activations in 16 bits is its kernels' business, and no part of the checkpoint.
Source: `Linear8bitLt` of bitsandbytes/nn/modules.py; Dettmers et al. 2022, arXiv:2208.07339.
"""

from typing import TYPE_CHECKING

import numpy as np

from modulm.errors import CheckpointError
from modulm.interfaces.checkpoint import expect, finite
from modulm.interfaces.quantization import ChannelInt8, Weight

if TYPE_CHECKING:
    from modulm.interfaces.checkpoint import Checkpoint

SCALES = "SCB"
LAYOUT = "weight_format"


class Rows:
    """A layer of bytes. All its tensors are checked when it is made.

    Raises `CheckpointError` naming the tensor that is missing or does not fit, or scales that are no numbers.
    """

    bits = 8
    rule = "int8, a scale per row"

    def __init__(self, checkpoint: "Checkpoint", module: str, shape: tuple[int, int]) -> None:
        self._checkpoint = checkpoint
        self._module = module
        self._shape = shape
        who = f"a layer of {shape[0]} x {shape[1]} ({self.rule})"
        expect(checkpoint, f"{module}.weight", shape, ("int8",), who=who)
        expect(checkpoint, f"{module}.{SCALES}", shape[:1], ("float32", "float16", "bfloat16"), who=who)
        finite(checkpoint, f"{module}.{SCALES}")

    def check_layout(self) -> None:
        """Raise `CheckpointError` where the tensor `LAYOUT` is not 0."""
        layout = self._checkpoint.tensor(f"{self._module}.{LAYOUT}").reshape(-1)
        if layout.any():
            raise CheckpointError(
                f"Tensor '{self._module}.{LAYOUT}' in {self._checkpoint.path} is {layout.tolist()}: the weight is in "
                "the order of one GPU's kernels. There is 0, row by row. Save the model again with bitsandbytes 0.45 "
                "or later."
            )

    def weight(self) -> Weight:
        """Return the weight."""
        out_features, in_features = self._shape
        codes = self._checkpoint.tensor(f"{self._module}.weight")
        scales = self._checkpoint.tensor(f"{self._module}.{SCALES}").astype(np.float32) / np.float32(127)
        return ChannelInt8(out_features=out_features, in_features=in_features, codes=codes, scales=scales)
