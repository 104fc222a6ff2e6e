"""The scheme keeps the contract for every number of bits, order of inputs and convention of zero points."""

import numpy as np
import pytest

from modulm_quant_gptq.scheme import GPTQScheme
from modulm_testkit.fakes import MemoryCheckpoint
from modulm_testkit.quantization import QuantizationConformance
from modulm_testkit.samples import QuantizedSample

UP, DOWN, PLAIN = "model.layers.0.mlp.up_proj", "model.layers.0.mlp.down_proj", "model.layers.0.mlp.gate"
VARIANTS = {
    **{f"{bits} bits": {"bits": bits} for bits in (2, 3, 4, 8)},
    **{f"{bits} bits, v2": {"bits": bits, "v2": True, "least_zero": 0} for bits in (2, 3, 4, 8)},
    **{f"{bits} bits, reordered": {"bits": bits, "reordered": True} for bits in (2, 3, 4, 8)},
    "a group a row": {"group_size": -1},
    "groups of 128": {"group_size": 128},
}


class TestGPTQScheme(QuantizationConformance):
    @pytest.fixture(params=VARIANTS)
    def scheme(self, request, gptq_layer, gptq_config, gptq_scattered):
        options = dict(VARIANTS[request.param])
        reordered = options.pop("reordered", False)
        bits, size = options.get("bits", 4), options.get("group_size", 32)
        tensors, worth = {}, {}
        for seed, (module, shape) in enumerate({UP: (32, 128), DOWN: (64, 256)}.items()):
            g_idx = gptq_scattered(shape[1], size, seed) if reordered else None
            made, worth[module] = gptq_layer(*shape, seed=seed, g_idx=g_idx, **options)
            tensors |= {f"{module}.{leaf}": array for leaf, array in made.items()}
        plain = np.random.default_rng(9).normal(size=(8, 128)).astype(np.float32)
        keys = {"bits": bits, "group_size": size, "desc_act": reordered}
        keys |= {"checkpoint_format": "gptq_v2"} if options.get("v2") else {}
        checkpoint = MemoryCheckpoint({"quantization_config": gptq_config | keys}, tensors | {f"{PLAIN}.weight": plain})
        return QuantizedSample(scheme=GPTQScheme, checkpoint=checkpoint, weights=worth, plain={PLAIN: plain})
