"""The persistent batch: every live sequence at a row, rows dense from 0, and the arrays a step is cut from.

Knows plans, tokens and blocks, no tensors and no device. A step schedules some of the rows; the others wait where they
are. `runner.py` calls `update` and `step`, the sampler reads rows and parameters.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from modulm.interfaces.attention import BatchLayout
from modulm.interfaces.logits import AddedRequest, BatchUpdate, MoveDirectionality, MovedRequest
from modulm.types import NewSequence, Plan
from modulm.worker.block_table import BlockTable
from modulm.worker.randomness import derived_seed
from modulm.worker.row import PARAMETERS, Row


@dataclass(kw_only=True, slots=True)
class Step:
    """What one forward pass reads; sequences and their tokens in the plan's order.

    Attributes:
        token_ids, positions: int64 [num_tokens].
        sequence_lengths: int64 [num_tokens], all tokens that each one's sequence has so far, computed or not.
        layouts: One per KV group.
        query_start: int32 [num_seqs + 1]; sequence i owns tokens query_start[i] .. query_start[i + 1] - 1.
        rows: Batch row of each scheduled sequence.
        sampling: Which of the scheduled sequences get a new token, ascending.
        last_tokens: int64 [len(sampling)], the newest token of each of those, among the step's.
        drafts: What stands behind the newest token of each of those; None where nobody has any.
    """

    token_ids: np.ndarray
    positions: np.ndarray
    sequence_lengths: np.ndarray
    layouts: list[BatchLayout]
    query_start: np.ndarray
    rows: list[int]
    sampling: list[int]
    last_tokens: np.ndarray
    drafts: list[list[int]] | None


class Batch:
    """All live sequences.

    Attributes:
        rows: The sequences, by row.
        parameters: Structured array of `PARAMETERS` [capacity], by row.
        version: Changes whenever a row changes hands.
    """

    def __init__(
        self, *, max_num_seqs: int, max_model_len: int, block_size: int, windows: Sequence[int | None], seed: int
    ) -> None:
        # The last token of a sequence that fills the model's length is sampled too, though never computed.
        max_num_tokens = max_model_len + 1
        self.rows: list[Row] = []
        self.parameters = np.zeros(max_num_seqs, dtype=PARAMETERS)
        self.version = 0
        self._row_of: dict[str, int] = {}
        self._tables = [BlockTable(max_num_seqs, max_num_tokens, block_size, window) for window in windows]
        self._seed = seed
        self._singles = _singles(0)
        self._num_seen = 0

    def __len__(self) -> int:
        return len(self.rows)

    def update(self, plan: Plan) -> BatchUpdate | None:
        """Let sequences go, take in new ones, close gaps, note new blocks; None when no row changed hands."""
        removed = sorted(self._row_of.pop(i) for i in dict.fromkeys(plan.forget) if i in self._row_of)
        gaps = list(removed)
        added = [self._add(new, gaps.pop(0) if gaps else len(self.rows)) for new in plan.new]
        moved = self._close(gaps)
        for scheduled in plan.scheduled:
            if not any(scheduled.new_block_ids):
                continue
            for table, block_ids in zip(self._tables, scheduled.new_block_ids, strict=True):
                if block_ids:
                    table.extend(self._row_of[scheduled.request_id], block_ids)
        if not removed and not added:
            return None
        self.version += 1
        return BatchUpdate(batch_size=len(self.rows), removed=removed, added=added, moved=moved)

    def _add(self, new: NewSequence, at: int) -> AddedRequest:
        request_id = new.request.request_id
        assert request_id not in self._row_of, f"{request_id!r} is in the batch already"
        assert at < len(self.parameters), "more sequences than max_num_seqs"
        row = Row(new, derived_seed(self._seed, self._num_seen))
        self._num_seen += 1
        self.rows[at : at + 1] = [row]
        self._row_of[request_id] = at
        self.parameters[at] = row.parameters()
        for table in self._tables:
            table.clear(at)
        return at, new.request.params, new.request.prompt_token_ids, row.output_ids

    def _close(self, gaps: list[int]) -> list[MovedRequest]:
        """Fill each gap with the last row; `gaps` ascend."""
        moved: list[MovedRequest] = []
        while gaps:
            last = len(self.rows) - 1
            row = self.rows.pop()
            if gaps[-1] == last:
                gaps.pop()
                continue
            gap = gaps.pop(0)
            self._move(row, last, gap)
            moved.append((last, gap, MoveDirectionality.UNIDIRECTIONAL))
        return moved

    def _move(self, row: Row, source: int, target: int) -> None:
        self.rows[target] = row
        self._row_of[row.request.request_id] = target
        self.parameters[target] = self.parameters[source]
        for table in self._tables:
            table.move(source, target)

    def step(self, plan: Plan) -> Step:
        """Return the arrays of a plan that `update` has seen; at least one sequence must be scheduled.

        One token for each sequence, as in most steps, goes from list to array: after a forward pass no cache holds any
        code, and then a dozen operations on arrays take longer than all of this.
        """
        scheduled = plan.scheduled
        rows: list[int] = []
        starts, ends, lengths = rows.copy(), rows.copy(), rows.copy()
        num_drafts = 0
        for s in scheduled:
            row, start = self._row_of[s.request_id], s.start
            rows.append(row)
            starts.append(start)
            ends.append(start + s.num_tokens)
            lengths.append(self.rows[row].num_tokens + len(s.draft_token_ids))
            num_drafts += len(s.draft_token_ids)
        sampling = [i for i, end in enumerate(ends) if end == lengths[i]]
        assert sampling == [i for i, s in enumerate(scheduled) if s.samples], "the plan counts tokens otherwise"
        token_rows, drafts = None, None
        if sum(ends) - sum(starts) == len(rows):
            token_ids = [self.rows[row].token(start) for row, start in zip(rows, starts, strict=True)]
            positions, sequence_lengths = np.array(starts, dtype=np.int64), np.array(lengths, dtype=np.int64)
            if len(self._singles[0]) != len(rows) + 1:
                self._singles = _singles(len(rows))
            query_start, last_tokens = self._singles
        else:
            each = zip(rows, starts, ends, scheduled, strict=True)
            token_ids = [
                token
                for row, start, end, s in each
                for token in (*self.rows[row].tokens(start, end), *s.draft_token_ids)
            ]
            counts = np.subtract(ends, starts)
            query_start = np.zeros(len(rows) + 1, dtype=np.int32)
            query_start[1:] = np.cumsum(counts)
            last_tokens = query_start[1:].astype(np.int64) - 1
            token_rows = np.repeat(rows, counts)
            positions = np.arange(query_start[-1]) + np.repeat(starts - query_start[:-1], counts)
            sequence_lengths = np.repeat(lengths, counts)
            if num_drafts:
                drafts = [scheduled[i].draft_token_ids for i in sampling]
                drafted = np.array([len(s.draft_token_ids) for s in scheduled])
                last_tokens = last_tokens - drafted
                # Without drafts each would be the last of its sequence when it is computed.
                sequence_lengths = np.maximum(sequence_lengths - np.repeat(drafted, counts), positions + 1)
        seq_lens = np.array(ends, dtype=np.int32)
        return Step(
            token_ids=np.array(token_ids, dtype=np.int64),
            positions=positions,
            sequence_lengths=sequence_lengths,
            layouts=[
                BatchLayout(
                    query_start=query_start,
                    seq_lens=seq_lens,
                    block_table=table.blocks(rows, starts, ends),
                    slot_mapping=table.slots(rows, starts)
                    if token_rows is None
                    else table.all_slots(token_rows, positions),
                    block_size=table.block_size,
                )
                for table in self._tables
            ],
            query_start=query_start,
            rows=rows,
            sampling=sampling,
            last_tokens=last_tokens if len(sampling) == len(rows) else last_tokens[sampling],
            drafts=drafts,
        )

    def append(self, rows: Iterable[int], token_ids: list[int]) -> None:
        """Add a sampled token to each of the rows; to one that occurs again, another."""
        for row, token_id in zip(rows, token_ids, strict=True):
            self.rows[row].append(token_id)


def _singles(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return `query_start` and `last_tokens` of a step with one token for each of `count` sequences."""
    return np.arange(count + 1, dtype=np.int32), np.arange(count, dtype=np.int64)
