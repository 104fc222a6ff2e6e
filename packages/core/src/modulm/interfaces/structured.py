"""Structured output (family `modulm.structured_output`): which tokens may come next, so that an output has a form.

A backend is made once per engine, at the first request that it is chosen for, in the engine's process, and compiles in
threads of a pool. Each sequence has a `Grammar` of its own: between two steps the engine's thread tells it what was
sampled; while the model computes the next step, a thread of the pool asks it for the mask. Never both at once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from modulm.interfaces.support import Support
from modulm.structured_outputs import StructuredOutputsParams as StructuredOutputsParams

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What a backend must know of the tokenizer.

    Attributes:
        tokens: What each id adds to the text, in bytes, which may be a part of a character; empty where it has none.
        size: Width of the model's logits, at least len(tokens); ids beyond the tokens never come.
        special_ids: Ids that stand for themselves and not for a text.
        eos_token_ids: Ids that end an output; allowed where the form is complete.
        encode: The tokenizer's ids of a text.
    """

    tokens: Sequence[bytes]
    size: int
    special_ids: Sequence[int]
    eos_token_ids: Sequence[int]
    encode: Callable[[str], list[int]]

    @property
    def num_words(self) -> int:
        """Words of 32 bits of a mask."""
        return -(-self.size // 32)


class Grammar(ABC):
    """How far one sequence has come."""

    @abstractmethod
    def fill(self, mask: "np.ndarray") -> None:
        """Write which tokens may come next: uint32 [num_words], token t is bit t % 32 of word t // 32."""

    @abstractmethod
    def accept(self, token_ids: Sequence[int]) -> bool:
        """Go on by these tokens. False where the form does not allow them; the sequence ends with an error then."""

    @abstractmethod
    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens (of a draft that was not taken)."""

    def forced(self) -> list[int]:
        """Return tokens that must come next, as the tokenizer would write their text; empty where that is not known.

        They are computed in one step instead of one after the other. Each is sampled under its mask all the same, so
        that a wrong one costs time and changes nothing. Called by the engine's thread after `accept`; be quick.
        """
        return []

    @property
    @abstractmethod
    def is_terminated(self) -> bool:
        """Whether nothing but the end may follow."""


class CompiledGrammar(ABC):
    """A form made ready; kept and shared by requests that ask for the same."""

    @abstractmethod
    def start(self) -> Grammar:
        """Return the state of a sequence at its beginning."""


class StructuredOutputBackend(ABC):
    """A library that enforces forms.

    Attributes:
        rank: Place in the order of automatic choice: of those that enforce all of a request the lowest is taken. Say
            how quick you are: about 10 where masks take microseconds and nothing heavy is imported, 50 where they take
            milliseconds.
    """

    name: ClassVar[str]
    rank: ClassVar[int] = 50

    @classmethod
    @abstractmethod
    def supports(cls, params: StructuredOutputsParams) -> Support:
        """Say whether all that is asked for is enforced: `Rejected` names what would be left unchecked.

        Must not raise, must be quick (servers ask too: import nothing heavy), and needs no vocabulary. What only the
        library can tell is for `compile` to refuse, whereupon automatic choice asks the next backend.
        """

    @abstractmethod
    def __init__(self, vocabulary: Vocabulary) -> None: ...

    @abstractmethod
    def compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        """Make a form ready. Called from several threads. Raises `RequestError` where it is wrong, with the reason."""
