"""The schemes keep the contract, by the testkit's suite; what the weights are worth is worked out in float64."""

import ml_dtypes
import numpy as np
import pytest

from modulm_quant_modelopt.scheme import ModelOpt, ModelOptFP4, ModelOptMixed, ModelOptMXFP8
from modulm_testkit.fakes import MemoryCheckpoint
from modulm_testkit.quantization import QuantizationConformance
from modulm_testkit.samples import QuantizedSample

ROWS, COLUMNS = 160, 192
UP, DOWN, HEAD = "model.layers.0.mlp.up_proj", "model.layers.0.mlp.down_proj", "lm_head"
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E4M3 = ml_dtypes.float8_e4m3fn


def spread(scales, high, wide):
    """The scale of every number, float64."""
    return scales.astype(np.float64)[np.arange(ROWS)[:, None] // high, np.arange(COLUMNS)[None] // wide]


def eights(rng):
    data = rng.normal(size=(ROWS, COLUMNS)).astype(E4M3)
    return data, data.astype(np.float64)


def fours(rng):
    """Codes of 4 bits, the even column in the low half of a byte; the highest bit is the sign."""
    codes = rng.integers(0, 16, (ROWS, COLUMNS))
    return (codes[:, ::2] + 16 * codes[:, 1::2]).astype(np.uint8), E2M1[codes % 8] * np.where(codes < 8, 1, -1)


def fp8(rng, shape, high, wide):
    data, worth = eights(rng)
    scales = np.asarray(rng.random(shape) + 0.1, np.float32)
    grid = (-(-ROWS // high), -(-COLUMNS // wide))
    return {"weight": data, "weight_scale": scales}, worth * spread(scales.reshape(grid), high, wide)


def microscaled(rng, numbers, dtype="uint8"):
    data, worth = numbers(rng)
    exponents = rng.integers(110, 131, (ROWS, COLUMNS // 32)).astype(np.uint8)
    stored = exponents if dtype == "uint8" else exponents.view(ml_dtypes.float8_e8m0fnu)
    return {"weight": data, "weight_scale": stored}, worth * spread(2.0 ** (exponents.astype(float) - 127), 1, 32)


def nvfp4(rng, group):
    data, worth = fours(rng)
    scales = (rng.random((ROWS, COLUMNS // group)) * 400).astype(E4M3)
    tensor = np.float32(0.000417)
    worth = worth * spread(scales, 1, group) * float(tensor)
    return {"weight": data, "weight_scale": scales, "weight_scale_2": np.array(tensor)}, worth


STORED = {
    "FP8": lambda rng: fp8(rng, (), ROWS, COLUMNS),
    "FP8_PER_CHANNEL_PER_TOKEN": lambda rng: fp8(rng, (ROWS,), 1, COLUMNS),
    "FP8_PB_WO": lambda rng: fp8(rng, (2, 1, 2, 1), 128, 128),
    "fp8_pb_wo": lambda rng: fp8(rng, (2, 2), 128, 128),
    "MXFP8": lambda rng: microscaled(rng, eights),
    "NVFP4": lambda rng: nvfp4(rng, 16),
    "W4A16_NVFP4": lambda rng: nvfp4(rng, 16),
    "W4A8_NVFP4_FP8": lambda rng: nvfp4(rng, 32),
    "MXFP4": lambda rng: microscaled(rng, fours),
    "W4A8_MXFP4_FP8": lambda rng: microscaled(rng, fours, "float8_e8m0fnu"),
}


def sample(scheme, algorithms, declared, *, nested=False):
    rng = np.random.default_rng(0)
    tensors, worth = {}, {}
    for module, algorithm in zip((UP, DOWN), algorithms, strict=True):
        stored, worth[module] = STORED[algorithm](rng)
        tensors |= {f"{module}.{last}": array for last, array in stored.items()}
    plain = rng.normal(size=(8, COLUMNS)).astype(ml_dtypes.bfloat16)
    keys = {"quantization": declared} if nested else declared
    config = {"architectures": ["LlamaForCausalLM"], "quantization_config": {"quant_method": "modelopt", **keys}}
    return QuantizedSample(
        scheme=scheme,
        checkpoint=MemoryCheckpoint(config, {**tensors, f"{HEAD}.weight": plain}),
        weights=worth,
        plain={HEAD: plain.astype(np.float64)},
    )


LAYERS = {UP: {"quant_algo": "NVFP4", "group_size": 16}, "model.layers.*.down_proj": {"quant_algo": "FP8"}}
SAMPLES = {
    **{name: sample(ModelOpt, (name, name), {"quant_algo": name, "ignore": [HEAD]}) for name in STORED},
    "modelopt_fp4": sample(ModelOptFP4, ("NVFP4", "NVFP4"), {"quant_algo": "NVFP4", "exclude_modules": ["*lm_head*"]}),
    "modelopt_mxfp8": sample(ModelOptMXFP8, ("MXFP8", "MXFP8"), {"quant_algo": "MXFP8"}, nested=True),
    "modelopt_mixed": sample(
        ModelOptMixed, ("NVFP4", "FP8"), {"quant_algo": "MIXED_PRECISION", "quantized_layers": LAYERS}
    ),
}


class TestModelOpt(QuantizationConformance):
    @pytest.fixture(params=SAMPLES)
    def scheme(self, request):
        return SAMPLES[request.param]
