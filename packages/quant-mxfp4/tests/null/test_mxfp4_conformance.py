"""The schemes keep the contract, by the testkit's suite; stacked experts too. Values are worked out in float64."""

import ml_dtypes
import numpy as np
import pytest

from modulm.interfaces.quantization_config import quantization_config
from modulm_quant_mxfp4.scheme import MXFP4, GptOssMXFP4
from modulm_testkit.fakes import MemoryCheckpoint
from modulm_testkit.oracles.weights import dequantised, faults
from modulm_testkit.quantization import QuantizationConformance
from modulm_testkit.samples import QuantizedSample

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
UP, DOWN, HEAD = "model.layers.0.mlp.up_proj", "model.layers.0.mlp.down_proj", "lm_head"
EXPERTS = "model.layers.0.mlp.experts.gate_up_proj"


def in_blocks(rng, *shape):
    """Random codes in blocks, their exponents, and what they are worth."""
    codes = rng.integers(0, 16, (*shape[:-1], shape[-1] // 32, 16, 2))
    exponents = rng.integers(100, 140, codes.shape[:-2])
    values = E2M1[codes % 8] * np.where(codes < 8, 1, -1) * 2.0 ** (exponents[..., None, None] - 127.0)
    blocks = (codes[..., 0] + 16 * codes[..., 1]).astype(np.uint8)
    return blocks, exponents.astype(np.uint8), values.reshape(shape)


def sample(scheme, declared):
    rng = np.random.default_rng(0)
    tensors, worth = {}, {}
    for module, dtype in ((UP, np.uint8), (DOWN, ml_dtypes.float8_e8m0fnu)):
        blocks, scales, worth[module] = in_blocks(rng, 24, 96)
        tensors |= {f"{module}.weight_blocks": blocks, f"{module}.weight_scales": scales.view(dtype)}
    plain = rng.normal(size=(8, 96)).astype(ml_dtypes.bfloat16)
    config = {"architectures": ["LlamaForCausalLM"], "quantization_config": {"quant_method": scheme.name, **declared}}
    return QuantizedSample(
        scheme=scheme,
        checkpoint=MemoryCheckpoint(config, {**tensors, f"{HEAD}.weight": plain}),
        weights=worth,
        plain={HEAD: plain.astype(np.float64)},
    )


SAMPLES = {
    "mxfp4": sample(MXFP4, {"modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}),
    "gpt_oss_mxfp4": sample(GptOssMXFP4, {}),
}


class TestMXFP4(QuantizationConformance):
    @pytest.fixture(params=SAMPLES)
    def scheme(self, request):
        return SAMPLES[request.param]


def test_stacked_experts_are_read_one_by_one():
    blocks, scales, worth = in_blocks(np.random.default_rng(1), 3, 40, 64)
    named = {f"{EXPERTS}_blocks": blocks, f"{EXPERTS}_scales": scales, f"{EXPERTS}_bias": np.zeros((3, 40), np.float32)}
    checkpoint = MemoryCheckpoint({"quantization_config": {"quant_method": "mxfp4"}}, named)
    assert quantization_config(checkpoint).method == "mxfp4"
    scheme = MXFP4.from_checkpoint(checkpoint)
    assert set(scheme.stack_tensors(checkpoint, EXPERTS)) == {f"{EXPERTS}_blocks", f"{EXPERTS}_scales"}
    assert not scheme.stack_tensors(checkpoint, f"{EXPERTS}_bias")
    for index in range(3):
        weight = scheme.stacked(checkpoint, EXPERTS, (3, 40, 64), index)
        assert not faults(weight)
        np.testing.assert_array_equal(dequantised(weight), worth[index])
