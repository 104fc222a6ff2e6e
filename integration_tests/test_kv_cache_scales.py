"""Checkpoints with scales for a KV cache of few bits, through the whole engine, by the format's own names.

The oracle is transformers' model in float64 whose attention rounds keys and values as the cache does (`ml_dtypes`); its
weights are plain, so that the cache is all there is to see. Files are written as the formats are specified.
"""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AttentionInterface, AutoModelForCausalLM

from modulm import LLM
from modulm.errors import CheckpointError, Unsupported
from modulm_testkit.checkpoints import tiny_llama, write_safetensors
from modulm_testkit.scored import EXACT, PROMPTS, continued, scored, scored_by_transformers
from modulm_testkit.tolerances import rounded

HEADS = 2
BOUND = 0.01
"""Of log-probabilities' root mean square: float32 and float64 may fall on different sides of a tie between codes."""
SCHEME = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False}
BY_TENSOR, BY_HEAD = {**SCHEME, "strategy": "tensor"}, {**SCHEME, "strategy": "attn_head"}
CT = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {}, "ignore": []}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}
KEY, VALUE = 0.031, np.float32([0.011, 0.0043])
DECLARED = {
    "modelopt": (MODELOPT | {"kv_cache_scheme": SCHEME}, ("k_proj.k_scale", "v_proj.v_scale"), 1),
    "modelopt, by name": (MODELOPT | {"kv_cache_quant_algo": "FP8"}, ("k_proj.k_scale", "v_proj.v_scale"), 1),
    "compressed-tensors": (CT | {"kv_cache_scheme": BY_TENSOR}, ("k_scale", "v_scale"), 1),
    "compressed-tensors, by head": (CT | {"kv_cache_scheme": BY_HEAD}, ("k_scale", "v_scale"), HEADS),
    "AutoFP8": ({"quant_method": "fp8", "kv_cache_scheme": "static"}, ("kv_scale",), 1),
    "fp8": ({"quant_method": "fp8"}, ("attn.k_scale", "attn.v_scale"), 1),
    "none": (None, ("k_scale", "v_scale"), 1),
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("llama"), hidden_size=64, num_key_value_heads=HEADS)


def scales_of(names, count, layer):
    """Return a layer's scales of keys and values, [heads, 1, 1] each."""
    factor = 1 + layer
    key, value = (np.float32(KEY) * factor,) * 2, VALUE[:count] * factor
    value = key[:1] if len(names) == 1 else value
    return [np.resize(one, (HEADS, 1, 1)).astype(np.float32) for one in (key, value)]


def written(llama, folder, declared, names, count=1, **more):
    """Write the checkpoint with its scales, `count` in each tensor."""
    shutil.copytree(llama, folder)
    tensors = load_file(llama / "model.safetensors")
    for layer in (0, 1):
        for name, scales in zip(names, scales_of(names, count, layer), strict=False):
            shape = (HEADS, 1, 1) if count > 1 else ()
            tensors[f"model.layers.{layer}.self_attn.{name}"] = np.resize(scales, shape)
    tensors |= {f"model.layers.0.self_attn.{name}": np.array(value) for name, value in more.items()}
    write_safetensors(folder / "model.safetensors", tensors)
    config = json.loads((llama / "config.json").read_text())
    if declared is not None:
        config["quantization_config"] = declared
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def theirs(llama, dtype, scales):
    """Return transformers' model with keys and values of each layer rounded by `scales(layer)`."""

    def attend(module, query, key, value, attention_mask, scaling, dropout=0.0, **options):
        parts = (
            torch.from_numpy(rounded(part.numpy(), dtype, scale)).repeat_interleave(query.shape[1] // HEADS, 1)
            for part, scale in zip((key, value), scales(module.layer_idx), strict=True)
        )
        key, value = parts
        scores = query @ key.mT * scaling
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return (weights @ value).transpose(1, 2).contiguous(), None

    AttentionInterface.register("rounded", attend)
    model = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32, attn_implementation="rounded")
    return model.double().eval()


def error(ran, model):
    """Return the largest root mean square of a prompt's differences."""
    wanted = scored_by_transformers(model, PROMPTS)
    assert all(want.std() > 1 for want in wanted)
    return max(np.sqrt(((got - want) ** 2).mean()) for got, want in zip(ran.logprobs, wanted, strict=True))


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("name", DECLARED)
def test_scales_of_the_checkpoint(llama, tmp_path, name, backend):
    """By each format's names; "auto" follows a declaration, and where there is none the user says it."""
    declared, names, count = DECLARED[name]
    folder = written(llama, tmp_path / "m", declared, names, count)
    dtype = "fp8" if name in ("fp8", "none") else "auto"
    ran = scored(folder, PROMPTS, **{**EXACT, "kv_cache_dtype": dtype, "attention_backend": backend})
    model = theirs(llama, "fp8_e4m3", lambda layer: scales_of(names, count, layer))
    assert error(ran, model) < BOUND < 5 * BOUND < error(ran, theirs(llama, "float32", lambda layer: (1, 1)))
    found = ran.explained["worker"]
    assert found["kv_cache_dtype"] == "fp8_e4m3" and found["kv_scales"].startswith("of 2 layers from the checkpoint")
    assert found.get("kv_cache_declared") == ("fp8_e4m3: done" if dtype == "auto" else None)


@pytest.mark.parametrize("dtype", ["fp8_e4m3", "fp8_e5m2", "nvfp4"])
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_without_scales_they_are_one(llama, dtype, backend, caplog):
    ran = scored(llama, PROMPTS, **{**EXACT, "kv_cache_dtype": dtype, "attention_backend": backend})
    assert error(ran, theirs(llama, dtype, lambda layer: (1, 1))) < BOUND
    assert ("has no scales for the KV cache" in caplog.text) == (dtype != "fp8_e5m2")


@pytest.mark.parametrize("dtype", ["fp8", "fp8_e5m2"])
def test_decoding_sees_the_same_cache(llama, tmp_path, dtype):
    """Text goes on as it does where every step begins with the whole text again."""
    folder = written(llama, tmp_path / "m", None, ("k_scale", "v_scale"), HEADS)
    options = {**EXACT, "kv_cache_dtype": dtype}
    whole = continued(folder, PROMPTS, **options)
    for prompt, text in zip(PROMPTS, whole, strict=True):
        again = [list(prompt) + text[:count] for count in range(0, len(text), 5)]
        firsts = [one[0] for one in continued(folder, again, **options)]
        assert firsts == text[::5]


def test_what_the_user_says_goes_before_the_declaration(llama, tmp_path):
    folder = written(llama, tmp_path / "m", *DECLARED["modelopt"][:2])
    ran = scored(folder, PROMPTS, **EXACT)
    assert error(ran, theirs(llama, "float32", lambda layer: (1, 1))) < 1e-5
    assert ran.explained["worker"]["kv_cache_dtype"] == "float32"


def test_a_declaration_that_is_not_served_is_told(llama, tmp_path):
    """int8 by tensor: nobody has it, so the cache is what the backend prefers."""
    declared = CT | {"kv_cache_scheme": {**BY_TENSOR, "type": "int"}}
    folder = written(llama, tmp_path / "m", declared, ("k_scale", "v_scale"))
    found = scored(folder, PROMPTS, **{**EXACT, "kv_cache_dtype": "auto"}).explained["worker"]
    assert found["kv_cache_declared"].startswith("int8 by tensor: not done") and "fp8" not in found["kv_cache_dtype"]


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"k_scale": np.float32(np.nan)}, r"layers.0.self_attn.k_scale'.*NaN"),
        ({"v_scale": np.float32(0)}, r"layers.0.self_attn.v_scale'.*not above 0"),
        ({"k_scale": np.ones(3, np.float32)}, r"layers.0.self_attn.k_scale'.*\[3\].*2 key heads"),
    ],
)
def test_damaged_scales_are_refused_before_weights_are_packed(llama, tmp_path, tensors, message, monkeypatch):
    folder = written(llama, tmp_path / "m", *DECLARED["compressed-tensors"][:2], **tensors)
    monkeypatch.setattr("modulm.worker.load.TensorSource.pack", lambda *_: pytest.fail("a weight was packed"))
    with pytest.raises(CheckpointError, match=message):
        LLM(str(folder), num_kv_blocks=64)


def test_a_backend_that_does_not_serve_it_is_not_used(llama):
    pytest.importorskip("modulm_kernels_cpu")
    with pytest.raises(Unsupported, match=r"'cpu_attn' cannot serve here: KV cache dtype 'nvfp4' is none of .*torch"):
        LLM(str(llama), num_kv_blocks=64, kv_cache_dtype="nvfp4", attention_backend="cpu_attn")
