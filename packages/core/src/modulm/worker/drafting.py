"""Asks the speculator for drafts, and sees to it that nothing but speed depends on it.

One that fails is switched off, and the log says why. Knows rows; what a draft is worth is told in `targets.py`.
"""

from collections.abc import Callable, Sequence

from modulm.interfaces.speculator import Draftable, Speculator
from modulm.log import logger
from modulm.worker.row import Row

_log = logger("worker.drafting")


class Drafter:
    """Drafts for the sequences of one batch.

    Args:
        speculator: Made for this worker.
        asked: What to call it in messages.
        num_tokens: Longest draft.
        vocab_size: Ids are below it.
        on_failure: Told the error when it has been switched off.
    """

    def __init__(
        self,
        speculator: Speculator,
        *,
        asked: str,
        num_tokens: int,
        vocab_size: int,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._speculator: Speculator | None = speculator
        self._asked = asked
        self._num_tokens = num_tokens
        self._vocab_size = vocab_size
        self._on_failure = on_failure

    def propose(self, rows: Sequence[Row]) -> list[list[int]]:
        """Return a draft for each sequence, none of them longer than what may still come before its last token."""
        drafts: list[list[int]] = [[] for _ in rows]
        if self._speculator is None:
            return drafts
        at, asked = [], []
        for i, row in enumerate(rows):
            request, output_ids = row.request, row.output_ids
            most = min(self._num_tokens, request.max_tokens - len(output_ids) - 1)
            if most > 0 and output_ids[-1] not in request.stop_token_ids:
                at.append(i)
                asked.append(Draftable(request.request_id, row.prompt_ids, output_ids, most))
        if asked:
            try:
                proposed = [self._checked(draft, one.most) for draft, one in self._answers(asked)]
            except Exception as error:
                self._switch_off(error)
            else:
                for i, draft in zip(at, proposed, strict=True):
                    drafts[i] = draft
        return drafts

    def forget(self, request_ids: Sequence[str]) -> None:
        """Tell the speculator that these sequences are gone."""
        if self._speculator is not None:
            try:
                self._speculator.forget(request_ids)
            except Exception as error:
                self._switch_off(error)

    def _answers(self, asked: list[Draftable]) -> "zip[tuple[Sequence[int], Draftable]]":
        assert self._speculator is not None
        answers = self._speculator.propose(asked)
        if not isinstance(answers, list | tuple) or len(answers) != len(asked):
            raise TypeError(f"propose() must return a list of {len(asked)} drafts, but returned {_shown(answers)}")
        return zip(answers, asked, strict=True)

    def _checked(self, draft: Sequence[int], most: int) -> list[int]:
        if not isinstance(draft, list | tuple):
            raise TypeError(f"a draft must be a list of token ids, but is {_shown(draft)}")
        kept = list(draft[:most])
        for token in kept:
            if type(token) is not int or not 0 <= token < self._vocab_size:
                raise ValueError(f"a draft must have ids from 0 to {self._vocab_size - 1}, but has {_shown(token)}")
        return kept

    def _switch_off(self, error: Exception) -> None:
        self._speculator = None
        _log.exception("%s failed: %s. It is switched off until the next start; requests go on.", self._asked, error)
        if self._on_failure is not None:
            self._on_failure(error)


def _shown(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:60] + '...'} ({type(value).__name__})"
