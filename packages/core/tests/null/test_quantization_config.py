"""What checkpoints declare of their quantization, whom lists of layers mean, and what the user may say beside it."""

import json

import numpy as np
import pytest

from modulm.config import EngineConfig
from modulm.errors import CheckpointError, ConfigError, UnknownName, Unsupported
from modulm.interfaces.checkpoint import expect, finite
from modulm.interfaces.platform import Platform
from modulm.interfaces.quantization import QuantizationScheme
from modulm.interfaces.quantization_config import QuantizationConfig, follows, is_part, quantization_config
from modulm.interfaces.support import Accepted, Rejected
from modulm.plugins.registry import registry
from modulm.resolve import _scheme
from modulm_testkit.fakes import MemoryCheckpoint


def declared(config):
    return quantization_config(MemoryCheckpoint(config, {}))


def test_it_is_found_at_either_level_and_under_the_older_key():
    ours, other = {"quant_method": "awq", "bits": 4}, {"quant_method": "fp8"}
    assert declared({"quantization_config": ours}).keys == ours
    assert declared({"text_config": {"quantization_config": ours}, "model_type": "x"}).keys == ours
    assert declared({"text_config": {"quantization_config": ours}, "quantization_config": other}).keys == ours
    assert declared({"text_config": {"hidden_size": 3}, "quantization_config": other}).method == "fp8"
    assert declared({"compression_config": other}).method == "fp8"
    for nothing in ({}, {"quantization_config": None}, {"quantization_config": {}}, {"text_config": 5}):
        assert declared(nothing).method is None and not declared(nothing).keys
    with pytest.raises(CheckpointError, match=r"quantization_config=\[4\] of in-memory is refused"):
        declared({"quantization_config": [4]})


@pytest.mark.parametrize(
    ("name", "method"),
    [("quantize_config.json", "gptq"), ("quant_config.json", "awq"), ("hf_quant_config.json", "modelopt")],
)
def test_files_of_older_libraries(tmp_path, name, method):
    checkpoint = MemoryCheckpoint({}, {})
    checkpoint.path = tmp_path
    (tmp_path / name).write_text(json.dumps({"bits": 4}))
    assert quantization_config(checkpoint).keys == {"quant_method": method, "bits": 4}
    (tmp_path / name).write_text(json.dumps({"quant_method": "x"}))
    assert quantization_config(checkpoint).method == "x"
    for text in ("[", "[]"):
        (tmp_path / name).write_text(text)
        with pytest.raises(CheckpointError, match=name):
            quantization_config(checkpoint)


def test_values_are_refused_by_key_value_and_place():
    config = QuantizationConfig(
        {"bits": 5, "sym": 1, "group_size": "all", "skip": ["a", 3], "n": None}, "quantization_config of m"
    )
    assert config.value("n", 8, among=(8,)) == 8 and config.flag("desc_act", False) is False and config.names("n") == []
    with pytest.raises(CheckpointError, match=r"^bits=5 in the quantization_config of m is refused: there is 4, 8"):
        config.value("bits", ..., among=(4, 8))
    with pytest.raises(
        CheckpointError, match=r"^'w' is missing in the quantization_config of m is refused: there is 4"
    ):
        config.value("w", ..., among=(4,))
    with pytest.raises(CheckpointError, match="sym=1 in .* there is True, False"):
        config.flag("sym", True)
    with pytest.raises(CheckpointError, match="group_size='all' in .* whole number of at least -1"):
        config.whole("group_size", ..., least=-1)
    with pytest.raises(CheckpointError, match="skip=.* list of names"):
        config.names("skip")


def test_lists_mean_whole_words():
    gate = "model.layers.0.mlp.gate"
    assert all(is_part(name, gate) for name in ("gate", "mlp.gate", "model.layers.0", "layers.0.mlp", gate))
    assert not any(is_part(name, f"{gate}_proj") for name in ("gate", "mlp.gate", "layers.0.mlp.gate", "proj"))
    assert not is_part("layers.1", "model.layers.11.mlp")


@pytest.mark.parametrize(
    ("skip", "module", "follows_it"),
    [
        (["q_proj"], "l.0.self_attn.q_proj", True),
        (["q_proj"], "l.0.self_attn.k_proj", False),
        (["qkv_proj"], "l.0.self_attn.k_proj", True),
        (["gate_up_proj"], "l.0.mlp.up_proj", True),
        (["q_proj", "k_proj", "v_proj"], "l.0.self_attn.qkv_proj", True),
        (["o_proj"], "l.0.self_attn.qkv_proj", False),
        (["lm_head"], "lm_head", True),
    ],
)
def test_fused_and_unfused_names(skip, module, follows_it):
    assert follows(module, lambda name: any(is_part(one, name) for one in skip), "skip") is follows_it


def test_a_rule_for_some_parts_of_a_stored_layer_is_refused():
    with pytest.raises(CheckpointError, match=r"^skip means q_proj of layer 'l.0.qkv_proj', but not k_proj, v_proj"):
        follows("l.0.qkv_proj", lambda name: is_part("q_proj", name), "skip")


def test_tensors_are_expected_by_shape_and_type():
    checkpoint = MemoryCheckpoint({}, {"a.scales": np.array([[1, np.nan], [np.inf, 1]], np.float16)})
    assert expect(checkpoint, "a.scales", (None, 2), ("float16",), who="it").shape == (2, 2)
    with pytest.raises(
        CheckpointError, match=r"'a.scales' in in-memory is float16 \[2, 2\], but an AWQ layer needs int32 \[2, 2\]"
    ):
        expect(checkpoint, "a.scales", (2, 2), ("int32",), who="an AWQ layer")
    with pytest.raises(CheckpointError, match=r"'a.scales' .* has shape \[2, 2\], but it needs \[3, 2\]"):
        expect(checkpoint, "a.scales", (3, 2), who="it")
    with pytest.raises(CheckpointError, match="'a.scale' is missing.*Did you mean 'a.scales'.*an AWQ layer needs"):
        expect(checkpoint, "a.scale", (2, 2), who="an AWQ layer")
    with pytest.raises(
        CheckpointError, match=r"'a.scales' .* has 2 numbers that are NaN or infinite, the first at \[0, 1\]"
    ):
        finite(checkpoint, "a.scales")


class Packed(QuantizationScheme):
    """Reads what is declared as "packed"."""

    name = "packed"

    @classmethod
    def matches(cls, checkpoint):
        return Accepted() if quantization_config(checkpoint).method == "packed" else Rejected("it is not packed")

    @classmethod
    def from_checkpoint(cls, checkpoint):
        return cls()

    def weight(self, checkpoint, module, out_features, in_features):
        return None


class Online(Packed):
    """Packs plain numbers alone."""

    name = "online"

    @classmethod
    def matches(cls, checkpoint):
        return Rejected("nothing is stored so")

    @classmethod
    def quantizes(cls, checkpoint):
        return Accepted("as it loads")


class Oven(Platform):
    name = device_type = "oven"

    def device(self, index=0):
        return "oven"

    available_memory_bytes = total_memory_bytes = device


@pytest.fixture
def schemes():
    family = registry("modulm.quantization")
    for name, scheme in {"packed": Packed, "packed_marlin": Packed, "online": Online}.items():
        family.register(name, scheme)


class PackedTwice(Packed):
    """A narrower name for what another reads too."""

    name = "packed_twice"

    @classmethod
    def matches(cls, checkpoint):
        twice = quantization_config(checkpoint).keys.get("twice")
        return super().matches(checkpoint) if twice else Rejected("it is packed once")


def test_a_narrower_name_is_taken_where_it_reads_what_is_stored(schemes):
    registry("modulm.quantization").register("packed_twice", PackedTwice)
    stored = {"quant_method": "packed", "twice": True}
    assert type(scheme("packed_twice", quantization_config=stored)) is PackedTwice
    with pytest.raises(ConfigError, match="'packed_twice' does not fit"):
        scheme("packed_twice", quantization_config={"quant_method": "packed"})


def scheme(asked, **config):
    made, _ = _scheme(EngineConfig(model="m", quantization=asked), MemoryCheckpoint(config, {}), Oven())
    return made


def test_the_users_name_is_honoured_or_refused(schemes):
    stored = {"quantization_config": {"quant_method": "packed"}}
    nested = {"text_config": stored}
    assert scheme(None) is None
    for asked in (None, "packed", "packed_marlin"):
        assert type(scheme(asked, **stored)) is Packed and type(scheme(asked, **nested)) is Packed
    assert type(scheme("online")) is Online
    with pytest.raises(ConfigError, match="quantization='online' does not fit model 'm', which is stored as 'packed'"):
        scheme("online", **stored)
    with pytest.raises(Unsupported, match="'packed_marlin' cannot serve here: it is not packed"):
        scheme("packed_marlin")
    with pytest.raises(UnknownName, match="packing"):
        scheme(None, quantization_config={"quant_method": "packing"})
    with pytest.raises(CheckpointError, match="'m' has a quantization_config of in-memory without a 'quant_method'"):
        scheme("packed", quantization_config={"bits": 4})
