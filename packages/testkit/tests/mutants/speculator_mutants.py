"""Speculators that are wrong in one way each: what followed the last token the last time."""

from dataclasses import dataclass

from contract import Contract

from modulm.interfaces.speculator import Speculator
from modulm_testkit.speculator import SpeculatorConformance


@dataclass(frozen=True)
class Settings:
    """How many tokens, at most."""

    longest: int = 9

    def __post_init__(self):
        if self.longest < 1:
            raise ValueError("longest is below 1")


class Echo(Speculator):
    """Keeps the tokens of each sequence."""

    name = "echo"
    Settings = Settings

    def __init__(self, settings, limits):
        self.settings = settings
        self.tokens = {}

    def propose(self, sequences):
        return [self.draft(each) for each in sequences]

    def draft(self, sequence):
        tokens = self.tokens.setdefault(sequence.request_id, list(sequence.prompt_ids))
        tokens += sequence.output_ids[len(tokens) - len(sequence.prompt_ids) :]
        return self.after(tokens)[: min(sequence.most, self.settings.longest)]

    def after(self, tokens):
        at = max((i for i, token in enumerate(tokens[:-1]) if token == tokens[-1]), default=None)
        return [] if at is None else tokens[at + 1 :]

    def forget(self, request_ids):
        for request_id in request_ids:
            self.tokens.pop(request_id, None)


speculator = Contract(
    "speculator", SpeculatorConformance, "speculator_class", Echo,
    settings=({}, {"longest": 2}), bad_settings=({"longest": 0},),
)  # fmt: skip
mutant = speculator.mutant


@mutant("test_settings_are_checked")
class TakesAnything(Echo):
    """No setting is ever refused."""

    @dataclass(frozen=True)
    class Settings:
        longest: int = 9


@mutant("test_every_sequence_gets_a_draft")
class OneForAll(Echo):
    """The drafts of many sequences come as one."""

    def propose(self, sequences):
        drafts = super().propose(sequences)
        return drafts if len(drafts) < 4 else [sum(drafts, [])]


@mutant("test_any_length_will_do")
class NeedsThree(Echo):
    """A sequence of two tokens is too short."""

    def after(self, tokens):
        assert len(tokens) > 2
        return super().after(tokens)


@mutant("test_sequences_grow_by_any_number_of_tokens")
class OneAtATime(Echo):
    """Each step is taken to bring one token."""

    def draft(self, sequence):
        num_seen = len(self.tokens.get(sequence.request_id, sequence.prompt_ids)) - len(sequence.prompt_ids)
        assert num_seen == 0 or len(sequence.output_ids) <= num_seen + 1
        return super().draft(sequence)


@mutant("test_tokens_are_only_read")
class Appends(Echo):
    """The draft is appended to what was said, when it is asked for again."""

    def draft(self, sequence):
        known = self.tokens.get(sequence.request_id, [])
        draft = super().draft(sequence)
        if len(known) == len(sequence.prompt_ids) + len(sequence.output_ids):
            sequence.output_ids.extend(draft)
        return draft


@mutant("test_sequences_come_back")
class NeverForgets(Echo):
    """What came back is taken to have grown."""

    def draft(self, sequence):
        known = self.tokens.get(sequence.request_id, [])
        assert len(known) <= len(sequence.prompt_ids) + len(sequence.output_ids)
        return super().draft(sequence)

    def forget(self, request_ids):
        return


@mutant("test_unknown_sequences_may_be_forgotten")
class ForgetsTwice(Echo):
    """An id that is not there is an error."""

    def forget(self, request_ids):
        for request_id in request_ids:
            del self.tokens[request_id]
