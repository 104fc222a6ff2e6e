"""The scheme keeps the contract in both layouts, for every size of groups."""

import numpy as np
import pytest

from modulm_quant_awq.scheme import AWQScheme
from modulm_testkit.fakes import MemoryCheckpoint
from modulm_testkit.quantization import QuantizationConformance
from modulm_testkit.samples import QuantizedSample

UP, DOWN, PLAIN = "model.layers.0.mlp.up_proj", "model.layers.0.mlp.down_proj", "model.layers.0.mlp.gate"
VARIANTS = [(layout, size) for layout in ("gemm", "gemv") for size in (32, 64, 128, -1)]


class TestAWQScheme(QuantizationConformance):
    @pytest.fixture(params=VARIANTS, ids=lambda variant: f"{variant[0]} {variant[1]}")
    def scheme(self, request, awq_layer, awq_config):
        layout, size = request.param
        tensors, worth = {}, {}
        for seed, (module, shape) in enumerate({UP: (32, 128), DOWN: (64, 256)}.items()):
            made, worth[module] = awq_layer(*shape, seed=seed, group_size=size, layout=layout)
            tensors |= {f"{module}.{leaf}": array for leaf, array in made.items()}
        plain = np.random.default_rng(9).normal(size=(8, 128)).astype(np.float32)
        keys = {"group_size": size, "version": layout.upper(), "modules_to_not_convert": ["mlp.gate"]}
        checkpoint = MemoryCheckpoint({"quantization_config": awq_config | keys}, tensors | {f"{PLAIN}.weight": plain})
        return QuantizedSample(scheme=AWQScheme, checkpoint=checkpoint, weights=worth, plain={PLAIN: plain})
