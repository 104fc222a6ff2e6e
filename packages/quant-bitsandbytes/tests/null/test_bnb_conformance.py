"""The scheme keeps its contract, by the suite that plugin authors run on theirs, for each way to store a layer."""

import numpy as np
import pytest

from modulm_quant_bitsandbytes.scheme import BitsAndBytes
from modulm_testkit.quantization import QuantizationConformance
from modulm_testkit.samples import QuantizedSample

UP = "model.layers.0.mlp.up_proj"
PLAIN = {"lm_head": np.arange(32, dtype=np.float32).reshape(4, 8)}


class TestNF4(QuantizationConformance):
    @pytest.fixture
    def scheme(self, four_bit):
        layer = four_bit((6, 128))
        return QuantizedSample(
            scheme=BitsAndBytes, checkpoint=layer.checkpoint(), weights={UP: layer.worth}, plain=PLAIN
        )


class TestFP4WithTwoLevelsOfScales(QuantizationConformance):
    @pytest.fixture
    def scheme(self, four_bit):
        layer = four_bit((10, 96), kind="fp4", nested=4)
        return QuantizedSample(
            scheme=BitsAndBytes, checkpoint=layer.checkpoint(), weights={UP: layer.worth}, plain=PLAIN
        )


class TestLLMInt8(QuantizationConformance):
    @pytest.fixture
    def scheme(self, eight_bit):
        layer = eight_bit((6, 128))
        return QuantizedSample(
            scheme=BitsAndBytes, checkpoint=layer.checkpoint(), weights={UP: layer.worth}, plain=PLAIN
        )
