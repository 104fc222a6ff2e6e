"""Names, lists and everything that is refused: by tensor, key and value."""

import json

import ml_dtypes
import numpy as np
import pytest

from modulm.errors import CheckpointError
from modulm_quant_awq.scheme import AWQScheme
from modulm_testkit.fakes import MemoryCheckpoint
from modulm_testkit.oracles.weights import dequantised

LAYER, SHAPE = "model.layers.0.mlp.gate_proj", (32, 128)


@pytest.fixture
def made(awq_layer, awq_config):
    """Make (scheme, checkpoint) of one layer: `made(config keys, tensors to change by leaf)`."""

    def make(keys=None, changes=None, module=LAYER, **options):
        tensors = {**awq_layer(*SHAPE, **options)[0], **(changes or {})}
        named = {f"{module}.{leaf}": array for leaf, array in tensors.items() if array is not None}
        config = {key: value for key, value in {**awq_config, **(keys or {})}.items() if value is not ...}
        checkpoint = MemoryCheckpoint({"quantization_config": config}, named)
        return AWQScheme.from_checkpoint(checkpoint), checkpoint

    return make


def refused(made, match, *, shape=SHAPE, module=LAYER, **arguments):
    """Both what is asked ahead and what loads must refuse, by the same words."""

    def ask(question):
        scheme, checkpoint = made(module=module, **arguments)
        getattr(scheme, question)(checkpoint, module, *shape)

    for question in ("rule", "weight"):
        with pytest.raises(CheckpointError, match=match):
            ask(question)


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"bits": 8}, "bits=8 in the quantization_config of in-memory is refused: there is 4"),
        ({"bits": ...}, "'bits' is missing in the quantization_config"),
        ({"group_size": ...}, "'group_size' is missing"),
        ({"group_size": 0}, "group_size=0 .* -1 stands for a whole row"),
        ({"group_size": "128"}, "group_size='128'"),
        ({"group_size": 48}, "group_size=48 does not divide the 128 inputs of layer 'model.layers.0.mlp.gate_proj'"),
        ({"version": "gemv_fast"}, "version='gemv_fast' .* there is 'gemm', 'gemv'"),
        ({"version": 2}, "version=2"),
        ({"zero_point": "x"}, "zero_point='x'"),
        ({"modules_to_not_convert": ["gate_proj"]}, "'model.layers.0.mlp.gate_proj' .* 'modules_to_not_convert'"),
        (
            {"modules_to_not_convert": ["gate_up_proj"]},
            "is in the list 'modules_to_not_convert' .* has qweight, qzeros",
        ),
    ],
)
def test_declarations_that_are_refused(made, keys, match):
    refused(made, match, keys=keys)


NOT_A_NUMBER = np.ones((4, 32), np.float16)
NOT_A_NUMBER[3, 5] = np.inf


@pytest.mark.parametrize(
    ("leaf", "array", "match"),
    [
        (
            "qweight",
            None,
            "'model.layers.0.mlp.gate_proj.qweight' is missing .* an AWQ layer of 32 x 128 .bits=4, group",
        ),
        ("qzeros", None, "'model.layers.0.mlp.gate_proj.qzeros' is missing"),
        ("scales", None, "'model.layers.0.mlp.gate_proj.scales' is missing"),
        ("weight", np.ones(SHAPE, np.float32), "'model.layers.0.mlp.gate_proj' .* has weight beside qweight"),
        ("g_idx", np.zeros(128, np.int32), "has g_idx beside qweight"),
        ("qweight", np.ones((16, 32), np.int32), r"qweight' in in-memory is int32 \[16, 32\], but .* int32 \[128, 4\]"),
        ("qweight", np.ones((128, 4), np.int64), r"qweight' in in-memory is int64 \[128, 4\]"),
        ("qzeros", np.ones((4, 32), np.int32), r"qzeros' .* int32 \[4, 4\]"),
        ("scales", np.ones((2, 32), np.float16), r"scales' .* is float16 \[2, 32\], but .* \[4, 32\]"),
        ("scales", NOT_A_NUMBER, r"scales' .* has 1 numbers that are NaN or infinite, the first at \[3, 5\]"),
    ],
)
def test_tensors_that_are_refused(made, leaf, array, match):
    refused(made, match, changes={leaf: array})


def test_the_models_shape_must_be_the_checkpoints(made):
    refused(made, r"qweight' in in-memory is int32 \[128, 4\], but an AWQ layer of 64 x 128", shape=(64, 128))
    refused(made, "layer of 30 x 128 .* does not fill whole 32-bit words", shape=(30, 128))


def test_lists_mean_whole_words(made):
    """A mixture's router "gate" is not the "gate_proj" of its experts."""
    scheme, checkpoint = made({"modules_to_not_convert": ["gate", "mlp.gate", "lm_head"]})
    assert scheme.rule(checkpoint, LAYER, *SHAPE) == "4 bits, groups of 32"


def test_a_list_of_parts_against_a_layer_that_is_stored_fused(made):
    fused = "model.layers.0.self_attn.qkv_proj"
    for parts, match in (
        (["q_proj"], "means q_proj of layer '.*qkv_proj', but not k_proj, v_proj"),
        (["q_proj", "k_proj", "v_proj"], "'.*qkv_proj' .* is in the list"),
    ):
        refused(made, match, keys={"modules_to_not_convert": parts}, module=fused)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("layout", ["gemm", "gemv"])
def test_scales_may_be_of_any_float(made, awq_layer, dtype, layout):
    scales = awq_layer(*SHAPE, layout=layout)[0]["scales"].astype(dtype)
    scheme, checkpoint = made({"version": layout}, {"scales": scales}, layout=layout)
    found = scheme.weight(checkpoint, LAYER, *SHAPE).scales
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, scales.astype(np.float32).T if layout == "gemm" else scales[:, :4])


def test_the_older_file_of_its_own(tmp_path, awq_layer):
    """AutoAWQ's quant_config.json, with its names of keys, beside a config.json that declares nothing."""
    tensors, matrix = awq_layer(*SHAPE)
    checkpoint = MemoryCheckpoint({}, {f"{LAYER}.{leaf}": array for leaf, array in tensors.items()})
    assert "quant_method None" in AWQScheme.matches(checkpoint).reason
    checkpoint.path = tmp_path
    keys = {"zero_point": True, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}
    (tmp_path / "quant_config.json").write_text(json.dumps(keys))
    assert AWQScheme.matches(checkpoint)
    weight = AWQScheme.from_checkpoint(checkpoint).weight(checkpoint, LAYER, *SHAPE)
    np.testing.assert_allclose(dequantised(weight), matrix, rtol=1e-6)


@pytest.mark.parametrize("method", ["awq", "awq_marlin", "auto_awq"])
def test_names_of_the_method(method, awq_config):
    stored = {"quantization_config": {**awq_config, "quant_method": method}}
    assert AWQScheme.matches(MemoryCheckpoint(stored, {}))
    assert AWQScheme.matches(MemoryCheckpoint({"text_config": stored}, {}))
