"""Model architectures (family `modulm.models`): ordinary torch modules built from `modulm.nn`.

Built by the worker in the engine's process, with parameters on the meta device, filled from the checkpoint, then called
from one thread: `forward` once per step, `compute_logits` once per step for the rows that need them. Where kernels run
programs, both are called once with `Traced` values instead, to record the model. A model knows neither quantization nor
kernels nor block tables: `nn` layers take those from `ForwardBatch`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    import torch

    from modulm.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class ForwardBatch:
    """What a forward pass needs beside token ids; handed down to every layer.

    Attributes:
        positions: int64 [num_tokens].
        kv_caches: Attention layer's name -> its cache tensor.
        metadata: Attention layer's name -> what its backend's `plan` returned for this step.
        max_seq_len: Longest sequence of the batch, tokens of this step included.
    """

    positions: "torch.Tensor"
    kv_caches: Mapping[str, "torch.Tensor"]
    metadata: Mapping[str, Any]
    max_seq_len: int
    extra: Mapping[str, Any] = field(default_factory=dict)


class CausalLM(Protocol):
    """What the runner calls. Constructed as `Model(config: ModelConfig)`; see `models/llama.py` for the pattern."""

    supported_tasks: ClassVar[tuple[str, ...]] = ("generate",)
    unneeded_tensors: ClassVar[tuple[str, ...]] = ()
    """Regular expressions of checkpoint tensors that the model does without; may be left out. Any other tensor that
    nobody asked for is an error."""

    def __init__(self, config: "ModelConfig") -> None:
        """Made in the worker, on the meta device."""

    def forward(self, token_ids: "torch.Tensor", batch: ForwardBatch) -> "torch.Tensor":
        """Return hidden states [num_tokens, hidden_size] for token_ids int64 [num_tokens]."""

    def compute_logits(self, hidden: "torch.Tensor") -> "torch.Tensor":
        """Return float32 logits [n, vocab_size] for hidden states [n, hidden_size], final soft cap included."""


class WeightSource(Protocol):
    """Where `nn` layers get their weights at load, by checkpoint name. Implemented by `worker/load.py`.

    The loader walks `model.named_modules()` and calls `load(name, source)` on every module that has such a method;
    parameters still on the meta device afterwards are read by their own name.
    """

    def tensor(self, name: str, shape: tuple[int, ...]) -> "torch.Tensor":
        """Return a plain tensor (norm, bias) on the device in the compute dtype; `CheckpointError` if missing."""

    def has(self, name: str) -> bool:
        """Whether the checkpoint has a tensor (say, an optional bias)."""

    def packed(self, modules: list[str], out_features: list[int], in_features: int, *, op: str = "linear") -> Any:
        """Return one `PackedWeight` for the weights of `modules`, stacked along the output, through scheme and kernel.

        `op` is "linear" or "embedding". Where the parts' kinds differ they stay apart behind one `PackedWeight`.
        """

    def packed_slice(
        self, name: str, shape: tuple[int, int, int], index: int, *, transposed: bool = False, in_turn: bool = False
    ) -> Any:
        """Return one `PackedWeight` for matrix `index` of a tensor `name` [count, out_features, in_features].

        For experts that a checkpoint stacks: `name` is the tensor's own ("model.layers.0.mlp.experts.down_proj").
        `transposed`: plain numbers are stored [count, in_features, out_features]; a quantized stack never is.
        `in_turn`: rows of two halves are stored in turn, and packed one half after the other.
        """
