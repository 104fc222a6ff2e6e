"""Paged attention in plain torch: gather keys and values by block table, then dense attention, in float32.

Sequences that decode are served together, padded; a longer stretch of one sequence is cut into pieces of bounded size.
Reads only positions that some query of the step may see, so freed blocks and unused slots may hold anything. What a
cache's dtype does to numbers is in `kv_cache_torch.py`.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F

from modulm.interfaces.attention import AttentionBackend, AttentionSpec, BatchLayout
from modulm.interfaces.kv_cache import KV_CACHE_DTYPES
from modulm.interfaces.support import Accepted, Rejected, Support
from modulm.reference import kv_cache_torch

_PIECE = 1 << 21
"""Most query-key pairs (of one head) that are computed at once; bounds memory."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Queries that are computed at once: `n` sequences, `t` queries each, over `m` keys each.

    Attributes:
        rows: int64 [n, t], tokens of the step.
        slots: int64 [n, m], where their keys and values are. Padding repeats a slot that may be read.
        distances: int64 [n, t, m], key position minus query position; padding has 1, which is the future.
        is_plain: Nothing is hidden but the future, and keys and queries are the same tokens.
    """

    rows: torch.Tensor
    slots: torch.Tensor
    distances: torch.Tensor
    is_plain: bool


@dataclass(kw_only=True)
class Step:
    """The step's layout on the host, slots on the device, and pieces by sliding window, made on first use."""

    layout: BatchLayout
    device: torch.device
    slot_mapping: torch.Tensor
    _pieces: dict[int | None, list[Piece]] = field(default_factory=dict)

    def pieces(self, window: int | None) -> list[Piece]:
        """Return the pieces for layers that see `window` positions, or all."""
        if window not in self._pieces:
            self._pieces[window] = self._cut(window)
        return self._pieces[window]

    def _cut(self, window: int | None) -> list[Piece]:
        starts = self.layout.query_start
        counts = starts[1:] - starts[:-1]
        pieces = []
        decoding = np.flatnonzero(counts == 1)
        lengths = self.layout.seq_lens[decoding] if window is None else self.layout.seq_lens[decoding].clip(max=window)
        decoding = decoding[np.argsort(lengths, kind="stable")]
        longest = int(lengths.max(initial=1))
        at_once = max(1, _PIECE // longest)
        for first in range(0, len(decoding), at_once):
            pieces.append(self._decode(decoding[first : first + at_once], window))
        for sequence in np.flatnonzero(counts > 1):
            end = int(self.layout.seq_lens[sequence])
            begin = end - int(counts[sequence])
            at_once = max(1, _PIECE // end)
            for first in range(begin, end, at_once):
                row = int(starts[sequence]) + first - begin
                pieces.append(self._stretch(int(sequence), row, first, min(first + at_once, end), window))
        return pieces

    def _decode(self, sequences: "np.ndarray", window: int | None) -> Piece:
        """One query each: the last position of every sequence."""
        last = self.layout.seq_lens[sequences].astype(np.int64) - 1
        first = np.zeros_like(last) if window is None else (last - window + 1).clip(min=0)
        keys = first[:, None] + np.arange(int((last - first).max()) + 1)
        distances = np.minimum(keys - last[:, None], 1)
        slots = self._slots(sequences[:, None], np.minimum(keys, last[:, None]))
        rows = self.layout.query_start[sequences].astype(np.int64)[:, None]
        return self._piece(rows, slots, distances[:, None], is_plain=False)

    def _stretch(self, sequence: int, row: int, first: int, end: int, window: int | None) -> Piece:
        """Positions `first` .. `end` - 1 of one sequence; `row` is the token of the first."""
        lowest = 0 if window is None else max(0, first - window + 1)
        keys, queries = np.arange(lowest, end), np.arange(first, end)
        slots = self._slots(np.array([[sequence]]), keys[None])
        rows = row + np.arange(end - first)
        is_plain = first == 0 and (window is None or window >= end)
        return self._piece(rows[None], slots, (keys - queries[:, None])[None], is_plain=is_plain)

    def _slots(self, sequences: "np.ndarray", positions: "np.ndarray") -> "np.ndarray":
        size = self.layout.block_size
        return self.layout.block_table[sequences, positions // size].astype(np.int64) * size + positions % size

    def _piece(self, rows: "np.ndarray", slots: "np.ndarray", distances: "np.ndarray", *, is_plain: bool) -> Piece:
        tensors = [torch.from_numpy(array).to(self.device) for array in (rows, slots, distances)]
        return Piece(rows=tensors[0], slots=tensors[1], distances=tensors[2], is_plain=is_plain)


class TorchAttention(AttentionBackend):
    """Serves everything, in every dtype of the cache.

    That is [num_blocks, block_size, 2, num_kv_heads, width of a head], keys before values.
    """

    name: ClassVar[str] = "torch"

    @classmethod
    def supports(cls, spec: AttentionSpec) -> Support:
        """See base class."""
        if spec.kv_cache_dtype not in KV_CACHE_DTYPES:
            return Rejected(f"KV cache dtype {spec.kv_cache_dtype!r} is none of {', '.join(KV_CACHE_DTYPES)}")
        if spec.kv_cache_dtype == "nvfp4" and spec.head_size % 16:
            return Rejected(
                f"head size {spec.head_size} is no multiple of the 16 numbers that share a scale in 'nvfp4'"
            )
        return Accepted("plain torch, slow")

    @classmethod
    def kv_cache_shape(
        cls, num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, kv_cache_dtype: str = "float32"
    ) -> tuple[int, ...]:
        """See base class."""
        return (num_blocks, block_size, 2, num_kv_heads, kv_cache_torch.width(kv_cache_dtype, head_size))

    def plan(self, layout: BatchLayout, device: torch.device) -> Step:
        """See base class."""
        slots = torch.from_numpy(layout.slot_mapping.astype(np.int64, copy=False)).to(device)
        return Step(layout=layout, device=device, slot_mapping=slots)

    def forward(
        self,
        spec: AttentionSpec,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: Any,
        *,
        sinks: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See base class. ALiBi adds slope * (key position - query position) (Press et al., arXiv:2108.12409)."""
        step: Step = metadata
        slots = kv_cache.view(-1, *kv_cache.shape[2:])  # never a copy, or what is written would be lost
        dtype, scales = spec.kv_cache_dtype, kv_cache_torch.layer_scales(spec.kv_scales, kv_cache.device)
        slots[step.slot_mapping] = kv_cache_torch.stored(torch.stack((key, value), dim=1), dtype, scales)
        is_special = spec.soft_cap is not None or sinks is not None or alibi_slopes is not None
        out = torch.empty_like(query)
        for piece in step.pieces(spec.sliding_window):
            # [n, m, 2, kv_heads, size] -> two of [n, kv_heads, m, size]
            keys, values = kv_cache_torch.restored(slots[piece.slots], dtype, scales).permute(2, 0, 3, 1, 4)
            queries = query[piece.rows].float().transpose(1, 2)
            if is_special:
                found = _attend(spec, queries, keys, values, piece, sinks, alibi_slopes)
            else:
                mask = None if piece.is_plain else _visible(piece, spec.sliding_window)[:, None]
                found = F.scaled_dot_product_attention(
                    queries, keys, values, mask, is_causal=piece.is_plain, scale=spec.scale, enable_gqa=True
                )
            out[piece.rows] = found.transpose(1, 2).to(out.dtype)
        return out


def _visible(piece: Piece, window: int | None) -> torch.Tensor:
    """Return bool [n, t, m]."""
    past = piece.distances <= 0
    return past if window is None else past & (piece.distances > -window)


def _attend(
    spec: AttentionSpec,
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    piece: Piece,
    sinks: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None,
) -> torch.Tensor:
    """Return [n, heads, t, size]: scale, cap, bias, mask, sinks, softmax, in that order."""
    group = spec.num_heads // spec.num_kv_heads
    keys, values = (part.repeat_interleave(group, dim=1) for part in (keys, values))
    scores = queries @ keys.transpose(2, 3) * spec.scale
    if spec.soft_cap is not None:
        scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
    if alibi_slopes is not None:
        scores = scores + alibi_slopes.float()[None, :, None, None] * piece.distances[:, None]
    scores = scores.masked_fill(~_visible(piece, spec.sliding_window)[:, None], -torch.inf)
    if sinks is not None:
        extra = sinks.float()[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, extra), dim=-1)
    probabilities = F.softmax(scores, dim=-1)
    return probabilities[..., : keys.shape[2]] @ values
