"""The scheme keeps its contract, by the suite that plugin authors run on theirs, for each format."""

import pytest

from modulm_quant_compressed_tensors.scheme import CompressedTensors
from modulm_testkit.quantization import QuantizationConformance
from modulm_testkit.samples import QuantizedSample

UP = "model.layers.0.mlp.up_proj"
KINDS = (
    "int4, groups", "int4, rows", "int3, groups, zero points", "int4, groups, order", "int8, rows", "int8, groups",
    "int1, groups", "bytes, rows", "bytes, tensor", "bytes, groups, zero points", "fp8, blocks", "fp8, rows",
    "fp8, tensor", "mxfp8", "nvfp4", "mxfp4",
)  # fmt: skip


class TestEachFormat(QuantizationConformance):
    @pytest.fixture(params=KINDS)
    def scheme(self, request, stored):
        """A layer of random codes, whose values were worked out number by number."""
        layer = stored(request.param)
        return QuantizedSample(
            scheme=CompressedTensors,
            checkpoint=layer.checkpoint(),
            weights={UP: layer.worth},
            plain={"lm_head": layer.head},
        )
