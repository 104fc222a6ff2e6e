"""How much may be under way: sequences in all, requests per API key. What is above is told when to come again.

Counts only; knows neither prompts nor the engine.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from http import HTTPStatus

from modulm.server.errors import Refused

RETRY_S = 1
"""What `Retry-After` says to a client that was turned away."""


class Admission:
    """Counts what is under way.

    Args:
        num_seqs: Sequences that the engine runs at once.
        num_queued: Sequences that may wait beyond them; 0 is any number.
        num_per_key: Requests of one key; 0 is any number.
        on_rejection: Told which limit turned a request away.

    Attributes:
        num_open: Requests under way.
        num_open_seqs: Their sequences.
    """

    def __init__(self, num_seqs: int, num_queued: int, num_per_key: int, on_rejection: Callable[[str], None]) -> None:
        self.num_open = 0
        self.num_open_seqs = 0
        self._limit = num_seqs + num_queued if num_queued else None
        self._num_per_key = num_per_key
        self._on_rejection = on_rejection
        self._per_key: Counter[Hashable] = Counter()

    @contextmanager
    def place(self, key: Hashable, num_seqs: int) -> Iterator[None]:
        """Hold a place for a request while the block runs. Raises `Refused`: 429, or 400 for what never fits."""
        self._check(key, num_seqs)
        self.num_open += 1
        self.num_open_seqs += num_seqs
        self._per_key[key] += 1
        try:
            yield
        finally:
            self.num_open -= 1
            self.num_open_seqs -= num_seqs
            self._per_key[key] -= 1
            if not self._per_key[key]:
                del self._per_key[key]

    def _check(self, key: Hashable, num_seqs: int) -> None:
        if self._limit is not None and num_seqs > self._limit:
            raise Refused(
                HTTPStatus.BAD_REQUEST,
                f"The request asks for {num_seqs:,} sequences (prompts times n), and this server holds at most "
                f"{self._limit:,}. Send several requests, or start with a larger --max-num-queued-reqs.",
                param="n",
            )
        if self._limit is not None and self.num_open_seqs + num_seqs > self._limit:
            self._on_rejection("max_num_queued_reqs")
            raise _later(f"The queue is full: {self.num_open_seqs:,} sequences run or wait, of {self._limit:,}.")
        if key is not None and self._num_per_key and self._per_key[key] >= self._num_per_key:
            self._on_rejection("max_concurrent_reqs_per_key")
            raise _later(f"This API key has {self._per_key[key]:,} requests under way, as many as it may have.")


def _later(message: str) -> Refused:
    headers = {"retry-after": str(RETRY_S)}
    return Refused(
        HTTPStatus.TOO_MANY_REQUESTS, f"{message} Try again later.", code="rate_limit_exceeded", headers=headers
    )
