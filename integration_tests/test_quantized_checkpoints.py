"""Checkpoints that a format's own library wrote, in the engine: which kernel serves them, and the model they stand for.

The oracle is transformers' Llama in float64 with what the layers are worth, which the formats' own tests compare with
the library.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import LlamaConfig, LlamaForCausalLM

from modulm import LLM, SamplingParams
from modulm.checkpoints.safetensors import SafetensorsCheckpoint
from modulm.errors import CheckpointError, ConfigError, Unsupported
from modulm.plugins.registry import registry
from modulm_testkit.checkpoints import write_folder, write_tokenizer
from modulm_testkit.oracles.weights import dequantised

PACKAGES = Path(__file__).resolve().parent.parent / "packages"
FILES = sorted(PACKAGES.glob("quant-*/tests/fixtures/*.safetensors"))
PROMPT = list(range(10, 40))
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=5)


def written(folder, file):
    """Write a whole checkpoint: the file's layer between an embedding and norms of random numbers."""
    with safe_open(file, "numpy") as stream:
        config = json.loads(stream.metadata()["config"])
        names = [name for name in stream.keys() if not name.startswith("expected.")]  # noqa: SIM118
        tensors = {name: stream.get_tensor(name) for name in names}
    rng = np.random.default_rng(0)
    size = config["hidden_size"]
    embedding = 0.3 * rng.normal(size=(config["vocab_size"], size))
    tensors["model.embed_tokens.weight"] = embedding.astype(np.float32)
    norms = ["model.norm", *(f"model.layers.0.{name}_layernorm" for name in ("input", "post_attention"))]
    tensors |= {f"{name}.weight": rng.uniform(0.5, 1.5, size).astype(np.float32) for name in norms}
    write_tokenizer(folder)
    return write_folder(folder, {**config, "dtype": "float32"}, tensors), config, tensors


def transformers_model(folder, config):
    """Return transformers' model in float64, each layer with what its `Weight` is worth."""
    kept = {key: value for key, value in config.items() if key not in ("quantization_config", "dtype", "torch_dtype")}
    model = LlamaForCausalLM(LlamaConfig(**kept)).double().eval()
    checkpoint = SafetensorsCheckpoint.open(folder)
    method = config["quantization_config"]["quant_method"]
    scheme = registry("modulm.quantization").get(method).from_checkpoint(checkpoint)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            weight = None
            if parameter.ndim == 2:
                weight = scheme.weight(checkpoint, name.removesuffix(".weight"), *parameter.shape)
            stored = checkpoint.tensor(name).astype(np.float64) if weight is None else dequantised(weight)
            parameter.copy_(torch.from_numpy(stored))
    return model


def answer(llm):
    done = llm.generate({"prompt_token_ids": PROMPT}, GREEDY)[0].outputs[0]
    return done.token_ids, done.logprobs


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_librarys_checkpoint_through_the_kernels(file, tmp_path):
    folder, config, tensors = written(tmp_path, file)
    model = transformers_model(folder, config)
    for precision, limit in {"exact": 1e-4, "fast": 0.1}.items():
        options = {"kernel_precision": precision, "kv_cache_dtype": "float32", "cpu_threads": 1}
        llm = LLM(str(folder), **options, max_model_len=64, num_kv_blocks=8)
        worker = llm.explain()["worker"]
        assert all(line.startswith("cpu: linear") for line in worker["weights by kernel"]), worker
        assert "operations, run by kernels 'cpu'" in worker["program"], worker
        ids, logprobs = answer(llm)
        off = []
        for step in range(len(ids)):  # each by the same past, so that one near tie does not end all
            with torch.no_grad():
                wanted = model(torch.tensor([PROMPT + ids[:step]])).logits[0, -1].log_softmax(-1)
            off += [abs(found.logprob - wanted[token].item()) for token, found in logprobs[step].items()]
        assert len(off) >= 5 * len(ids) == 40
        assert (max(off) if precision == "exact" else sum(off) / len(off)) < limit, precision


@pytest.mark.parametrize("asked", ["gptq_marlin", "auto_gptq"])
def test_any_name_of_the_method_may_be_asked_for(asked, tmp_path):
    folder, *_ = written(tmp_path, PACKAGES / "quant-gptq/tests/fixtures/gptq4.safetensors")
    llm = LLM(str(folder), quantization=asked, cpu_threads=1, max_model_len=64, num_kv_blocks=8)
    choices = {choice["family"]: choice["chosen"] for choice in llm.explain()["choices"]}
    assert choices["modulm.quantization"] == asked


def test_what_does_not_fit_is_refused(tmp_path):
    folder, config, tensors = written(tmp_path, PACKAGES / "quant-gptq/tests/fixtures/gptq4.safetensors")

    def load(**options):
        LLM(str(folder), cpu_threads=1, max_model_len=64, num_kv_blocks=8, **options)

    with pytest.raises(ConfigError, match="quantization='awq' does not fit .* stored as 'gptq'"):
        load(quantization="awq")
    write_folder(folder, {key: value for key, value in config.items() if key != "quantization_config"}, tensors)
    with pytest.raises(Unsupported, match="'awq' cannot serve here: .* is not in this format"):
        load(quantization="awq")
    del tensors["model.layers.0.mlp.up_proj.scales"]
    write_folder(folder, config, tensors)
    with pytest.raises(CheckpointError, match="'model.layers.0.mlp.up_proj.scales' is missing"):
        load()
