"""Speculators (family `modulm.speculators`): what a model will probably say, so that it only has to confirm it.

A speculator is made once, in the worker's process, when `--speculative-config` names it. After every step the worker
asks it for drafts of the sequences that got a token. The next step computes a sequence's newest token and its draft at
once and samples at every position: the draft's tokens that come again are taken, and the first that differs is taken in
its place. Outputs are what they are without a speculator, greedy or random; a wrong draft costs time and no more.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple


@dataclass(frozen=True)
class NoSettings:
    """Settings of a speculator that has none."""


@dataclass(frozen=True, kw_only=True)
class SpeculatorLimits:
    """What a speculator may have to know of the engine.

    Attributes:
        num_tokens: The longest draft that is asked for.
        vocab_size: Ids are below it.
        max_model_len: Longest sequence, prompt and output together.
        max_num_seqs: Sequences that may run at once.
    """

    num_tokens: int
    vocab_size: int
    max_model_len: int
    max_num_seqs: int


class Draftable(NamedTuple):
    """A sequence that may have a draft.

    Attributes:
        request_id: The same as long as it runs; no other running sequence has it.
        prompt_ids: Its prompt. Read only.
        output_ids: Its output so far, which is not empty. Read only; the same list grows from step to step.
        most: Longest draft, at least 1; what is behind is cut off.
    """

    request_id: str
    prompt_ids: list[int]
    output_ids: list[int]
    most: int


class Speculator(ABC):
    """Proposes tokens. Called from one thread; while it thinks, everything waits.

    One that raises, answers something else than is promised, or an id that the vocabulary does not have, is switched
    off until the next start, with a traceback in the log; requests go on without drafts.
    """

    name: ClassVar[str]
    Settings: ClassVar[type[Any]] = NoSettings
    """A dataclass or msgspec struct: what `--speculative-config` may say beside method and number of tokens, and
    `--plugin-config` too; see `settings.py`."""
    num_tokens: ClassVar[int] = 5
    """Longest draft where `num_speculative_tokens` is not given."""

    @abstractmethod
    def __init__(self, settings: Any, limits: SpeculatorLimits) -> None:
        """Get ready. `settings` is a `Settings`."""

    @abstractmethod
    def propose(self, sequences: Sequence[Draftable]) -> Sequence[Sequence[int]]:
        """Return a draft for each, in this order: ids that may follow its last token; empty where nothing is likely.

        Each got one token or more in the step before. One that is new may have any number of tokens.
        """

    def forget(self, request_ids: Sequence[str]) -> None:
        """Let these sequences go: they have ended, or lost their place and may come back. Unknown ids are no error."""
        return
