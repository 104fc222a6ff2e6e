"""What an author hands to a suite where a class alone is not enough: files with known contents."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from modulm.interfaces.checkpoint import Checkpoint
    from modulm.interfaces.quantization import QuantizationScheme


@dataclass(frozen=True, kw_only=True)
class CheckpointSample:
    """A file of a checkpoint format, for `CheckpointConformance`.

    Attributes:
        reader: The class that the entry point of `modulm.checkpoints` names.
        path: A file or folder in this format; `checkpoints.py` makes small models to convert.
        config: Some of the keys that `config()` must give, with their values; `architectures` among them.
        tensors: Some of the tensors, by transformers' names, as `tensor()` must give them.
    """

    reader: "type[Checkpoint]"
    path: Path
    config: Mapping[str, Any]
    tensors: "Mapping[str, np.ndarray]"


@dataclass(frozen=True, kw_only=True)
class QuantizedSample:
    """A quantized checkpoint, for `QuantizationConformance`.

    Attributes:
        scheme: The class that the entry point of `modulm.quantization` names.
        checkpoint: An opened checkpoint in this format: of its own reader, or a `MemoryCheckpoint`.
        weights: What the quantized layers are worth: module ("model.layers.0.mlp.up_proj") -> floats
            [out_features, in_features], computed by the format's own library or in plain numpy.
        plain: Modules that the format leaves as they are, with their numbers.
    """

    scheme: "type[QuantizationScheme]"
    checkpoint: "Checkpoint"
    weights: "Mapping[str, np.ndarray]"
    plain: "Mapping[str, np.ndarray]" = field(default_factory=dict)
