"""The schemes keep the contract, by the testkit's suite; what the weights are worth is worked out in float64."""

import ml_dtypes
import numpy as np
import pytest

from modulm_quant_fp8.scheme import FP8, FbgemmFP8
from modulm_testkit.fakes import MemoryCheckpoint
from modulm_testkit.quantization import QuantizationConformance
from modulm_testkit.samples import QuantizedSample

ROWS, COLUMNS = 24, 80
UP, DOWN, HEAD = "model.layers.0.mlp.up_proj", "model.layers.0.mlp.down_proj", "lm_head"


def sample(
    scheme, declared, scale_shape, block, *, scale_name="weight_scale", dtype="float8_e4m3fn", scale_dtype="float32"
):
    rng = np.random.default_rng(0)
    tensors, worth = {}, {}
    for module in (UP, DOWN):
        data = rng.normal(size=(ROWS, COLUMNS)).astype(getattr(ml_dtypes, dtype))
        scales = np.exp2(rng.integers(-9, -2, scale_shape)) if "e8m0" in scale_dtype else rng.random(scale_shape) + 0.1
        scales = np.asarray(scales).astype(getattr(ml_dtypes, scale_dtype, scale_dtype))
        tensors |= {f"{module}.weight": data, f"{module}.{scale_name}": scales}
        factors = scales.astype(np.float64).reshape(-(-ROWS // block[0]), -(-COLUMNS // block[1]))
        spread = factors[np.arange(ROWS)[:, None] // block[0], np.arange(COLUMNS)[None] // block[1]]
        worth[module] = data.astype(np.float64) * spread
    plain = rng.normal(size=(8, COLUMNS)).astype(ml_dtypes.bfloat16)
    config = {"architectures": ["LlamaForCausalLM"], "quantization_config": {"quant_method": scheme.name, **declared}}
    return QuantizedSample(
        scheme=scheme,
        checkpoint=MemoryCheckpoint(config, {**tensors, f"{HEAD}.weight": plain}),
        weights=worth,
        plain={HEAD: plain.astype(np.float64)},
    )


INVERSE = {"scale_name": "weight_scale_inv"}
BLOCK = {"weight_block_size": [16, 32], "activation_scheme": "dynamic"}
SAMPLES = {
    "tensor": sample(FP8, {"ignored_layers": [HEAD]}, (), (ROWS, COLUMNS)),
    "tensor, one number": sample(FP8, {"weight_block_size": None}, (1,), (ROWS, COLUMNS), scale_dtype="bfloat16"),
    "tensor, named inverse": sample(FP8, {}, (), (ROWS, COLUMNS), **INVERSE, dtype="float8_e5m2"),
    "row": sample(FP8, {"modules_to_not_convert": ["re:.*head"]}, (ROWS, 1), (1, COLUMNS)),
    "row, vector": sample(FP8, {}, (ROWS,), (1, COLUMNS), scale_dtype="float16"),
    "block": sample(FP8, BLOCK, (2, 3), (16, 32), **INVERSE),
    "block, powers of two": sample(FP8, BLOCK, (2, 3), (16, 32), **INVERSE, scale_dtype="float8_e8m0fnu"),
    "one block": sample(FP8, {"weight_block_size": [128, 128]}, (), (ROWS, COLUMNS)),
    "fbgemm": sample(FbgemmFP8, {"activation_scale_ub": 1200.0}, (ROWS, 1), (1, COLUMNS)),
}


class TestFP8(QuantizationConformance):
    @pytest.fixture(params=SAMPLES)
    def scheme(self, request):
        return SAMPLES[request.param]
