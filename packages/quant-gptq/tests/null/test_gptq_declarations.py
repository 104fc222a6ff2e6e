"""Rules of single layers, zero points that borrow, and everything that is refused: by tensor, key and value."""

import numpy as np
import pytest

from modulm.errors import CheckpointError
from modulm.interfaces.quantization import GroupedInt, Reordered
from modulm_quant_gptq.scheme import GPTQScheme
from modulm_testkit.fakes import MemoryCheckpoint
from modulm_testkit.oracles.weights import dequantised

Q, LAYER = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.up_proj"
SHAPE = (32, 128)


@pytest.fixture
def made(gptq_layer, gptq_config):
    """Make (scheme, checkpoint) of one layer: `made(config keys, tensors to change by leaf, gptq_layer's options)`."""

    def make(keys=None, changes=None, module=LAYER, **options):
        tensors = {**gptq_layer(*SHAPE, **options)[0], **(changes or {})}
        named = {f"{module}.{leaf}": array for leaf, array in tensors.items() if array is not None}
        config = {key: value for key, value in {**gptq_config, **(keys or {})}.items() if value is not ...}
        checkpoint = MemoryCheckpoint({"quantization_config": config}, named)
        return GPTQScheme.from_checkpoint(checkpoint), checkpoint

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
        ({"bits": 5}, "bits=5 in the quantization_config of in-memory is refused: there is 2, 3, 4, 8"),
        ({"bits": "4"}, "bits='4'"),
        ({"bits": ...}, "'bits' is missing in the quantization_config of in-memory is refused"),
        ({"group_size": ...}, "'group_size' is missing"),
        ({"group_size": 0}, "group_size=0 .* -1 stands for a whole row"),
        ({"group_size": -2}, "group_size=-2"),
        ({"group_size": 48}, "group_size=48 does not divide the 128 inputs of layer 'model.layers.0.mlp.up_proj'"),
        ({"sym": "yes"}, "sym='yes' .* there is True, False"),
        ({"desc_act": 1}, "desc_act=1"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format='marlin' .* there is 'gptq', 'gptq_v2'"),
        ({"checkpoint_format": "gptq_p"}, "checkpoint_format='gptq_p'"),
        ({"is_marlin_format": True}, "is_marlin_format=True"),
        ({"lm_head": "no"}, "lm_head='no'"),
        ({"dynamic": ["x"]}, "dynamic=.*it must be an object"),
        ({"dynamic": {"-:(": {}}}, r"dynamic=.*'-:\(' is no regular expression"),
        ({"dynamic": {"+:.*": 4}}, r"dynamic=.*'\+:\.\*' must have an object"),
        ({"dynamic": {".*up": {"bits": 7}}}, r"bits=7 in the rule '\.\*up' of 'dynamic' in the quantization_config"),
        (
            {"dynamic": {"-:.*up_proj": {}}},
            "'model.layers.0.mlp.up_proj' .* left as it is, by 'dynamic'.* it has g_idx, q",
        ),
        ({"modules_to_not_convert": ["mlp"]}, "'model.layers.0.mlp.up_proj' .* left as it is"),
        ({"modules_to_not_convert": "mlp"}, "modules_to_not_convert='mlp' .* list of names"),
    ],
)
def test_declarations_that_are_refused(made, keys, match):
    refused(made, match, keys=keys)


NOT_A_NUMBER, FOUR = np.ones((4, 32), np.float16), np.arange(128, dtype=np.int32) // 32
NOT_A_NUMBER[3, 5] = np.nan
UNEVEN, BEYOND = FOUR.copy(), FOUR + 1
UNEVEN[0] = 1


@pytest.mark.parametrize(
    ("leaf", "array", "match"),
    [
        ("qweight", None, "'model.layers.0.mlp.up_proj.qweight' is missing .* a GPTQ layer of 32 x 128 .bits=4, group"),
        ("qzeros", None, "'model.layers.0.mlp.up_proj.qzeros' is missing"),
        ("scales", None, "'model.layers.0.mlp.up_proj.scales' is missing"),
        ("weight", np.ones(SHAPE, np.float32), "'model.layers.0.mlp.up_proj' .* has weight beside g_idx, qweight"),
        ("qscales", np.ones(3, np.float32), "has qscales beside"),
        ("qweight", np.ones((32, 32), np.int32), r"qweight' in in-memory is int32 \[32, 32\], but .* int32 \[16, 32\]"),
        ("qweight", np.ones((16, 32), np.int64), r"qweight' in in-memory is int64 \[16, 32\], but .* int32 \[16, 32\]"),
        ("qzeros", np.ones((4, 32), np.int32), r"qzeros' .* int32 \[4, 4\]"),
        ("scales", np.ones((2, 32), np.float16), r"scales' .* is float16 \[2, 32\], but .* \[4, 32\]"),
        ("scales", np.ones((4, 32), np.int32), r"scales' .* is int32 \[4, 32\], but .* float16 or bfloat16 or float32"),
        ("scales", NOT_A_NUMBER, r"scales' .* has 1 numbers that are NaN or infinite, the first at \[3, 5\]"),
        ("g_idx", FOUR[:-1], r"g_idx' .* is int32 \[127\], but .* with desc_act needs int32 or int64 \[128\]"),
        ("g_idx", BEYOND, "g_idx' in in-memory names groups 1 to 4, but there are 4"),
        ("g_idx", UNEVEN, "g_idx' in in-memory gives group 0 31 inputs, but group_size is 32"),
    ],
)
def test_tensors_that_are_refused(made, leaf, array, match):
    refused(made, match, changes={leaf: array})


def test_order_must_be_stored_where_it_is_declared(made):
    scheme, checkpoint = made(changes={"g_idx": None})
    assert isinstance(scheme.weight(checkpoint, LAYER, *SHAPE), GroupedInt)
    refused(made, "up_proj.g_idx' is missing .* with desc_act needs", keys={"desc_act": True}, changes={"g_idx": None})
    scheme, checkpoint = made({"desc_act": True, "static_groups": True}, {"g_idx": None})
    assert isinstance(scheme.weight(checkpoint, LAYER, *SHAPE), GroupedInt)


def test_the_models_shape_must_be_the_checkpoints(made):
    refused(made, r"qweight' in in-memory is int32 \[16, 32\], but a GPTQ layer of 64 x 128", shape=(64, 128))
    refused(made, "layer of 30 x 128 .* does not fill whole 32-bit words", shape=(30, 128))


def test_a_head_that_is_declared_must_be_there(made):
    nothing, match = (
        dict.fromkeys(("qweight", "qzeros", "scales", "g_idx")),
        "'lm_head' .* has no 'qweight', but .*=True",
    )
    refused(made, match, keys={"lm_head": True}, module="lm_head", changes=nothing)
    scheme, checkpoint = made({"lm_head": True}, module="lm_head")
    assert scheme.rule(checkpoint, "lm_head", *SHAPE) == "4 bits, groups of 32"


def test_groups_that_lie_together_are_not_reordered(made, gptq_scattered):
    backwards = np.repeat(np.arange(4, dtype=np.int32)[::-1], 32)
    for g_idx, kind in ((FOUR, GroupedInt), (backwards, Reordered), (gptq_scattered(128, 32), Reordered)):
        scheme, checkpoint = made({"desc_act": True}, {"g_idx": g_idx.astype(np.int64)})
        assert type(scheme.weight(checkpoint, LAYER, *SHAPE)) is kind


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_zero_points_of_zero_borrow_from_the_next(made, gptq_layer, bits):
    """What GPTQModel and AutoRound write for a zero point of 0 "minus one": they subtract from whole words."""
    tensors, matrix = gptq_layer(*SHAPE, bits=bits, v2=True, least_zero=0)
    ones = np.uint32(sum(1 << shift for shift in range(0, 32, bits)))
    less = (tensors["qzeros"].view(np.uint32) - ones).view(np.int32)
    scheme, checkpoint = made({"bits": bits}, {**tensors, "qzeros": less})
    np.testing.assert_allclose(dequantised(scheme.weight(checkpoint, LAYER, *SHAPE)), matrix, rtol=1e-6)


def test_scales_may_be_of_any_float(made, gptq_layer):
    import ml_dtypes

    for dtype in (np.float32, ml_dtypes.bfloat16):
        tensors, _ = gptq_layer(*SHAPE)
        scales = tensors["scales"].astype(dtype)
        scheme, checkpoint = made(changes={"scales": scales})
        weight = scheme.weight(checkpoint, LAYER, *SHAPE)
        assert weight.scales.dtype == np.float32
        np.testing.assert_array_equal(weight.scales, scales.astype(np.float32).T)


def test_the_first_rule_that_matches_holds(made):
    """As GPTQModel's `dynamic`: expressions match from the start of a name, in order."""
    rules = {"-:.*\\.0\\..*o_proj": {}, "+:.*\\.0\\.": {"bits": 8, "group_size": 64}, ".*mlp": {"bits": 2}}
    scheme, checkpoint = made({"dynamic": rules}, dict.fromkeys(("qweight", "qzeros", "scales", "g_idx")))
    of = scheme._rules.of
    assert of("model.layers.0.self_attn.o_proj") is None
    assert of("model.layers.0.mlp.up_proj").words == "8 bits, groups of 64"
    assert of("model.layers.1.mlp.up_proj").words == "2 bits, groups of 32"
    assert of("model.layers.1.self_attn.o_proj").words == "4 bits, groups of 32"
    assert of("mlp") is not None and scheme.rule(checkpoint, "mlp", *SHAPE) is None
    assert scheme.describe() == {
        "stored": "4 bits, groups of 32",
        "dynamic": {".*\\.0\\..*o_proj": None, ".*\\.0\\.": "8 bits, groups of 64", ".*mlp": "2 bits, groups of 32"},
    }


@pytest.mark.parametrize("method", ["gptq", "gptq_marlin", "auto_gptq"])
def test_names_of_the_method(method, gptq_config):
    stored = {"quantization_config": {**gptq_config, "quant_method": method}}
    assert GPTQScheme.matches(MemoryCheckpoint(stored, {}))
    assert GPTQScheme.matches(MemoryCheckpoint({"text_config": stored}, {}))


def test_another_methods_keys_are_no_gptq():
    """By `quant_method`, never by keys: compressed-tensors has no `bits`, and AWQ has all that GPTQ has."""
    for method in ("compressed-tensors", "awq"):
        answer = GPTQScheme.matches(MemoryCheckpoint({"quantization_config": {"quant_method": method, "bits": 4}}, {}))
        assert f"quant_method '{method}'" in answer.reason
