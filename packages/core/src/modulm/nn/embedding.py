"""Token ids -> vectors at the model's start, vectors -> logits at its end; the two may be one matrix."""

import torch
from torch import nn

from modulm.interfaces.kernels import PackedWeight
from modulm.interfaces.model import WeightSource
from modulm.interfaces.program import Embedding as EmbeddingOp
from modulm.interfaces.program import LMHead as LMHeadOp
from modulm.nn.traced import Traced


class Embedding(nn.Module):
    """Rows of a matrix by index. `tied` packs it for multiplication too, for an `LMHead` that shares it."""

    weight: PackedWeight

    def __init__(self, num_embeddings: int, size: int, *, dtype: torch.dtype, tied: bool = False) -> None:
        super().__init__()
        self.num_embeddings = num_embeddings
        self.size = size
        self.dtype = dtype
        self.tied = tied

    def load(self, name: str, source: WeightSource) -> None:
        """Read `<name>.weight`. Raises `CheckpointError`."""
        op = "linear" if self.tied else "embedding"
        self.weight = source.packed([name], [self.num_embeddings], self.size, op=op)

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return [num_tokens, size] in the compute dtype for int64 [num_tokens]."""
        if isinstance(token_ids, Traced):
            name = token_ids.recorder.weight(self, self.weight, (self.num_embeddings, self.size))
            return token_ids.apply(
                EmbeddingOp, shape=(self.size,), dtype=str(self.dtype).removeprefix("torch."), weight=name
            )
        return self.weight.rows(token_ids, self.dtype)


class LMHead(nn.Module):
    """Hidden states -> float32 logits: multiply, divide by `divisor`, cap.

    A `soft_cap` makes them `cap * tanh(x / cap)`. With `tied_to` it multiplies by that embedding's weight and reads
    nothing of its own.
    """

    weight: PackedWeight | None

    def __init__(
        self,
        in_features: int,
        num_embeddings: int,
        *,
        tied_to: Embedding | None = None,
        divisor: float = 1.0,
        soft_cap: float | None = None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.num_embeddings = num_embeddings
        self.divisor = divisor
        self.soft_cap = soft_cap
        self.weight = None
        self._tied_to = (tied_to,)  # in a tuple, so that torch does not list the embedding as our submodule

    def load(self, name: str, source: WeightSource) -> None:
        """Read `<name>.weight` unless tied. Raises `CheckpointError`."""
        if self._tied_to[0] is None:
            self.weight = source.packed([name], [self.num_embeddings], self.in_features)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 [n, num_embeddings] for hidden [n, in_features]."""
        embedding = self._tied_to[0]
        weight = self.weight if embedding is None else embedding.weight
        assert weight is not None, "load() comes before forward()"
        if isinstance(hidden, Traced):
            owner = self if embedding is None else embedding
            name = hidden.recorder.weight(owner, weight, (self.num_embeddings, self.in_features))
            scalars = {"divisor": self.divisor, "soft_cap": self.soft_cap}
            return hidden.apply(LMHeadOp, shape=(self.num_embeddings,), dtype="float32", weight=name, **scalars)
        logits = weight.linear(hidden).float()
        if self.divisor != 1.0:
            logits = logits / self.divisor
        if self.soft_cap is not None:
            logits = self.soft_cap * torch.tanh(logits / self.soft_cap)
        return logits
