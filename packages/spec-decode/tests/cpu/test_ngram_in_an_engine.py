"""`ngram` chosen by `--speculative-config`: the same outputs in fewer steps, and what cannot be set is refused."""

import pytest

from modulm import LLM, SamplingParams
from modulm.errors import ConfigError
from modulm_testkit.checkpoints import tiny_llama

PROMPT = {"prompt_token_ids": [20, 30, 40, 50, 60] * 6}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tiny_llama(tmp_path_factory.mktemp("tiny-llama")))


@pytest.fixture
def engine(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("MODULM_CACHE_DIR", str(tmp_path))
    made = []

    def make(**options):
        options = {"num_kv_blocks": 100, "max_num_seqs": 4, "kernels": "torch", "attention_backend": "torch", **options}
        made.append(LLM(folder, **options))
        return made[-1]

    yield make
    for llm in made:
        llm.shutdown()


def test_outputs_are_the_same_in_fewer_steps(engine):
    # A bias that leaves five tokens: the model soon says what it has said before.
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True, allowed_token_ids=[20, 30, 40, 50, 60])
    plain, drafting = engine(), engine(spec_method="ngram", speculative_config={"prompt_lookup_max": 3})
    assert (
        drafting.generate(PROMPT, params)[0].outputs[0].token_ids
        == plain.generate(PROMPT, params)[0].outputs[0].token_ids
    )
    with_drafts, without = drafting.stats().scheduler, plain.stats().scheduler
    assert with_drafts.step_counter < without.step_counter == 60
    drafts = with_drafts.spec_decoding_stats
    assert drafts.num_accepted_tokens >= 60 - with_drafts.step_counter
    assert without.spec_decoding_stats is None


def test_it_is_named_with_its_settings(engine):
    llm = engine(speculative_config={"model": "[ngram]", "num_speculative_tokens": 3})
    assert llm.explain()["worker"]["drafts"] == "ngram: up to 3 tokens"
    with pytest.raises(
        ConfigError, match="'prompt_lookup' is refused: method 'ngram' has no such setting. There are: "
    ):
        engine(speculative_config={"method": "ngram", "prompt_lookup": 3})
    with pytest.raises(ConfigError, match="prompt_lookup_min=0 is refused: it must be from 1 to 64"):
        engine(speculative_config={"method": "ngram", "prompt_lookup_min": 0})
    with pytest.raises(ConfigError, match="'ngram.prompt_lookup_max' is refused: speculative_config gives"):
        engine(
            speculative_config={"method": "ngram", "prompt_lookup_max": 3},
            plugin_config={"ngram": {"prompt_lookup_max": "4"}},
        )
