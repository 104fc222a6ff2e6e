"""Names for full KV blocks: a hash chain, so that equal hashes mean equal tokens all the way from the first one.

The chain starts from what else decides the contents: adapter, cache salt, and the fan-out salt where prefix caching is
off. Knows no blocks; `groups.py` pairs hashes with blocks, one name per KV group.
"""

from array import array

from modulm.digests import hashed
from modulm.types import Request


class HashChain:
    """Hashes of the full blocks of one sequence, computed once per block as the sequence grows."""

    __slots__ = ("_block_size", "_seed", "hashes")

    def __init__(self, seed: bytes, block_size: int) -> None:
        self._seed = seed
        self._block_size = block_size
        self.hashes: list[bytes] = []

    def extend(self, token_ids: list[int], num_tokens: int) -> list[bytes]:
        """Hash the blocks that the first `num_tokens` of `token_ids` fill, and return all hashes so far."""
        size, hashes = self._block_size, self.hashes
        for start in range(len(hashes) * size, num_tokens - size + 1, size):
            parent = hashes[-1] if hashes else self._seed
            tokens = array("q", token_ids[start : start + size]).tobytes()
            hashes.append(hashed(parent + tokens).digest())
        return hashes


def chain_for(request: Request, block_size: int, *, prefix_caching: bool) -> HashChain | None:
    """Return an empty chain for the request, or None when its blocks are for nobody else."""
    fanout_salt = None if prefix_caching else request.fanout_salt
    if not prefix_caching and fanout_salt is None:
        return None
    adapter_key = request.adapter.key if request.adapter else None
    # repr keeps the parts apart: no salt can look like another salt plus an adapter.
    seed = hashed(repr((adapter_key, request.cache_salt, fanout_salt)).encode()).digest()
    return HashChain(seed, block_size)
