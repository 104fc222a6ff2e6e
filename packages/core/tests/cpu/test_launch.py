"""What is decided while an engine is put together: tokenizer, architectures, prefix caching, refusals."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

import modulm
from modulm import LLM, SamplingParams
from modulm.config import EngineConfig
from modulm.errors import CheckpointError, ConfigError, UnknownName, Unsupported


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": None}, "model=None .*a path or name"),
        ({"model": ""}, "model='' .*a path or name"),
        ({"tokenizer": 5}, "tokenizer=5 .*a path or name"),
        ({"tokenizer": "/no/such"}, "tokenizer='/no/such' cannot be used"),
        ({"device": 5}, "device=5 .*a string"),
        ({"dtype": None}, "dtype='None' is unknown. There are: auto"),
        ({"chat_template": 5}, "chat_template=5 .*a string"),
        ({"seed": "a"}, "seed='a' .*a whole number"),
        ({"seed": None}, "seed=None .*a whole number"),
        ({"seed": 1.5}, "seed=1.5 .*a whole number"),
        ({"max_logprobs": -5}, "max_logprobs=-5 .*at least -1"),
        ({"cpu_threads": 0}, "cpu_threads=0 .*from 1 to 1024. Leave it out"),
        ({"cpu_threads": True}, "cpu_threads=True .*from 1 to 1024"),
        ({"cpu_threads": 1.5}, "cpu_threads=1.5 .*from 1 to 1024"),
        ({"cpu_threads": 1025}, "cpu_threads=1025 .*from 1 to 1024"),
        ({"max_num_seqs": 2.0}, "max_num_seqs=2.0 .*at least 1"),
        ({"enable_prefix_caching": "no"}, "enable_prefix_caching='no' .*True or False"),
        ({"enable_chunked_prefill": 0}, "enable_chunked_prefill=0 .*True or False"),
        ({"gpu_memory_utilization": "x"}, "gpu_memory_utilization='x'.*at most 1"),
        ({"gpu_memory_utilization": True}, "gpu_memory_utilization=True.*at most 1"),
        ({"logits_processors": "a:B"}, "logits_processors='a:B' .*a list"),
        ({"num_kv_blocks": 10**12}, "num_kv_blocks=1000000000000 .*the device has .* Lower num_kv_blocks"),
        ({"kv_cache_memory_bytes": 10**30}, "the device has .* Lower kv_cache_memory_bytes"),
        ({"block_size": 10**9, "num_kv_blocks": 200}, "the device has .* or block_size"),
        ({"max_num_seqs": 10**30}, "max_num_seqs=10+ is refused.*Lower max_num_seqs"),
    ],
)
def test_values_that_cannot_be_are_refused_at_once(tiny_folder, options, message):
    """They were an AttributeError, a MemoryError, a failing first step, or taken for true."""
    with pytest.raises((ConfigError, CheckpointError), match=message):
        LLM(**{"model": str(tiny_folder), **options})


def test_paths_and_torchs_types_are_understood(tiny_folder):
    llm = LLM(model=tiny_folder, tokenizer=tiny_folder, dtype=torch.float32, num_kv_blocks=40)
    assert llm.config.model == llm.config.tokenizer == str(tiny_folder) and llm.config.dtype == "float32"
    llm.shutdown()


def test_a_folder_that_is_no_model_is_named(tmp_path):
    with pytest.raises(Unsupported, match=f"{re.escape(str(tmp_path))}.*no config.json"):
        LLM(model=tmp_path)


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
