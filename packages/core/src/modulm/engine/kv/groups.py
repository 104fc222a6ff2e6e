"""Block tables across KV groups: full attention and sliding windows, drawing on one pool.

All tables of a sequence have the same length; where a sliding group needs a block no more, the table holds the null
block 0. Blocks are named (put in the prefix cache) when they are scheduled, not when they are computed: a step writes
all its K/V before it reads any, so a sequence of the same step may share them. Knows no requests and no budgets;
`scheduler.py` decides who gets blocks.
"""

from bisect import bisect_right

from modulm.engine.kv.pool import BlockPool
from modulm.types import KVLayout

NULL_BLOCK = 0


class BlockTables:
    """The blocks of one sequence.

    Attributes:
        groups: One table per KV group.
        num_blocks: Length of every table.
        num_named: Blocks, from the first, that have been offered to the prefix cache.
        first_live: Per group, the first block that is not the null block.
    """

    __slots__ = ("first_live", "groups", "num_blocks", "num_named")

    def __init__(self, groups: list[list[int]], num_blocks: int) -> None:
        self.groups = groups
        self.num_blocks = num_blocks
        self.num_named = num_blocks
        self.first_live = [0] * len(groups)


class KVGroups:
    """Gives blocks to sequences and takes them back.

    Attributes:
        block_size: Tokens per block.
        pool: The blocks.
    """

    def __init__(self, layout: KVLayout) -> None:
        self.block_size = layout.block_size
        self.pool = BlockPool(layout.num_blocks)
        self._windows = [group.sliding_window for group in layout.groups]
        self._full = [g for g, window in enumerate(self._windows) if window is None]
        self._sliding = [(g, window) for g, window in enumerate(self._windows) if window is not None]
        self._named_in_step: list[int] = []

    def start_step(self) -> None:
        """Everything named from here on belongs to a new step."""
        self._named_in_step.clear()

    def distrust_step(self) -> None:
        """Take back the names given in this step: its blocks may never have been written."""
        for block in self._named_in_step:
            self.pool.unname(block)
        self._named_in_step.clear()

    def longest_hit(self, hashes: list[bytes], most: int) -> BlockTables:
        """Return tables for the longest prefix, of at most `most` blocks, that every group can serve.

        They are an offer: nothing is held until `begin`.
        """
        num_blocks = min(most, len(hashes)) if self._windows else 0
        for g in self._full:
            num_blocks = self._num_found(g, hashes, num_blocks)
        if self._sliding:
            num_blocks = self._longest_for_windows(hashes, num_blocks)
        tables = BlockTables([[NULL_BLOCK] * num_blocks for _ in self._windows], num_blocks)
        for g, window in enumerate(self._windows):
            tables.first_live[g] = self._first_visible(num_blocks * self.block_size, window)
            for i in range(tables.first_live[g], num_blocks):
                block = self.pool.find((g, hashes[i]))
                assert block is not None
                tables.groups[g][i] = block
        return tables

    def _num_found(self, g: int, hashes: list[bytes], most: int) -> int:
        find = self.pool.find
        for i in range(most):
            if find((g, hashes[i])) is None:
                return i
        return most

    def _longest_for_windows(self, hashes: list[bytes], most: int) -> int:
        best = 0
        runs = [0] * len(self._sliding)
        for num_blocks in range(1, most + 1):
            end = num_blocks * self.block_size
            fits = True
            for i, (g, window) in enumerate(self._sliding):
                runs[i] = runs[i] + 1 if self.pool.find((g, hashes[num_blocks - 1])) is not None else 0
                fits = fits and runs[i] >= num_blocks - self._first_visible(end, window)
            if fits:
                best = num_blocks
        return best

    def _first_visible(self, position: int, window: int | None) -> int:
        """Index of the first block that a query at `position` or later may read."""
        return 0 if window is None else max(0, position - window + 1) // self.block_size

    def can_begin(self, tables: BlockTables, end: int, total: int, *, others: int) -> bool:
        """Say whether a sequence may start with the offered blocks and be computed up to `end`.

        Beside `others` running sequences it must also have room for all its `total` tokens and leave each of them a
        block to grow into; without that it would soon be preempted, and its work thrown away.
        """
        pool, size = self.pool, self.block_size
        revived = sum(1 for table in tables.groups for block in table if block and pool.ref_counts[block] == 0)
        missing = -(-end // size) - tables.num_blocks
        if revived + missing * len(self._windows) > pool.num_free:
            return False
        chunk = end - tables.num_blocks * size
        missing = -(-total // size) - tables.num_blocks
        later = sum(min(missing, self._peak(total, chunk, window)) for window in self._windows)
        return others == 0 or revived + later + others <= pool.num_free

    def begin(self, tables: BlockTables) -> None:
        """Hold the blocks of an offer."""
        for table in tables.groups:
            for block in table:
                if block:
                    self.pool.share(block)

    def extend(self, tables: BlockTables, start: int, end: int, *, num_kept: int = 0) -> list[list[int]] | None:
        """Make room for computing positions start .. end - 1: the new blocks per group, or None if the pool is dry.

        It is dry when fewer than `num_kept` blocks would be left. Blocks that no window reaches from `start` on are
        freed first, in either case.
        """
        if self._sliding:
            self._slide(tables, start)
        missing = -(-end // self.block_size) - tables.num_blocks
        if missing <= 0:
            return [[] for _ in tables.groups]
        if missing * len(tables.groups) + num_kept > self.pool.num_free:
            return None
        new = [self.pool.allocate(missing) for _ in tables.groups]
        for table, blocks in zip(tables.groups, new, strict=True):
            table.extend(blocks)
        tables.num_blocks += missing
        return new

    def _slide(self, tables: BlockTables, start: int) -> None:
        for g, window in self._sliding:
            first = min(self._first_visible(start, window), tables.num_blocks)
            table = tables.groups[g]
            for i in range(tables.first_live[g], first):
                self.pool.release(table[i])
                table[i] = NULL_BLOCK
            tables.first_live[g] = max(first, tables.first_live[g])

    def name_blocks(self, tables: BlockTables, hashes: list[bytes], num_full: int) -> None:
        """Offer the first `num_full` blocks, as far as not yet done, to the prefix cache."""
        for g, table in enumerate(tables.groups):
            for i in range(max(tables.num_named, tables.first_live[g]), num_full):
                if self.pool.name(table[i], (g, hashes[i])):
                    self._named_in_step.append(table[i])
        tables.num_named = num_full

    def distrust(self, tables: BlockTables) -> None:
        """Leave nothing of this sequence in the prefix cache."""
        for table in tables.groups:
            for block in table:
                self.pool.unname(block)

    def release(self, tables: BlockTables) -> None:
        """Let go of all blocks, last ones first, so that beginnings outlive ends in the prefix cache."""
        for i in range(tables.num_blocks - 1, -1, -1):
            for table in tables.groups:
                if table[i]:
                    self.pool.release(table[i])

    def peak(self, num_tokens: int, chunk: int) -> int:
        """Return the most blocks a sequence of `num_tokens` holds at once, computed by at most `chunk` a step."""
        return sum(self._peak(num_tokens, chunk, window) for window in self._windows)

    def _peak(self, num_tokens: int, chunk: int, window: int | None) -> int:
        num_blocks = -(-num_tokens // self.block_size)
        if window is None:
            return num_blocks
        num_visible = window - 1 + chunk
        # A run of tokens that starts anywhere in a block touches up to this many blocks.
        return min(num_blocks, (num_visible + self.block_size - 2) // self.block_size + 1)

    def longest_sequence(self, chunk: int, most: int) -> int:
        """Return the most tokens, up to `most`, that one sequence alone can have in this pool."""
        lengths = range(1, most + 1)
        return bisect_right(lengths, self.pool.num_usable, key=lambda n: self.peak(n, min(n, chunk)))
