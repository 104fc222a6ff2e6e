"""What `modulm quantize --format gguf-...` writes, read back: numbers by gguf's own, logits by transformers."""

import json

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from modulm.cli import main
from modulm_quant_gguf.checkpoint import GGUFCheckpoint
from modulm_quant_gguf.scheme import GGUFScheme
from modulm_testkit.checkpoints import SIZES, randomise, tiny_model, write_tokenizer
from modulm_testkit.scored import EXACT, PROMPTS, scored, scored_by_transformers

LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
MODELS = {
    "llama": ("LlamaForCausalLM", {"attention_bias": True}),
    "llama, scaled": ("LlamaForCausalLM", {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 32}}),
    "mistral": ("MistralForCausalLM", {"sliding_window": None, "head_dim": 32}),
    "qwen2": ("Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 32}),
}


def quantised(numbers, kind):
    """gguf's own rounding and the way back; vectors stay as they are."""
    if numbers.ndim == 1:
        return numbers
    return gguf.quants.dequantize(gguf.quants.quantize(numbers, kind), kind)


def type_of(name, kind):
    is_outer = name.startswith(("model.embed_tokens", "lm_head")) and "F" not in kind.name
    return gguf.GGMLQuantizationType.Q8_0 if is_outer else kind


@pytest.fixture(scope="module", params=MODELS)
def plain(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    architecture, changes = MODELS[request.param]
    sizes = {**SIZES, "vocab_size": write_tokenizer(folder), "hidden_size": 64, "intermediate_size": 96}
    model = tiny_model(folder, architecture, {**sizes, "bos_token_id": 0, "eos_token_id": 1, **changes})
    randomise(model).save_pretrained(folder)
    return folder


def written(plain, out, form):
    assert main(["quantize", str(plain), str(out), f"--format=gguf-{form}"]) == 0
    (file,) = out.iterdir()
    assert file.name == f"model-{form}.gguf"
    return file


@pytest.mark.parametrize("form", ["q4_0", "f16"])
def test_logits(plain, tmp_path, form):
    """Transformers' own model, in float64, with the numbers that gguf makes of its weights."""
    file, kind = written(plain, tmp_path / "out", form), gguf.GGMLQuantizationType[form.upper()]
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(quantised(parameter.numpy(), type_of(name, kind))))
    ran = scored(file, PROMPTS, **EXACT)
    for got, wanted in zip(ran.logprobs, scored_by_transformers(model, PROMPTS), strict=True):
        np.testing.assert_allclose(got, wanted, atol=2e-4)
    assert form == "f16" or ran.num_served("linear GroupedInt") >= 8


@pytest.mark.parametrize("plain", ["llama"], indirect=True)
@pytest.mark.parametrize("form", GGUFScheme.writes)
def test_numbers_of_every_type(plain, tmp_path, form):
    name = form.removeprefix("gguf-")
    checkpoint, kind = (
        GGUFCheckpoint.open(written(plain, tmp_path / "out", name)),
        gguf.GGMLQuantizationType[name.upper()],
    )
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    for key, parameter in model.named_parameters():
        wanted = quantised(parameter.detach().numpy(), type_of(key, kind))
        np.testing.assert_array_equal(checkpoint.tensor(key).astype(np.float32), wanted)
    assert checkpoint.header.metadata.read("general.file_type", int) == gguf.LlamaFileType[f"MOSTLY_{name.upper()}"]


def test_all_that_gguf_rounds_to():
    """Its other types have no rounding, but two: those of three values serve models that were trained so."""
    found = set()
    for kind in gguf.GGMLQuantizationType:
        try:
            gguf.quants.quantize(np.ones((1, 256), np.float32), kind)
        except (NotImplementedError, KeyError):
            continue
        found.add(f"gguf-{kind.name.lower()}")
    assert found - {"gguf-f32", "gguf-tq1_0", "gguf-tq2_0", "gguf-mxfp4"} == set(GGUFScheme.writes)


@pytest.mark.parametrize("plain", ["llama"], indirect=True)
def test_the_tokenizer_is_the_same(plain, tmp_path, mixed_text):
    checkpoint = GGUFCheckpoint.open(written(plain, tmp_path / "out", "q8_0"))
    data = checkpoint.tokenizer()
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(data.tokenizer_json)
    (folder / "tokenizer_config.json").write_text(json.dumps(data.config))
    theirs, ours = AutoTokenizer.from_pretrained(plain), AutoTokenizer.from_pretrained(folder)
    text = f"<s>{mixed_text}</s>"
    assert ours(text)["input_ids"] == theirs(text)["input_ids"]
    assert (ours.bos_token_id, ours.eos_token_id) == (0, 1)
    assert data.chat_template == theirs.chat_template


def changed(plain, folder, name, change):
    """Copy a folder with one JSON file changed."""
    folder.mkdir()
    for file in plain.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    content = json.loads((folder / name).read_text())
    change(content)
    (folder / name).write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("plain", ["mistral"], indirect=True)
@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        (
            "config.json",
            lambda c: c.update(architectures=["OPTForCausalLM"]),
            "is not written of OPTForCausalLM. There are: ",
        ),
        ("config.json", lambda c: c.update(sliding_window=32), "sliding_window=32 of the model is not held by GGUF"),
        (
            "config.json",
            lambda c: c.update(rope_parameters={"rope_type": "yarn", "factor": 2.0}),
            "rope_type='yarn' of the model is not written to GGUF. There is: default, llama3.",
        ),
        (
            "tokenizer.json",
            lambda c: c["model"].update(byte_fallback=True),
            "splits text in a way that GGUF has no name",
        ),
        ("tokenizer.json", lambda c: c.update(pre_tokenizer=None), "splits text in a way that GGUF has no name"),
        ("tokenizer.json", lambda c: c["model"].pop("vocab"), "cannot be read, and GGUF holds a tokenizer: KeyError"),
        ("config.json", lambda c: c.update(vocab_size=300), "has token 319, but the model has 300 of them"),
    ],
)
def test_models_that_gguf_does_not_hold(plain, tmp_path, capsys, name, change, said):
    folder = changed(plain, tmp_path / "plain", name, change)
    assert main(["quantize", str(folder), str(tmp_path / "out"), "--format=gguf-q4_0"]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("plain", ["llama"], indirect=True)
def test_types_without_rounding(plain, tmp_path, capsys):
    assert main(["quantize", str(plain), str(tmp_path / "out"), "--format=gguf-q4_k_m"]) == 2
    error = capsys.readouterr().err
    assert "--format='gguf-q4_k_m' is not written by quantization 'gguf'" in error and "gguf-q5_1" in error
