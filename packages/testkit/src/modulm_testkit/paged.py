"""Sequences in a paged cache whose layout only the backend knows: what came earlier is written through it as well.

The cache is poisoned (NaN) wherever nothing was written, block tables are padded with the null block, and so are
entries behind a window. Knows attention backends and layouts, no suite; `oracles/attention.py` says what is right.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from modulm.interfaces.attention import AttentionBackend, AttentionSpec, BatchLayout
from modulm.interfaces.kv_cache import KV_CACHE_DTYPES
from modulm_testkit.oracles.attention import attend
from modulm_testkit.tolerances import rounded

Work = Sequence[tuple[int, int]]
"""(tokens after the step, tokens of the step) of each sequence."""
_SPARE_BLOCKS = 3


def poisoned(shape: tuple[int, ...], kv_cache_dtype: str, device: str = "cpu") -> torch.Tensor:
    """Return a cache of numbers that are none: bytes of ones are no float of 8 bits, and four are no float32."""
    dtype = getattr(torch, KV_CACHE_DTYPES[kv_cache_dtype].tensor)
    ones = {torch.int8: -1, torch.uint8: 255}
    return torch.full(shape, ones.get(dtype, torch.nan), dtype=dtype, device=device)


class PagedBatch:
    """Random sequences, and a step of them.

    Args:
        backend: Computes.
        spec: Of the layer.
        work: What the step does.
        shuffled: Whether a sequence's blocks lie in any order; else one after the other.
        seed: Of the random numbers.

    Attributes:
        query, key, value: float64 arrays by sequence, [length, heads, head_size], rounded to what is stored.
        cache: The backend's.
        table: Block table, int32.
    """

    def __init__(
        self,
        backend: AttentionBackend,
        spec: AttentionSpec,
        work: Work,
        *,
        block_size: int = 16,
        shuffled: bool = False,
        seed: int = 0,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.backend, self.spec, self.work, self.block_size = backend, spec, work, block_size
        size = spec.head_size
        shapes = [(spec.num_heads, size), (spec.num_kv_heads, size), (spec.num_kv_heads, size)]
        drawn = [[rounded(rng.normal(size=(n, *shape)), spec.dtype) for n, _ in work] for shape in shapes]
        self.query, self.key, self.value = drawn
        self.sinks = rounded(rng.normal(size=spec.num_heads), spec.dtype) if spec.has_sinks else None
        self.slopes = rounded(rng.uniform(0.05, 0.5, spec.num_heads), spec.dtype) if spec.has_alibi else None
        counts = [-(-length // block_size) for length, _ in work]
        self.num_blocks = 1 + sum(counts) + _SPARE_BLOCKS
        shape = backend.kv_cache_shape(
            self.num_blocks, block_size, spec.num_kv_heads, size, kv_cache_dtype=spec.kv_cache_dtype
        )
        self.cache = poisoned(shape, spec.kv_cache_dtype, spec.device_type)
        blocks = list(range(1, self.num_blocks))
        if shuffled:
            rng.shuffle(blocks)
        self.table = np.zeros((len(work), max(counts) + 2), np.int32)
        for row, count in zip(self.table, counts, strict=True):
            row[:count], blocks = blocks[:count], blocks[count:]

    def write_history(self, *, forget: bool = False) -> None:
        """Bring the cache to where the step begins.

        Args:
            forget: Give up the blocks that no token of the step can see: they hold NaN, and the table names the null
                block in their place.
        """
        earlier = [(length - count, length - count) for length, count in self.work]
        self._forward(earlier)
        if forget and self.spec.sliding_window is not None:
            for row, (length, count) in zip(self.table, self.work, strict=True):
                first_seen = max(0, length - count - self.spec.sliding_window + 1)
                for index in range(first_seen // self.block_size):
                    self.cache[row[index]] = poisoned((1,), self.spec.kv_cache_dtype)[0]
                    row[index] = 0

    def run(self) -> np.ndarray:
        """Do the step; return float64 [num_tokens, num_heads, head_size]."""
        return self._forward(self.work).double().cpu().numpy()

    def layout(self, work: Work | None = None) -> BatchLayout:
        """Return the layout of the step, or of another one."""
        work = self.work if work is None else work
        slots = [
            int(self.table[i, position // self.block_size]) * self.block_size + position % self.block_size
            for i, (length, count) in enumerate(work)
            for position in range(length - count, length)
        ]
        return BatchLayout(
            query_start=np.cumsum([0, *(count for _, count in work)], dtype=np.int32),
            seq_lens=np.array([length for length, _ in work], np.int32),
            block_table=self.table.copy(),
            slot_mapping=np.array(slots, np.int64),
            block_size=self.block_size,
        )

    def tensors(self, work: Work | None = None) -> list[torch.Tensor]:
        """Return query, key and value of the step's tokens."""
        work = self.work if work is None else work
        dtype = getattr(torch, self.spec.dtype)
        return [
            torch.from_numpy(
                np.concatenate([one[length - count : length] for one, (length, count) in zip(each, work, strict=True)])
            ).to(self.spec.device_type, dtype)
            for each in (self.query, self.key, self.value)
        ]

    def plan(self, layout: BatchLayout | None = None) -> Any:
        """Return what the backend makes of the step's layout."""
        return self.backend.plan(layout or self.layout(), torch.device(self.spec.device_type))

    def forward(self, tensors: Sequence[torch.Tensor], metadata: Any) -> torch.Tensor:
        """Call the backend."""
        extra = {"sinks": self.sinks, "alibi_slopes": self.slopes}
        dtype, device = getattr(torch, self.spec.dtype), self.spec.device_type
        given = {k: torch.from_numpy(v).to(device, dtype) for k, v in extra.items() if v is not None}
        query, key, value = tensors
        return self.backend.forward(self.spec, query, key, value, self.cache, metadata, **given)

    def expected(self) -> np.ndarray:
        """Return what the step is to give."""
        stored, scales = self.spec.kv_cache_dtype, self.spec.kv_scales
        of_keys, of_values = (1.0, 1.0) if scales is None else (np.array([s]).T for s in (scales.key, scales.value))
        return np.concatenate([
            attend(
                self.spec, query[length - count :], rounded(key, stored, of_keys), rounded(value, stored, of_values),
                sinks=self.sinks, slopes=self.slopes,
            )
            for query, key, value, (length, count) in zip(self.query, self.key, self.value, self.work, strict=True)
        ])  # fmt: skip

    def _forward(self, work: Work) -> torch.Tensor:
        """Sequences without a token in this step are not in its layout."""
        left = [i for i, (_, count) in enumerate(work) if count]
        if not left:
            return torch.empty(0)
        whole = self.table
        parts = self.query, self.key, self.value
        try:
            self.table = whole[left]
            self.query, self.key, self.value = ([part[i] for i in left] for part in parts)
            now = [work[i] for i in left]
            return self.forward(self.tensors(now), self.plan(self.layout(now)))
        finally:
            self.table = whole
            self.query, self.key, self.value = parts
