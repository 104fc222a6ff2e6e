"""Whole models: torchao's own values, log-probabilities and text; rounding while loading, of mixtures too."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from modulm import LLM
from modulm.checkpoints.safetensors import SafetensorsCheckpoint
from modulm.errors import Unsupported
from modulm_quant_int8.torchao import TorchAO
from modulm_testkit.checkpoints import randomise, tiny_llama, tiny_model, write_tokenizer
from modulm_testkit.oracles.weights import dequantised
from modulm_testkit.scored import (
    EXACT,
    PROMPTS,
    continued,
    continued_by_transformers,
    scored,
    scored_by_transformers,
)

BOUND = 1e-4
"""Of log-probabilities, where activations are not rounded."""


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    sizes = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 1}
    return tiny_llama(tmp_path_factory.mktemp("llama"), **sizes)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """A Qwen3 mixture as transformers saves it: experts by name."""
    folder = tmp_path_factory.mktemp("mixture")
    config = {
        "vocab_size": write_tokenizer(folder), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "decoder_sparse_step": 1, "mlp_only_layers": [], "max_position_embeddings": 64,
        "eos_token_id": 1,
    }  # fmt: skip
    model = randomise(tiny_model(folder, "Qwen3MoeForCausalLM", config))
    model.save_pretrained(folder)
    return folder


def rounded(weight):
    """The definition, in torch and float64, along the last dimension."""
    step = weight.double().abs().amax(dim=-1, keepdim=True) / 127
    return torch.round(weight.double() / step) * step


def check(folder, wanted, count, **options):
    ran = scored(folder, PROMPTS, **EXACT, **options)
    for got, want in zip(ran.logprobs, wanted, strict=True):
        assert want.std() > 0.3
        np.testing.assert_allclose(got, want, atol=BOUND)
    assert ran.num_served("ChannelInt8") == count, ran.kernels


def test_layers_are_rounded_while_they_load(llama):
    theirs = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32).double().eval()
    for name, module in theirs.named_modules():
        if name.endswith("_proj"):
            module.weight.data = rounded(module.weight.data)
    check(llama, scored_by_transformers(theirs, PROMPTS), 4, quantization="int8_per_channel_weight_only")


def _mixture(folder):
    options = {"dtype": torch.float32, "experts_implementation": "eager"}  # others do not compute in float64
    return AutoModelForCausalLM.from_pretrained(folder, **options).double().eval()


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("name", ["experts_int8", "int8_per_channel_weight_only"])
def test_experts_are_rounded_while_they_load(mixture, tmp_path, name, stacked):
    """As single layers, as files have them, and as two tensors that stack them, as transformers holds them."""
    theirs = _mixture(mixture)
    folder = mixture
    if stacked:
        folder = tmp_path
        tensors = load_file(mixture / "model.safetensors")
        tensors = {key: value for key, value in tensors.items() if ".experts." not in key}
        tensors |= {k: v.float() for k, v in theirs.state_dict().items() if ".experts." in k}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            (folder / file).write_bytes((mixture / file).read_bytes())
    for key, parameter in theirs.named_parameters():
        if ".experts." in key or ("_proj" in key and name != "experts_int8"):
            parameter.data = rounded(parameter.data)
    count = 2 * 4 * 2 + (0 if name == "experts_int8" else 2 * 2)
    check(folder, scored_by_transformers(theirs, PROMPTS), count, quantization=name)


def test_a_model_without_experts(llama):
    with pytest.raises(Unsupported, match=r"'experts_int8' cannot serve here: the model has no experts"):
        LLM(str(llama), quantization="experts_int8", num_kv_blocks=64)


@pytest.fixture(scope="module", params=["Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig"])
def saved(request, llama, tmp_path_factory):
    """What transformers and torchao save: (folder, transformers' own model)."""
    pytest.importorskip("torchao")
    import torchao.quantization
    from transformers import TorchAoConfig

    config = TorchAoConfig(getattr(torchao.quantization, request.param)())
    model = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32, quantization_config=config).eval()
    folder = tmp_path_factory.mktemp("torchao")
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((llama / name).read_bytes())
    return folder, model


def test_what_torchao_saved(saved, llama):
    folder, model = saved
    checkpoint = SafetensorsCheckpoint.open(folder)
    scheme = TorchAO.from_checkpoint(checkpoint)
    theirs = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32).double().eval()
    for name, module in model.named_modules():
        if name.endswith("_proj"):
            wanted = module.weight.dequantize().detach().double()
            weight = scheme.weight(checkpoint, name, *wanted.shape)
            np.testing.assert_allclose(dequantised(weight), wanted.numpy(), rtol=1e-6, atol=1e-6)
            theirs.get_submodule(name).weight.data = wanted
    check(folder, scored_by_transformers(theirs, PROMPTS), 4)


def test_text_is_torchaos(saved):
    """Where activations stay floats: greedy, as transformers runs it."""
    folder, model = saved
    if "Activation" in str(model.config.quantization_config.quant_type):
        pytest.skip("torchao rounds activations to 8 bits by token, as no exact kernel does")
    assert continued(folder, PROMPTS, **EXACT) == continued_by_transformers(model, PROMPTS)
