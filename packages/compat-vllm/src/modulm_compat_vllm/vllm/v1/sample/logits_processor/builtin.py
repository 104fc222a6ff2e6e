"""`process_dict_updates`, which processors use to keep something for each row."""

from collections.abc import Callable
from typing import TypeVar

from modulm.interfaces.logits import BatchUpdate, follow_rows
from modulm.sampling_params import SamplingParams

T = TypeVar("T")


def process_dict_updates(
    req_entries: dict[int, T],
    batch_update: BatchUpdate | None,
    new_state: Callable[[SamplingParams, list[int] | None, list[int]], T | None],
) -> bool:
    """Bring what is kept for rows up to date; return whether it may have changed.

    `new_state` gets parameters, prompt ids and output ids of a new request, and returns what to keep for it, or None.
    """
    if batch_update is None:
        return False
    before = dict(req_entries)
    follow_rows(req_entries, batch_update, new_state)
    return before != req_entries
