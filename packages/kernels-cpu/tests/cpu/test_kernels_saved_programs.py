"""Recordings on disk and checkpoints that differ in nothing but their numbers: each runs with its own."""

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

from modulm import programs
from modulm_testkit.checkpoints import randomise, tiny_llama
from modulm_testkit.scored import EXACT, PROMPTS, scored, scored_by_transformers


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MODULM_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache/programs"


def another(folder, seed):
    """A Llama whose norms and biases are of `seed`, and all else alike; return transformers' model."""
    folder.mkdir()
    tiny_llama(folder, attention_bias=True)
    model = AutoModelForCausalLM.from_pretrained(folder)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    randomise(model, seed)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            parameter.data = before[name]
    model.save_pretrained(folder)
    return model


def test_fine_tunes_of_one_model_keep_their_norms_and_biases(tmp_path, cache, monkeypatch):
    models = {seed: another(tmp_path / str(seed), seed) for seed in (1, 2)}
    want = {seed: scored_by_transformers(model, PROMPTS) for seed, model in models.items()}
    assert np.abs(want[1][0] - want[2][0]).max() > 1
    for seed, expected in want.items():
        for got, one in zip(scored(tmp_path / str(seed), PROMPTS, **EXACT).logprobs, expected, strict=True):
            np.testing.assert_allclose(got, one, atol=1e-4)
    assert len(list(cache.iterdir())) == 2
    monkeypatch.setattr(programs, "save", lambda *_: pytest.fail("the recording that is there was not used"))
    for seed, expected in want.items():
        for got, one in zip(scored(tmp_path / str(seed), PROMPTS, **EXACT).logprobs, expected, strict=True):
            np.testing.assert_allclose(got, one, atol=1e-4)
