"""Prompt lookup: what followed the last few tokens the last time they stood in this sequence.

An index from n-grams to where they ended grows with the sequence, so that a step costs some dictionary look-ups,
whatever the length. Source: A. Saxena, Prompt Lookup Decoding, 2023; settings and defaults are vLLM's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from modulm.interfaces.speculator import Draftable, Speculator, SpeculatorLimits

_DEFAULT = 5
_MOST = 64


@dataclass(frozen=True, kw_only=True)
class NgramSettings:
    """How many tokens must be the same; both 5 where neither is given, and equal where one is.

    Attributes:
        prompt_lookup_max: Longest n-gram that is looked up; the longest that is found counts.
        prompt_lookup_min: Shortest.
    """

    prompt_lookup_max: int | None = None
    prompt_lookup_min: int | None = None

    def __post_init__(self) -> None:
        for name in ("prompt_lookup_min", "prompt_lookup_max"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= _MOST:
                raise ValueError(f"{name}={value!r} is refused: it must be from 1 to {_MOST}")
        if self.shortest > self.longest:
            raise ValueError(f"prompt_lookup_min={self.shortest!r} is above prompt_lookup_max={self.longest!r}")

    @property
    def longest(self) -> int:
        """Longest n-gram."""
        return self.prompt_lookup_max or self.prompt_lookup_min or _DEFAULT

    @property
    def shortest(self) -> int:
        """Shortest n-gram."""
        return self.prompt_lookup_min or self.prompt_lookup_max or _DEFAULT


class NgramProposer(Speculator):
    """See the module."""

    name: ClassVar[str] = "ngram"
    Settings: ClassVar[type[Any]] = NgramSettings

    def __init__(self, settings: NgramSettings, limits: SpeculatorLimits) -> None:
        self._sizes = range(settings.longest, settings.shortest - 1, -1)
        self._histories: dict[str, _History] = {}

    def propose(self, sequences: Sequence[Draftable]) -> list[list[int]]:
        """See base class."""
        drafts = []
        for request_id, prompt_ids, output_ids, most in sequences:
            history = self._histories.get(request_id)
            if history is None:
                history = self._histories[request_id] = _History(prompt_ids, self._sizes)
            history.extend(output_ids)
            drafts.append(history.draft(most))
        return drafts

    def forget(self, request_ids: Sequence[str]) -> None:
        """See base class."""
        for request_id in request_ids:
            self._histories.pop(request_id, None)


class _History:
    """The tokens of one sequence, and where each of their n-grams ended last, but for the one at the end."""

    def __init__(self, prompt_ids: list[int], sizes: range) -> None:
        self._tokens = prompt_ids.copy()
        self._num_prompt = len(prompt_ids)
        self._ends: list[tuple[int, dict[tuple[int, ...], int]]] = []
        for size in sizes:
            runs = zip(*(prompt_ids[first:] for first in range(size)), strict=False)
            ends = dict(zip(runs, range(size, len(prompt_ids)), strict=False))  # that at the very end comes later
            self._ends.append((size, ends))

    def extend(self, output_ids: list[int]) -> None:
        tokens = self._tokens
        for token in output_ids[len(tokens) - self._num_prompt :]:
            for size, ends in self._ends:
                if len(tokens) >= size:
                    ends[tuple(tokens[-size:])] = len(tokens)
            tokens.append(token)

    def draft(self, most: int) -> list[int]:
        """Return what followed last time; where that reaches the end, it is taken to go on in the same way."""
        tokens = self._tokens
        for size, ends in self._ends:
            found = ends.get(tuple(tokens[-size:]))
            if found is not None:
                draft = tokens[found : found + most]
                while len(draft) < most:
                    draft += draft[: most - len(draft)]
                return draft
        return []
