"""Which KV blocks hold each row's tokens, for one KV group. Host arrays only, as `BatchLayout` has them.

Does not know who owns a block or when it is freed: the engine decides that and sends block ids.
"""

import numpy as np


class BlockTable:
    """Rows of block ids, in the batch's row order; zeros behind each row's last block.

    Attributes:
        block_size: Tokens per block.
    """

    def __init__(self, num_rows: int, max_num_tokens: int, block_size: int, sliding_window: int | None) -> None:
        self.block_size = block_size
        self._window = sliding_window
        self._blocks = np.zeros((num_rows, -(-max_num_tokens // block_size)), dtype=np.int32)
        self._num_blocks = [0] * num_rows
        self._key: tuple[list[int], list[int], int] | None = None
        self._table = self._blocks[:0]

    def clear(self, row: int) -> None:
        """Forget a row's blocks."""
        self._num_blocks[row] = 0
        self._blocks[row] = 0
        self._key = None

    def extend(self, row: int, block_ids: list[int]) -> None:
        """Append blocks to a row."""
        first = self._num_blocks[row]
        self._num_blocks[row] = last = first + len(block_ids)
        self._blocks[row, first:last] = block_ids
        self._key = None

    def move(self, source: int, target: int) -> None:
        """Put one row's blocks at another's place."""
        self._num_blocks[target] = self._num_blocks[source]
        self._blocks[target] = self._blocks[source]
        self._key = None

    def blocks(self, rows: list[int], starts: list[int], ends: list[int]) -> np.ndarray:
        """Return what `BatchLayout.block_table` says, of sequences that compute positions start .. end - 1.

        Most steps see the blocks of the step before: they get the same array.
        """
        size, window = self.block_size, self._window
        num_blocks = -(-max(ends) // size)
        first_seen = [] if window is None else [max(start - window + 1, 0) // size for start in starts]
        key = (rows, first_seen, num_blocks)
        if key != self._key:
            self._key = key
            self._table = self._blocks[rows, :num_blocks]
            if window is not None:
                self._table *= np.arange(num_blocks) >= np.array(first_seen)[:, None]
        return self._table

    def slots(self, rows: list[int], positions: list[int]) -> np.ndarray:
        """Return where one position of each row goes, int64 [len(rows)]."""
        size, block_at = self.block_size, self._blocks.item
        slots = [block_at(row, p // size) * size + p % size for row, p in zip(rows, positions, strict=True)]
        return np.array(slots, dtype=np.int64)

    def all_slots(self, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return where many positions of few rows go, int64 [len(positions)]; both arrays are int64."""
        block, offset = np.divmod(positions, self.block_size)
        return self._blocks[rows, block].astype(np.int64) * self.block_size + offset
