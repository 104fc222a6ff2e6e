"""Quantization (family `modulm.quantization`): checkpoint tensors -> `Weight`, knowing formats and no devices.

A `Weight` is one of few canonical kinds, so that every format reaches every kernel. Kinds hold numpy arrays, often
read-only views on a mapped file, and say nothing of how to multiply: `interfaces/kernels.py` does. All are
[out_features, in_features], row-major. bfloat16 and 8-bit floats are the dtypes of that name in `ml_dtypes`.

Everything runs in the engine's process, from one thread, while a model loads: `resolve.py` takes the scheme that the
checkpoint's `quant_method` (or file format, or the user) names, and `worker/load.py` asks it once per layer. Nothing is
called once the model is loaded. `quantization_config.py` reads declarations, `checkpoint.expect` checks tensors.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from modulm.interfaces.kv_cache import KVScales, declared_kv_cache, stored_kv_scales
from modulm.interfaces.quantization_config import quantization_config
from modulm.interfaces.support import Support

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from modulm.interfaces.checkpoint import Checkpoint
    from modulm.interfaces.quantizing import Wish


@dataclass(frozen=True, kw_only=True, eq=False)
class Weight:
    """Base of the canonical kinds. `out_features` x `in_features` is the shape of the dequantised matrix."""

    out_features: int
    in_features: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Dense(Weight):
    """Plain numbers: `data` is float32, float16 or bfloat16 [out_features, in_features]."""

    data: "np.ndarray"


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupedInt(Weight):
    """Integers with one scale (and minimum) per group along a row: value = scale * code + minimum.

    Attributes:
        bits: Meaningful bits of a code, 2 to 8. Codes are unsigned: signed formats move their offset into `minimums`.
        group_size: Inputs per group; divides in_features.
        codes: uint8 [out_features, in_features * width / 8] with width = 4 for bits <= 4 (input 2i in the low nibble
            of byte i, input 2i + 1 in the high one), else 8 (one byte per input).
        scales: float16 or float32 [out_features, in_features / group_size].
        minimums: Same shape, added after scaling.
    """

    bits: int
    group_size: int
    codes: "np.ndarray"
    scales: "np.ndarray"
    minimums: "np.ndarray"


@dataclass(frozen=True, kw_only=True, eq=False)
class ChannelInt8(Weight):
    """Signed bytes with one scale per output row: value = scale[row] * codes[row, i].

    `codes` is int8 [out_features, in_features], `scales` float32 [out_features].
    """

    codes: "np.ndarray"
    scales: "np.ndarray"


@dataclass(frozen=True, kw_only=True, eq=False)
class Float8(Weight):
    """8-bit floats with scales per block: value = scales[row // block[0], col // block[1]] * data.

    `data` is float8_e4m3fn or float8_e5m2. A per-tensor scale has block (out_features, in_features), per-channel
    (1, in_features).
    """

    data: "np.ndarray"
    scales: "np.ndarray"
    block: tuple[int, int]


@dataclass(frozen=True, kw_only=True, eq=False)
class Codebook4(Weight):
    """4-bit indices into 16 values (NF4, FP4, IQ4_NL): value = scales[row, i // group_size] * codebook[code].

    `codes` is packed as in `GroupedInt` with 4 bits; `codebook` is float32 [16].
    """

    group_size: int
    codes: "np.ndarray"
    scales: "np.ndarray"
    codebook: "np.ndarray"


@dataclass(frozen=True, kw_only=True, eq=False)
class VectorCodebook(Weight):
    """Vectors of 4 or 8 neighbouring inputs out of a list (vector quantisation: GGUF's IQ1 to IQ3).

    value = scales[row, i // group_size] * codebook[codes[row, i // length], i % length], negated where the sign is set.

    Attributes:
        group_size: Inputs per scale, a multiple of 8; divides in_features.
        codes: uint16 [out_features, in_features / length], places in `codebook`.
        codebook: float32 [vectors, length].
        signs: uint8 [out_features, in_features / 8], bit i of a byte being that of its input i; or no columns, where
            nothing is negated.
        scales: float16 or float32 [out_features, in_features / group_size].
    """

    group_size: int
    codes: "np.ndarray"
    codebook: "np.ndarray"
    signs: "np.ndarray"
    scales: "np.ndarray"


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockFloat4(Weight):
    """Microscaling FP4 (e2m1) blocks: `codes` packed as in `GroupedInt`, `scales` one per block along a row.

    Source: OCP Microscaling Formats specification 1.0 (MXFP4, group 32) and NVFP4 (group 16).
    """

    group_size: int
    codes: "np.ndarray"
    scales: "np.ndarray"


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoded(Weight):
    """A format no canonical kind can hold yet: raw rows and the format's own decoder. Only reference kernels serve it.

    Attributes:
        format: The format's name, for messages.
        data: uint8 [out_features, bytes per row].
        decode: rows uint8 [n, bytes per row], only to be read -> float32 [n, in_features].
    """

    format: str
    data: "np.ndarray"
    decode: Callable[["np.ndarray"], "np.ndarray"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Reordered(Weight):
    """A weight whose inputs are stored in another order: column j of `weight` belongs to input order[j].

    For formats that quantize inputs by importance (GPTQ's activation order), so that a group's inputs lie apart.
    `weight` is of any other kind, `order` an int32 permutation [in_features]. Kernels that serve `weight` need not know
    this kind: the loader then reorders activations before them.
    """

    weight: Weight
    order: "np.ndarray"


CANONICAL: tuple[type[Weight], ...] = (
    Dense,
    GroupedInt,
    ChannelInt8,
    Float8,
    Codebook4,
    VectorCodebook,
    BlockFloat4,
    Encoded,
    Reordered,
)
"""All kinds."""


class QuantizationScheme(ABC):
    """How one checkpoint format stores its weights. Made once per model load."""

    name: ClassVar[str]
    unneeded_tensors: ClassVar[tuple[str, ...]] = ()
    """Regular expressions of tensors that the format has apart from layers, and that serve nothing here, such as scales
    of a KV cache of 8 bits; may be left out. `describe` says what becomes of them."""
    writes: ClassVar[tuple[str, ...]] = ()
    """What `modulm quantize --format` may ask `quantize` for."""

    @classmethod
    @abstractmethod
    def matches(cls, checkpoint: "Checkpoint") -> Support:
        """Say whether this checkpoint is in this format, by what it declares, never by shape."""

    @classmethod
    @abstractmethod
    def from_checkpoint(cls, checkpoint: "Checkpoint") -> "QuantizationScheme":
        """Make the scheme for this checkpoint. Raises `CheckpointError` on a declaration it cannot honour."""

    @abstractmethod
    def weight(self, checkpoint: "Checkpoint", module: str, out_features: int, in_features: int) -> Weight | None:
        """Return the weight of linear or embedding layer `module` (say "model.layers.0.mlp.up_proj").

        None means: not quantized, read `<module>.weight` as `Dense`. Raises `CheckpointError` naming the tensor when
        one is missing or has a wrong shape.
        """

    @classmethod
    def quantizes(cls, checkpoint: "Checkpoint") -> Support:
        """Say whether this scheme quantizes, as it loads, a checkpoint that declares none; asked if the user names it.

        `from_checkpoint` is then called with that checkpoint. The default is `matches`.
        """
        return cls.matches(checkpoint)

    def rule(self, checkpoint: "Checkpoint", module: str, out_features: int, in_features: int) -> str | None:
        """Say in a few words how a layer is stored ("4 bits, groups of 128"); None: not quantized.

        Asked of every layer before any is packed: raises what `weight` would, of names, shapes, types and scales, and
        converts nothing. Layers that a model fuses must agree, or the checkpoint is refused. The default checks nothing
        and lets all agree: for formats that store each tensor in a type of its own.
        """
        return ""

    def stack_tensors(self, checkpoint: "Checkpoint", name: str) -> tuple[str, ...]:
        """Name the checkpoint's tensors that a stack of matrices `name` ("….experts.down_proj") is stored as.

        Empty, as by default: it is not quantized, or not there.
        """
        return ()

    def stacked(self, checkpoint: "Checkpoint", name: str, shape: tuple[int | None, int, int], index: int) -> Weight:
        """Return matrix `index` of a stack [count or any, out_features, in_features] that `stack_tensors` knows.

        Raises `CheckpointError` as `weight` does; converts nothing, as it is also asked before anything is packed.
        """
        raise NotImplementedError

    def slice(self, name: str, weight: Dense) -> Weight:
        """Return a matrix of tensor `name`, which stacks several in plain numbers (experts); the default: as it is.

        For schemes that quantize while loading. Raises `CheckpointError` on numbers that cannot be.
        """
        return weight

    def kv_cache_dtype(self, checkpoint: "Checkpoint") -> str | None:
        """Name what the checkpoint wants keys and values cached as (`interfaces/kv_cache.py`); None: it does not say.

        Words for a dtype that there is not. It holds where the user leaves `--kv-cache-dtype` open and the attention
        backend serves it. The default reads what most formats declare.
        """
        return declared_kv_cache(quantization_config(checkpoint))

    def kv_scales(self, checkpoint: "Checkpoint", layer: str, num_kv_heads: int) -> KVScales | None:
        """Return the scales of an attention layer's cache ("model.layers.0.self_attn"); None: there are none.

        Asked for each layer before any weight is packed, where the cache's dtype has scales. Raises `CheckpointError`
        naming the tensor. The default knows the names that most formats have.
        """
        return stored_kv_scales(checkpoint, layer, num_kv_heads)

    @classmethod
    def quantize(cls, checkpoint: "Checkpoint", out: "Path", wish: "Wish") -> str:
        """Write a checkpoint of plain numbers again in this format, and say how, in words; called by `modulm quantize`.

        `out` is an empty folder; where config.json is written, what the checkpoint has beside weights is copied there
        afterwards, unless a file of that name is there. `interfaces/quantizing.py` writes layers. Raises `ConfigError`
        for a wish that cannot be granted, `CheckpointError` on numbers that cannot be.
        """
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Return what `modulm config --explain` shows (bits, group size, types by count)."""
        return {}


_OUTER = ("embed_tokens", "lm_head", "wte", "embed_in", "embed_out", "gate", "router", "shared_expert_gate")


def is_inner(module: str) -> bool:
    """Say whether schemes that quantize while loading take a layer: no embedding, output layer or router, as vLLM."""
    return module.rpartition(".")[2] not in _OUTER
