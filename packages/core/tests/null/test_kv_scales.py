"""What checkpoints say of the KV cache: dtypes that they declare, scales by all their names, and what cannot be."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from modulm.config import KV_CACHE_DTYPES as NAMES
from modulm.config import EngineConfig
from modulm.errors import CheckpointError, ConfigError
from modulm.interfaces.attention import AttentionBackend, AttentionSpec
from modulm.interfaces.kv_cache import KV_CACHE_DTYPES, KVScales, declared_kv_cache, stored_kv_scales
from modulm.interfaces.quantization_config import QuantizationConfig
from modulm.interfaces.support import Accepted, Rejected
from modulm.worker.attention_layers import AttentionLayers
from modulm.worker.load import TensorSource
from modulm_testkit.fakes import MemoryCheckpoint

LAYER = "model.layers.0.self_attn"
SPEC = AttentionSpec(num_heads=4, num_kv_heads=2, head_size=16, scale=0.25)
FP8 = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}


def test_every_dtype_has_a_name_that_users_may_say():
    assert ("auto", *KV_CACHE_DTYPES) == ("auto", *NAMES[1:])
    for said, meant in (("fp8", "fp8_e4m3"), ("torch.float8_e5m2", "fp8_e5m2"), ("half", "float16")):
        assert EngineConfig.make(model="m", kv_cache_dtype=said).kv_cache_dtype == meant
    with pytest.raises(ConfigError, match=r"kv_cache_dtype='fp4' is unknown. There are: .*fp8_e4m3, fp8_e5m2, nvfp4"):
        EngineConfig.make(model="m", kv_cache_dtype="fp4")
    with pytest.raises(ConfigError, match="dtype='fp8' is unknown"):
        EngineConfig.make(model="m", dtype="fp8")


@pytest.mark.parametrize(
    ("keys", "meant"),
    [
        ({}, None),
        ({"kv_cache_scheme": None}, None),
        ({"kv_cache_scheme": FP8}, "fp8_e4m3"),
        ({"kv_cache_scheme": {**FP8, "strategy": "attn_head"}}, "fp8_e4m3"),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}, "fp8_e4m3"),  # ModelOpt
        ({"kv_cache_scheme": {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group"}}, "nvfp4"),
        ({"kv_cache_scheme": "static"}, "fp8_e4m3"),  # AutoFP8
        ({"kv_cache_quant_algo": "FP8"}, "fp8_e4m3"),
        ({"kv_cache_quant_algo": "NVFP4"}, "nvfp4"),
        ({"kv_cache_quant_algo": None}, None),
        ({"kv_cache_quant_algo": "INT8"}, "INT8"),
        ({"kv_cache_scheme": {**FP8, "type": "int"}}, "int8 by tensor"),
        ({"kv_cache_scheme": {**FP8, "strategy": "token", "dynamic": True}}, "float8 by token"),
        ({"kv_cache_scheme": {**FP8, "symmetric": False}}, "float8 by tensor, with zero points"),
    ],
)
def test_declared(keys, meant):
    assert declared_kv_cache(QuantizationConfig(keys, "config")) == meant


def test_a_declaration_that_is_none():
    with pytest.raises(CheckpointError, match="kv_cache_scheme=8 in the config is refused: it must be an object"):
        declared_kv_cache(QuantizationConfig({"kv_cache_scheme": 8}, "config"))


def found(**tensors):
    arrays = {f"{LAYER}.{name}": np.asarray(array) for name, array in tensors.items()}
    return stored_kv_scales(MemoryCheckpoint({}, arrays), LAYER, 2)


@pytest.mark.parametrize(
    "names",
    [
        ("k_scale", "v_scale"),
        ("attn.k_scale", "attn.v_scale"),
        ("k_proj.k_scale", "v_proj.v_scale"),
        ("qkv_proj.k_scale", "qkv_proj.v_scale"),
        ("k_proj.output_scale", "v_proj.output_scale"),
    ],
)
def test_one_scale_stands_for_all_heads(names):
    key, value = np.float32(0.5), np.array([0.25], ml_dtypes.bfloat16)
    scales = found(**{names[0]: key, names[1]: value})
    assert scales == KVScales(key=(0.5, 0.5), value=(0.25, 0.25))


@pytest.mark.parametrize("shape", [(2,), (2, 1), (2, 1, 1), (1, 2, 1, 1)])
def test_one_scale_for_each_head(shape):
    array = np.array([0.5, 2], np.float32).reshape(shape)
    assert found(k_scale=array, v_scale=array[..., ::-1] if len(shape) == 1 else array).key == (0.5, 2)


def test_one_scale_for_keys_and_values():
    assert found(kv_scale=np.float32(0.5)) == KVScales(key=(0.5, 0.5), value=(0.5, 0.5))


def test_zero_points_of_zero_change_nothing():
    """LLM Compressor writes them whatever the scheme."""
    one, zero = np.ones(1, np.float32), np.zeros(1, np.int8)
    assert found(k_scale=one, v_scale=one, k_zero_point=zero, v_zero_point=zero).key == (1, 1)


def test_no_scales():
    assert found(q_scale=np.float32(1)) is None
    assert stored_kv_scales(MemoryCheckpoint({}, {"model.layers.00.self_attn.k_scale": np.ones(1)}), LAYER, 2) is None


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"k_scale": np.float32(np.nan)}, "self_attn.k_scale' .*NaN or infinite"),
        ({"k_scale": np.float32(0)}, "self_attn.k_scale' .*not above 0"),
        ({"v_scale": np.array([1, -1], np.float32)}, "self_attn.v_scale' .*not above 0"),
        ({"k_scale": np.ones(3, np.float32)}, r"self_attn.k_scale' .*\[3\], but attention layer .* of 2 key heads"),
        ({"k_scale": np.ones((2, 2), np.float32)}, r"\[2, 2\]"),
        ({"k_scale": np.ones(1, np.int8)}, "is int8"),
        (
            {"k_proj.k_scale": np.float32(1)},
            r"must have one scale for keys .*self_attn.k_proj.k_scale, .*self_attn.k_s",
        ),
        ({"k_zero_point": np.ones(1, np.float32)}, "self_attn.k_zero_point' .*shifts"),
        ({"k_proj.k_bias": np.ones(1, np.float32)}, "self_attn.k_proj.k_bias' .*shifts"),
    ],
)
def test_what_cannot_be(tensors, message):
    one = {"k_scale": np.ones(1, np.float32), "v_scale": np.ones(1, np.float32)}
    with pytest.raises(CheckpointError, match=message):
        found(**{**one, **tensors})


def test_scales_of_keys_alone():
    with pytest.raises(CheckpointError, match="one for values"):
        found(k_scale=np.float32(1))


def test_scales_are_read_where_they_count():
    """A damaged scale hurts nobody whose cache has none."""
    checkpoint = MemoryCheckpoint({}, {f"{LAYER}.{part}_scale": np.array(part == "v", np.float32) for part in "kv"})
    options = {"scheme": None, "kernels": (), "device": "cpu", "dtype": "float32"}
    for dtype in (None, "INT8", "float16", "int8_per_token_head"):
        source = TensorSource(checkpoint, **options, kv_cache_dtype=dtype)
        source.read_kv_scales({LAYER: SPEC})
        assert source.kv_scales == {}
    with pytest.raises(CheckpointError, match="not above 0"):
        TensorSource(checkpoint, **options, kv_cache_dtype="fp8_e4m3").read_kv_scales({LAYER: SPEC})


class Narrow(AttentionBackend):
    """Serves `fp8_e4m3`, and what it computes in."""

    name = "narrow"

    @classmethod
    def supports(cls, spec):
        assert spec.kv_scales is None
        served = spec.kv_cache_dtype in ("fp8_e4m3", spec.dtype)
        return Accepted() if served else Rejected(f"no {spec.kv_cache_dtype}")

    @classmethod
    def kv_cache_shape(cls, num_blocks, block_size, num_kv_heads, head_size, kv_cache_dtype="float32"):
        return (num_blocks, 2, num_kv_heads, block_size, head_size)

    def plan(self, layout, device):
        raise NotImplementedError

    def forward(self, *arguments, **options):
        raise NotImplementedError


def layers(**options):
    """Two layers, whose scales are unlike; the backend is made once for all of one kind."""
    made = {}
    scales = {name: KVScales(key=(x, x), value=(1.0, x)) for name, x in (("a", 0.5), ("b", 2.0))}
    return AttentionLayers(
        {"a": SPEC, "b": SPEC}, device_type="cpu", attention=lambda spec: made.setdefault(spec, Narrow()),
        **{"kv_cache_dtype": "auto", "scales": scales, **options},
    )  # fmt: skip


def test_automatic_is_what_the_checkpoint_declares():
    made = layers(declared="fp8_e4m3")
    assert [made.specs[name].kv_scales.key for name in "ab"] == [(0.5, 0.5), (2.0, 2.0)]
    assert made.backends["a"] is made.backends["b"], "scales do not make a step be planned twice"
    assert {page.size_bytes for page in made.pages(8).values()} == {2 * 2 * 8 * 16}
    assert made.describe() == {
        "kv_cache_dtype": "fp8_e4m3",
        "kv_cache_declared": "fp8_e4m3: done",
        "kv_scales": "of 2 layers from the checkpoint, of 0 layers 1",
    }


@pytest.mark.parametrize(
    ("declared", "why"),
    [("nvfp4", "nvfp4: not done, narrow: no nvfp4"), ("INT8", "INT8: not done, narrow: no INT8")],
)
def test_what_is_declared_and_not_served(declared, why):
    made = layers(declared=declared)
    assert made.describe() == {"kv_cache_dtype": "float32", "kv_cache_declared": why}
    assert made.specs["a"].kv_scales is None


def test_the_user_goes_before_the_checkpoint():
    made = layers(declared="fp8_e4m3", kv_cache_dtype="float32")
    assert made.describe() == {"kv_cache_dtype": "float32"}
    assert made.specs["a"] == replace(SPEC, kv_cache_dtype="float32")


def test_missing_scales_are_one_and_told(caplog):
    made = layers(kv_cache_dtype="fp8_e4m3", scales=None)
    assert made.specs["a"].kv_scales is None
    assert made.describe()["kv_scales"] == "of 0 layers from the checkpoint, of 2 layers 1"
    assert "has no scales for the KV cache of 'b'" in caplog.text and "int8_per_token_head" in caplog.text
    caplog.clear()
    layers(kv_cache_dtype="fp8_e5m2", scales=None)
    assert not caplog.records, "its range is that of 16 bits"
