"""Prompt lookup against a plain search through the sequence, from its end to its beginning."""

import random

import pytest

from modulm.interfaces.speculator import Draftable, SpeculatorLimits
from modulm_spec_decode.ngram import NgramProposer, NgramSettings
from modulm_testkit.speculator import SpeculatorConformance

LIMITS = SpeculatorLimits(num_tokens=9, vocab_size=50, max_model_len=8192, max_num_seqs=8)


class TestPromises(SpeculatorConformance):
    settings = ({}, {"prompt_lookup_max": 3}, {"prompt_lookup_min": 1, "prompt_lookup_max": 4})
    bad_settings = (
        {"prompt_lookup_min": 0}, {"prompt_lookup_max": 65}, {"prompt_lookup_min": 4, "prompt_lookup_max": 3},
    )  # fmt: skip

    @pytest.fixture
    def speculator_class(self):
        return NgramProposer


def searched(tokens, shortest, longest, most):
    """Return what follows the last earlier place of the longest run at the end, as a text that goes on repeating."""
    for size in range(longest, shortest - 1, -1):
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == tokens[-size:]:
                known = list(tokens)
                for _ in range(most):
                    known.append(known[start + size + len(known) - len(tokens)])
                return known[len(tokens) :]
    return []


@pytest.mark.parametrize(("shortest", "longest"), [(1, 1), (2, 4), (3, 3), (1, 6)])
def test_drafts_are_those_of_a_search(shortest, longest):
    chance = random.Random(shortest * 10 + longest)
    for _ in range(40):
        proposer = NgramProposer(NgramSettings(prompt_lookup_min=shortest, prompt_lookup_max=longest), LIMITS)
        vocabulary = chance.choice([2, 3, 8])
        prompt = [chance.randrange(vocabulary) for _ in range(chance.randrange(1, 30))]
        output = [chance.randrange(vocabulary)]
        for _ in range(8):
            most = chance.randrange(1, 9)
            (draft,) = proposer.propose([Draftable("r", prompt, output, most)])
            assert draft == searched(prompt + output, shortest, longest, most)
            output += [chance.randrange(vocabulary) for _ in range(chance.randrange(1, 4))]


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ({}, (5, 5)),
        ({"prompt_lookup_max": 3}, (3, 3)),
        ({"prompt_lookup_min": 2}, (2, 2)),
        ({"prompt_lookup_min": 2, "prompt_lookup_max": 4}, (2, 4)),
    ],
)
def test_defaults_are_those_of_vllm(given, sizes):
    settings = NgramSettings(**given)
    assert (settings.shortest, settings.longest) == sizes
