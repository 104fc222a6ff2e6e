"""Which KV blocks hold each row's tokens, for one KV group. Host arrays only; hands out `BatchLayout`.

Does not know who owns a block or when it is freed: the engine decides that and sends block ids.
"""

import numpy as np

from modulm.interfaces.attention import BatchLayout


class BlockTable:
    """Rows of block ids, in the batch's row order; zeros behind each row's last block."""

    def __init__(self, num_rows: int, max_num_tokens: int, block_size: int, sliding_window: int | None) -> None:
        self._block_size = block_size
        self._window = sliding_window
        self._blocks = np.zeros((num_rows, -(-max_num_tokens // block_size)), dtype=np.int32)
        self._num_blocks = [0] * num_rows

    def clear(self, row: int) -> None:
        """Forget a row's blocks."""
        self._num_blocks[row] = 0
        self._blocks[row] = 0

    def extend(self, row: int, block_ids: list[int]) -> None:
        """Append blocks to a row."""
        first = self._num_blocks[row]
        self._num_blocks[row] = last = first + len(block_ids)
        self._blocks[row, first:last] = block_ids

    def move(self, source: int, target: int) -> None:
        """Put one row's blocks at another's place."""
        self._num_blocks[target] = self._num_blocks[source]
        self._blocks[target] = self._blocks[source]

    def layout(
        self,
        rows: np.ndarray,
        starts: np.ndarray,
        seq_lens: np.ndarray,
        *,
        query_start: np.ndarray,
        token_rows: np.ndarray,
        positions: np.ndarray,
    ) -> BatchLayout:
        """Return what attention needs to know of a step.

        Args:
            rows, starts, seq_lens: Of each scheduled sequence: batch row, first position computed, length after it.
            query_start: int32 [num_seqs + 1], see `BatchLayout`.
            token_rows, positions: Of each token: batch row and position.
        """
        size = self._block_size
        num_blocks = -(-int(seq_lens.max()) // size)
        table = self._blocks[rows, :num_blocks]  # behind a sequence's last block there are zeros
        if self._window is not None:
            table *= np.arange(num_blocks) >= (np.maximum(starts - self._window + 1, 0) // size)[:, None]
        block, offset = np.divmod(positions, size)
        return BatchLayout(
            query_start=query_start,
            seq_lens=seq_lens.astype(np.int32),
            block_table=table,
            slot_mapping=self._blocks[token_rows, block].astype(np.int64) * size + offset,
            block_size=size,
        )
