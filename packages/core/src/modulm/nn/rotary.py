"""Rotary position embeddings as a layer: once per step the tables of cos and sin, then the rotation in every layer.

Where frequencies depend on the sequence's length (dynamic NTK, LongRoPE), transformers takes the longest of the batch.
Here every sequence has its own: a neighbour must not change a result. Its length is what `batch.extra` says under
`SEQUENCE_LENGTHS`: the tokens the sequence has so far, the whole prompt while that is prefilled, so that chunks make
no difference. Keys in the cache keep the rotation they were written with, as in transformers; so does a prefix
that another sequence left there.
"""

import torch
from torch import nn

from modulm.interfaces.model import ForwardBatch
from modulm.interfaces.program import Rotary, RotaryTables
from modulm.nn.rope import Rope
from modulm.nn.rope_frequencies import frequencies
from modulm.nn.traced import Traced

SEQUENCE_LENGTHS = "sequence_lengths"
"""Key in `ForwardBatch.extra`: int64 [num_tokens], for each token the length of its sequence. Read only by layers whose
`needs_sequence_lengths` is true; without it a token at position p counts as the last of p + 1."""

Tables = tuple[torch.Tensor, torch.Tensor]


class RotaryEmbedding(nn.Module):
    """Positions -> cos and sin of every rotated dimension."""

    def __init__(self, rope: Rope) -> None:
        super().__init__()
        self.rope = rope
        self._frequencies = frequencies(rope)
        self.needs_sequence_lengths = self._frequencies.by_length

    def forward(self, batch: ForwardBatch) -> Tables:
        """Return cos and sin, float32 [num_tokens, rope.dim], the two halves of a row alike."""
        positions = batch.positions
        if isinstance(positions, Traced):
            lengths = [batch.extra[SEQUENCE_LENGTHS]] if self.needs_sequence_lengths else []
            outputs = [((self.rope.dim // 2,), "float32")] * 2
            return positions.apply_many(RotaryTables, *lengths, outputs=outputs, **self._frequencies.recorded())
        lengths = positions + 1
        if self.needs_sequence_lengths:
            lengths = batch.extra.get(SEQUENCE_LENGTHS, lengths)
        self._frequencies.to(positions.device)
        angles = positions[:, None].float() * self._frequencies.of(lengths)
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos() * self._frequencies.scaling, angles.sin() * self._frequencies.scaling


def apply_rotary(query: torch.Tensor, key: torch.Tensor, tables: Tables) -> tuple[torch.Tensor, torch.Tensor]:
    """Return query and key rotated, in their dtype; computed in float32.

    Dimension i of the first half turns with dimension i of the second ("NeoX" pairing, as transformers has it).

    Args:
        query, key: [num_tokens, heads, head_size]; dimensions past the tables' width pass through.
        tables: From `RotaryEmbedding`.
    """
    if isinstance(query, Traced) and isinstance(key, Traced):
        outputs = [(x.row_shape, x.row_dtype) for x in (query, key)]
        return query.apply_many(Rotary, key, *tables, outputs=outputs)
    return _rotate(query, *tables), _rotate(key, *tables)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    width = cos.shape[-1]
    turning = x[..., :width].float()
    first, second = turning.chunk(2, dim=-1)
    turned = turning * cos[:, None] + torch.cat((-second, first), dim=-1) * sin[:, None]
    turned = turned.to(x.dtype)
    return turned if width == x.shape[-1] else torch.cat((turned, x[..., width:]), dim=-1)
