"""The block pool: reference counts, and which free block to hand out next.

A block may carry a name (a key of the prefix cache). A named block that nobody holds stays findable until the pool
needs it: unnamed blocks go first, then the named ones, longest unused first. Knows nothing of sequences, tokens or KV
groups; names are made in `prefix.py`, tables are kept in `groups.py`.
"""

from collections import OrderedDict

Key = tuple[int, bytes]
"""KV group and hash: what a named block holds."""


class BlockPool:
    """Blocks 1 .. num_blocks - 1; block 0 is the null block, never handed out and never counted.

    Attributes:
        ref_counts: Holders of each block; 0 means free.
        num_usable: Blocks that can be handed out, free or not.
    """

    __slots__ = ("_block_of", "_key_of", "_reusable", "_unnamed", "num_usable", "ref_counts")

    def __init__(self, num_blocks: int) -> None:
        self.num_usable = num_blocks - 1
        self.ref_counts = [0] * num_blocks
        self._unnamed = list(range(num_blocks - 1, 0, -1))
        self._reusable: OrderedDict[int, None] = OrderedDict()
        self._block_of: dict[Key, int] = {}
        self._key_of: dict[int, Key] = {}

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can give, named ones included."""
        return len(self._unnamed) + len(self._reusable)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks, each held once and unnamed. The caller has checked `num_free`."""
        blocks = []
        for _ in range(count):
            block = self._unnamed.pop() if self._unnamed else self._evict()
            self.ref_counts[block] = 1
            blocks.append(block)
        return blocks

    def _evict(self) -> int:
        block, _ = self._reusable.popitem(last=False)
        del self._block_of[self._key_of.pop(block)]
        return block

    def share(self, block: int) -> None:
        """Hold a named block once more, whether it is free or not."""
        if self.ref_counts[block] == 0:
            del self._reusable[block]
        self.ref_counts[block] += 1

    def release(self, block: int) -> None:
        """Let go of a block; the first released is the first to be evicted."""
        self.ref_counts[block] -= 1
        assert self.ref_counts[block] >= 0, f"block {block} released more often than held"
        if self.ref_counts[block] == 0:
            if block in self._key_of:
                self._reusable[block] = None
            else:
                self._unnamed.append(block)

    def find(self, key: Key) -> int | None:
        """Return the block of this name, or None."""
        return self._block_of.get(key)

    def name(self, block: int, key: Key) -> bool:
        """Name a held block; False when another block has the name already (that one keeps it)."""
        if key in self._block_of:
            return False
        self._block_of[key] = block
        self._key_of[block] = key
        return True

    def unname(self, block: int) -> None:
        """Make a block unfindable because its contents cannot be trusted; without a name this does nothing."""
        key = self._key_of.pop(block, None)
        if key is None:
            return
        del self._block_of[key]
        if self.ref_counts[block] == 0:
            del self._reusable[block]
            self._unnamed.append(block)
