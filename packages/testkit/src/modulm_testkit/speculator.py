"""Conformance of speculators (`modulm.interfaces.speculator`): drafts of the right form for any sequence, at any time.

Whether drafts are any good is not asked: a wrong one costs time and nothing else. No torch, no engine.
"""

import copy
import random
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from modulm.interfaces.speculator import Draftable, Speculator, SpeculatorLimits
from modulm_testkit.suite import Conformance, ask_for

_NUM_TOKENS = 6


class SpeculatorConformance(Conformance):
    """Give `speculator_class`: the class that the entry point of `modulm.speculators` names.

    Attributes:
        settings: What a user may give, as keyword arguments of the class's `Settings`.
        bad_settings: What must be refused.
        vocab_size: Ids are below it.
    """

    settings: ClassVar[Sequence[dict[str, Any]]] = ({},)
    bad_settings: ClassVar[Sequence[dict[str, Any]]] = ()
    vocab_size: ClassVar[int] = 50

    @pytest.fixture(name="speculator_class")
    def _speculator_class(self) -> Any:
        """Return the class."""
        ask_for("speculator_class", "MySpeculator")

    def test_settings_are_checked(self, speculator_class: Any) -> None:
        """Settings have defaults or are given by name, and what cannot be is refused by `ValueError`."""
        for given in self.settings:
            speculator_class.Settings(**given)
        for given in self.bad_settings:
            with pytest.raises(ValueError, match="."):
                speculator_class.Settings(**given)

    def test_every_sequence_gets_a_draft(self, speculator_class: Any) -> None:
        """There is a list for each sequence, be there none or many, and every draft is a list of ids of the vocabulary.

        What breaks it: numbers of numpy, which are no `int`.
        """
        for given in self.settings:
            one = self._made(speculator_class, given)
            for count in (0, 1, 7):
                sequences = [self._sequence(f"{count}-{i}", seed=i) for i in range(count)]
                self._check(one.propose(sequences), sequences)

    def test_any_length_will_do(self, speculator_class: Any) -> None:
        """One token of prompt and one of output are enough, and thousands are not too many."""
        for given in self.settings:
            one = self._made(speculator_class, given)
            for number, (num_prompt, num_output, most) in enumerate(((1, 1, 1), (1, 900, 2), (4000, 1, 6))):
                sequence = self._sequence(str(number), num_prompt, num_output)._replace(most=most)
                self._check(one.propose([sequence]), [sequence])

    def test_sequences_grow_by_any_number_of_tokens(self, speculator_class: Any) -> None:
        """A sequence gets one token or several from step to step, in the list that is there, and may miss a step."""
        for given in self.settings:
            one, chance = self._made(speculator_class, given), random.Random(5)
            whole = [self._sequence(str(i), seed=i, num_output=60) for i in range(3)]
            running = [each._replace(output_ids=each.output_ids[:1]) for each in whole]
            for _ in range(12):
                asked = [each for each in running if chance.random() < 0.8]
                self._check(one.propose(asked), asked)
                for each, full in zip(running, whole, strict=True):
                    at = len(each.output_ids)
                    each.output_ids.extend(full.output_ids[at : at + chance.randint(1, 5)])

    def test_tokens_are_only_read(self, speculator_class: Any) -> None:
        """The lists of prompt and output belong to the engine."""
        one = self._made(speculator_class, self.settings[0])
        sequences = [self._sequence("a"), self._sequence("b", seed=1)]
        before = copy.deepcopy(sequences)
        one.propose(sequences)
        one.propose(sequences)
        assert sequences == before

    def test_sequences_come_back(self, speculator_class: Any) -> None:
        """What was forgotten is new when it comes again, be it as long as before, shorter, or another one."""
        for given in self.settings:
            one = self._made(speculator_class, given)
            for num_output, seed in ((40, 0), (40, 0), (3, 0), (9, 1), (1, 2)):
                sequence = self._sequence("again", num_output=num_output, seed=seed)
                self._check(one.propose([sequence]), [sequence])
                one.forget(["again"])

    def test_unknown_sequences_may_be_forgotten(self, speculator_class: Any) -> None:
        """Ids that it has never seen, or has forgotten already, are no error."""
        one = self._made(speculator_class, self.settings[0])
        one.forget(["never seen"])
        one.propose([self._sequence("a")])
        one.forget(["a", "never seen"])
        one.forget(["a"])
        one.forget([])

    def _made(self, speculator_class: Any, given: dict[str, Any]) -> Speculator:
        limits = SpeculatorLimits(
            num_tokens=_NUM_TOKENS, vocab_size=self.vocab_size, max_model_len=8192, max_num_seqs=8
        )
        made: Speculator = speculator_class(speculator_class.Settings(**given), limits)
        return made

    def _sequence(self, request_id: str, num_prompt: int = 30, num_output: int = 20, seed: int = 0) -> Draftable:
        """Return a sequence that says the same again and again, with a word in between."""
        chance = random.Random(seed)
        phrase = [chance.randrange(self.vocab_size) for _ in range(9)]
        ids: list[int] = []
        while len(ids) < num_prompt + num_output:
            ids += [*phrase, chance.randrange(self.vocab_size)]
        return Draftable(request_id, ids[:num_prompt], ids[num_prompt : num_prompt + num_output], _NUM_TOKENS)

    def _check(self, drafts: Any, sequences: Sequence[Draftable]) -> None:
        assert isinstance(drafts, list | tuple), f"{drafts!r} is no list"
        assert len(drafts) == len(sequences), f"{len(drafts)} drafts for {len(sequences)} sequences"
        for draft in drafts:
            assert isinstance(draft, list | tuple), f"{draft!r} is no list"
            wrong = [token for token in draft if type(token) is not int or not 0 <= token < self.vocab_size]
            assert not wrong, f"{wrong!r} are no ids from 0 to {self.vocab_size - 1}"
