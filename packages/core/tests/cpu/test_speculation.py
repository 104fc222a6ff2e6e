"""Speculative decoding on real models: whoever drafts, outputs are what they are without; and what goes wrong with it.

The rounding of a logit may depend on how many tokens a step has; with weights in float32 and logits as far apart as
here, no output does.
"""

import itertools
import random

import pytest

from modulm import SamplingParams
from modulm.errors import ConfigError, ModulmError
from modulm.interfaces.speculator import Speculator
from modulm.plugins import discovery, known
from modulm.plugins.registry import registry

FAMILY = "modulm.speculators"


class Drafts(Speculator):
    """Proposes what the test's function says; `asked` keeps what it was told."""

    name = "drafts"
    function = staticmethod(lambda one: [])
    forgotten: tuple[str, ...] = ()

    def __init__(self, settings, limits):
        self.limits = limits

    def propose(self, sequences):
        return [type(self).function(one) for one in sequences]

    def forget(self, request_ids):
        type(self).forgotten += tuple(request_ids)


@pytest.fixture(autouse=True)
def registrations(clean_registries, monkeypatch):
    """What is registered here is taken back, and core's reference computes: it rounds as little as it can."""
    monkeypatch.setenv("VLLM_PLUGINS", "")
    discovery.reset()


@pytest.fixture
def drafting(tiny_llm):
    """Make an engine whose speculator is a function of one `Draftable`."""

    def make(function, num_tokens=5, **options):
        cls = type("Drafts", (Drafts,), {"function": staticmethod(function)})
        registry(FAMILY).register("drafts", cls, override=True)
        return tiny_llm(speculative_config={"method": "drafts", "num_speculative_tokens": num_tokens}, **options)

    return make


def requests(rng, count=10):
    shared = [rng.randrange(10, 300) for _ in range(20)]
    made = []
    for number in range(count):
        prompt = [*rng.choice([[], shared]), *(rng.randrange(10, 300) for _ in range(rng.randrange(1, 25)))]
        options = rng.choice(
            [
                {"temperature": 0.0},
                {"temperature": 0.0, "repetition_penalty": 1.4, "frequency_penalty": 0.3},
                {"temperature": 1.0, "seed": number, "top_k": 9},
                {"temperature": 0.8, "seed": number, "top_p": 0.8, "min_tokens": 6, "n": 3},
                {"temperature": 0.0, "logit_bias": {20: 4.0, 21: 4.0}, "presence_penalty": 0.5},
            ]
        )
        options |= {"max_tokens": rng.randrange(1, 30), "logprobs": rng.choice([None, 2])}
        made.append(({"prompt_token_ids": prompt}, SamplingParams(**options)))
    return made


def answers(llm, asked):
    prompts, params = zip(*asked, strict=True)
    return [
        (each.token_ids, each.finish_reason, each.logprobs)
        for output in llm.generate(list(prompts), list(params))
        for each in output.outputs
    ]


def same(found, wanted):
    for (ids, reason, scores), (right_ids, right_reason, right_scores) in zip(found, wanted, strict=True):
        assert (ids, reason) == (right_ids, right_reason)
        assert (scores is None) == (right_scores is None)
        for step, right in zip(scores or (), right_scores or (), strict=True):
            assert list(step) == list(right)
            assert all(abs(step[token].logprob - right[token].logprob) < 1e-3 for token in step)


def oracle(wanted, asked):
    """Return a function that knows every output: the n-th request's by its prompt and what it has said so far."""
    by_prompt = {}
    for answer, (prompt, _) in zip(
        wanted, itertools.chain.from_iterable([each] * each[1].n for each in asked), strict=True
    ):
        by_prompt.setdefault(tuple(prompt["prompt_token_ids"]), []).append(answer[0])

    def draft(one):
        known = by_prompt[tuple(one.prompt_ids)]
        said = one.output_ids
        right = next((ids for ids in known if ids[: len(said)] == said), [])
        return list(right[len(said) :])

    return draft


def adversary(right):
    rng = random.Random(1)

    def draft(one):
        kind = rng.randrange(4)
        known = right(one)
        if kind == 0:
            return []
        if kind == 1:
            return known[: rng.randrange(4)] + [rng.randrange(258) for _ in range(3)]
        return [rng.randrange(258) for _ in range(40)] if kind == 2 else known * 20

    return draft


@pytest.mark.parametrize("model", ["tiny_folder", "tiny_windowed_folder"])
@pytest.mark.parametrize("kind", ["right", "adversarial"])
def test_outputs_are_those_without_drafts(drafting, tiny_llm, request, model, kind):
    model = str(request.getfixturevalue(model))
    asked = requests(random.Random(4))
    wanted = answers(tiny_llm(model=model, max_model_len=128, num_kv_blocks=600), asked)
    right = oracle(wanted, asked)
    function = right if kind == "right" else adversary(right)
    tight = {"num_kv_blocks": 100 if "gemma" in model else 45, "block_size": 4, "max_num_batched_tokens": 40}
    llm = drafting(function, model=model, max_model_len=128, max_num_seqs=6, **tight)
    for _ in range(2):  # the second time prompts are in the prefix cache
        same(answers(llm, asked), wanted)
    stats = llm.stats()
    drafts = stats.scheduler.spec_decoding_stats
    assert stats.scheduler.kv_cache_usage == 0.0
    assert 0 < drafts.num_accepted_tokens <= drafts.num_draft_tokens
    # Of siblings that have begun alike it may take one for the other.
    assert kind != "right" or drafts.num_accepted_tokens > 0.9 * drafts.num_draft_tokens


def test_a_right_draft_saves_steps_and_the_last_token_is_never_drafted(drafting, tiny_llm):
    asked = [({"prompt_token_ids": [20, 30, 40]}, SamplingParams(temperature=0, max_tokens=13, ignore_eos=True))]
    wanted = answers(tiny_llm(), asked)
    most = []

    def draft(one):
        most.append(one.most)
        return oracle(wanted, asked)(one)

    llm = drafting(draft)
    same(answers(llm, asked), wanted)
    assert most == [5, 5], "13 tokens: one by the prompt, and twice five drafts and one more"


def test_a_stop_string_in_the_middle_of_a_draft(drafting, tiny_llm):
    asked = [({"prompt_token_ids": [20, 30, 40]}, SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))]
    plain = tiny_llm()
    (completion,) = plain.generate(*asked[0])[0].outputs
    stop = completion.text[4:6]
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, stop=[stop], logprobs=0)
    wanted = answers(plain, [(asked[0][0], params)])
    llm = drafting(lambda one: completion.token_ids[len(one.output_ids) :], num_tokens=19)
    same(answers(llm, [(asked[0][0], params)]), wanted)
    ids = SamplingParams(temperature=0, max_tokens=20, stop_token_ids=[completion.token_ids[6]], ignore_eos=True)
    same(answers(llm, [(asked[0][0], ids)]), answers(plain, [(asked[0][0], ids)]))


def raises(one):
    raise OSError("no draft today")


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (raises, "no draft today"),
        (lambda one: None, "a draft must be a list of token ids, but is None"),
        (lambda one: [1.5], "but has 1.5 (float)"),
        (lambda one: [-1], "ids from 0 to"),
        (lambda one: [10**6], "ids from 0 to"),
        (lambda one: "text", "but is 'text'"),
    ],
)
def test_one_that_fails_is_switched_off_and_requests_go_on(drafting, tiny_llm, caplog, function, why):
    asked = requests(random.Random(2), 3)
    wanted = answers(tiny_llm(), asked)
    llm = drafting(function)
    same(answers(llm, asked), wanted)
    (record,) = [each for each in caplog.records if "switched off" in each.getMessage()]
    assert why in record.getMessage() and record.exc_info and "Speculator 'drafts'" in record.getMessage()
    assert llm.stats().scheduler.spec_decoding_stats is None


def test_the_wrong_number_of_drafts_switches_it_off(drafting, caplog):
    llm = drafting(lambda one: [])
    type(llm._frontend)  # the engine is made
    cls = registry(FAMILY).get("drafts")
    cls.propose = lambda self, sequences: []
    llm.generate({"prompt_token_ids": [5]}, SamplingParams(max_tokens=3, ignore_eos=True))
    assert "must return a list of 1 drafts, but returned [] (list)" in caplog.text


def test_sequences_that_end_are_forgotten(drafting):
    llm = drafting(lambda one: [])
    llm.generate([{"prompt_token_ids": [5]}] * 2, SamplingParams(max_tokens=3, ignore_eos=True))
    llm.generate({"prompt_token_ids": [5]}, SamplingParams(max_tokens=1))
    assert len(set(registry(FAMILY).get("drafts").forgotten)) == 2


def test_a_constructor_that_fails_stops_the_start(tiny_llm):
    class Broken(Drafts):
        def __init__(self, settings, limits):
            raise OSError("no such table")

    registry(FAMILY).register("broken", Broken)
    with pytest.raises(ModulmError, match="Speculator 'broken'.*no such table"):
        tiny_llm(speculative_config={"method": "broken"})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"method": "n-grams"}, "Speculator 'n-grams' is not installed. It comes with modulm-grams: pip install"),
        ({"method": "eagle3", "model": "a/b"}, "method 'eagle3' is refused: it needs the model's hidden states"),
        ({"model": "org/draft"}, "method 'draft_model' is refused: it needs a second model"),
        ({"method": "dafts"}, "Did you mean 'drafts'?"),
        ({"num_speculative_tokens": 3}, "it names no method"),
        ({"method": 5}, "method=5 is refused"),
        ({"method": "drafts", "num_speculative_tokens": 0}, "num_speculative_tokens=0 is refused"),
        ({"method": "drafts", "num_speculative_tokens": "5"}, "num_speculative_tokens='5' is refused"),
        ({"method": "drafts", "num_speculative_tokens": 129}, "from 1 to 128"),
        ({"method": "drafts", "prompt_lookup": 3}, "'prompt_lookup' is refused: method 'drafts' has no such setting"),
        ({"method": "custom_class"}, "needs 'package.module.Class'"),
        ({"model": "no_such_package.Drafts"}, "No module named 'no_such_package'"),
        ("ngram", "it must be {"),
    ],
)
def test_what_cannot_be_is_refused_with_what_there_is(tiny_llm, monkeypatch, given, words):
    monkeypatch.setitem(known.KNOWN, FAMILY, {"n-grams": "modulm-grams"})
    registry(FAMILY).register("drafts", Drafts)
    with pytest.raises(ModulmError) as caught:
        tiny_llm(speculative_config=given)
    assert words in str(caught.value)


def test_shorthands(tiny_llm):
    registry(FAMILY).register("drafts", Drafts)
    llm = tiny_llm(spec_method="drafts", spec_tokens=3)
    assert llm.config.speculative_config == {"method": "drafts", "num_speculative_tokens": 3}
    assert llm.explain()["worker"]["drafts"] == "drafts: up to 3 tokens"
    assert [each["chosen"] for each in llm.explain()["choices"] if each["family"] == FAMILY] == ["drafts"]
    with pytest.raises(ConfigError, match="spec_tokens=3 is refused: speculative_config says"):
        tiny_llm(speculative_config={"method": "drafts", "num_speculative_tokens": 4}, spec_tokens=3)
