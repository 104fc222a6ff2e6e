"""What is decided while an engine is put together: tokenizer, architectures, prefix caching, refusals."""

import json
import re
import shutil
from pathlib import Path

import pytest

import modulm
from modulm import LLM, SamplingParams
from modulm.config import EngineConfig
from modulm.errors import CheckpointError, ConfigError, UnknownName


def test_every_option_is_read_somewhere():
    """An option that nothing reads would be a wish silently dropped."""
    source = Path(modulm.__file__).parent
    text = "\n".join(path.read_text() for path in source.rglob("*.py") if path.name != "options.py")
    for name in EngineConfig.__dataclass_fields__:
        assert re.search(rf"config\.{name}\b|\"{name}\"", text.replace("self._config", "config")), name


def test_an_unknown_option_names_the_nearest(tiny_folder):
    with pytest.raises(ConfigError, match="'max_num_seq' is unknown. Did you mean 'max_num_seqs'"):
        LLM(model=str(tiny_folder), max_num_seq=4)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"attention_backend": "troch"}, UnknownName, "Did you mean 'torch'"),
        ({"quantization": "gguf"}, Exception, "gguf"),
        ({"max_model_len": 10_000}, ConfigError, "10000.*256"),
        ({"dtype": "int8"}, ConfigError, "dtype='int8'"),
        ({"gpu_memory_utilization": 1.5}, ConfigError, "1.5"),
        ({"kv_cache_memory_bytes": 100}, ConfigError, "does not fit"),
        ({"logits_processors": ["no_such_module:Thing"]}, Exception, "no_such_module"),
        ({"logits_processors": ["nocolon"]}, ConfigError, "nocolon"),
        ({"executor": "ray"}, Exception, "modulm-executor-ray"),
        ({"load_format": "gguf"}, Exception, "gguf"),
    ],
)
def test_what_cannot_be_honoured_is_refused(tiny_folder, options, error, message):
    with pytest.raises(error, match=message):
        LLM(model=str(tiny_folder), **options)


def test_a_config_without_architectures(tiny_folder, tmp_path):
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    for names in (None, [], ["NoSuchForCausalLM"]):
        config["architectures"] = names
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises((CheckpointError, UnknownName, ValueError), match=r"architectures|NoSuchForCausalLM"):
            LLM(model=str(folder))


def test_the_tokenizer_may_come_from_elsewhere(tiny_folder, tmp_path):
    weights = shutil.copytree(tiny_folder, tmp_path / "weights")
    (weights / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="tokenizer.json"):
        LLM(model=str(weights), num_kv_blocks=40)
    llm = LLM(model=str(weights), tokenizer=str(tiny_folder), num_kv_blocks=40)
    assert llm.generate("the fox", SamplingParams(temperature=0, max_tokens=3))[0].prompt == "the fox"


def test_prefixes_are_not_shared_where_positions_depend_on_length(tiny_folder, tmp_path):
    """With dynamic NTK a prefix computed for a short sequence is wrong for a long one."""
    folder = shutil.copytree(tiny_folder, tmp_path / "dynamic")
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    config |= {"max_position_embeddings": 64}
    (folder / "config.json").write_text(json.dumps(config))
    llm = LLM(model=str(folder), num_kv_blocks=40)
    prompt = {"prompt_token_ids": list(range(10, 50))}
    again = [llm.generate(prompt, SamplingParams(temperature=0, max_tokens=4))[0].num_cached_tokens for _ in range(2)]
    assert again == [0, 0]
