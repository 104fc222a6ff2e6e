"""From checkpoint to layers: every layer asks for its own weights by name.

`TensorSource` is the `WeightSource` of `interfaces/model.py`: it goes through quantization scheme and kernels, keeps
account of which tensors were used and how weights were packed, and counts progress. Knows no architecture. torch is
imported for a tensor or a model: arrays and packed weights need none.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from modulm.config import ModelConfig
from modulm.errors import CheckpointError, Unsupported
from modulm.interfaces.attention import AttentionSpec
from modulm.interfaces.checkpoint import Checkpoint, LayerTensors, array_dtype, expect
from modulm.interfaces.kernels import KernelProvider, PackedWeight
from modulm.interfaces.kv_cache import KV_CACHE_DTYPES, KVScales, stored_kv_scales
from modulm.interfaces.quantization import Dense, QuantizationScheme, Reordered, Weight
from modulm.interfaces.recipe import Recipe
from modulm.interfaces.support import Rejected, Support
from modulm.log import logger
from modulm.worker.weights import Parts, ReorderedInputs, halves_in_order, stacked

if TYPE_CHECKING:
    import torch

_log = logger("worker.load")
Progress = Callable[[int, int], None]

_UNNEEDED = re.compile(
    r"rotary_emb\.inv_freq$|rope_freqs\.weight$|^lm_head\.weight$|\.masked_bias$|\.attn\.bias$"
    r"|\.self_attn\.(attn\.|[kv]_proj\.|qkv_proj\.)?([kv]|kv)_scale$"
    r"|(^|\.)(vision_tower|vision_model|visual|multi_modal_projector|audio_tower|embed_vision|embed_audio)\."
)
"""Tensors that a text model may leave alone: recomputed tables, tied embeddings, KV scales, other modalities."""
_DENSE = ("float32", "float16", "bfloat16")
"""dtypes of `Dense`; any other float becomes float32."""


class TensorSource:
    """Weights of one checkpoint, for one device and dtype, both by torch's names: "cuda:0", "bfloat16".

    Weights that are not quantized keep the dtype they are stored in; the kernel decides. Other tensors get `dtype`.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        scheme: QuantizationScheme | None,
        kernels: Sequence[KernelProvider],
        device: str,
        dtype: str,
        progress: Progress | None = None,
        kv_cache_dtype: str | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._scheme = scheme
        self._kernels = kernels
        self._device = device
        self._dtype = dtype
        self._progress = progress
        self._names = set(checkpoint.tensor_names())
        self._layers = LayerTensors(checkpoint)
        self._used: set[str] = set()
        self._kv_cache_dtype = kv_cache_dtype
        self.kv_scales: dict[str, KVScales] = {}
        """By attention layer, once `read_kv_scales` has read them."""
        self._recipes: dict[int, tuple[PackedWeight, Recipe]] = {}  # by id, unique as long as the weight is kept here
        self.plain: dict[str, tuple[int, ...]] = {}
        """Shapes of the tensors that `tensor` handed out, by name."""
        self.size_bytes = 0
        """Bytes of all weights handed out."""
        self.choices: Counter[str] = Counter()
        """How many weights each kernel provider packed, by "provider: op kind (refusals)"."""

    def has(self, name: str) -> bool:
        """See `WeightSource`."""
        return name in self._names or bool(self._stack_tensors(name))

    def tensor(self, name: str, shape: tuple[int, ...]) -> "torch.Tensor":
        """See `WeightSource`. A copy where `array` is a view on the file: writing there would end the process."""
        from modulm.reference.tensors import to_torch

        array = self.array(name, shape)
        return to_torch(array if array.flags.writeable else array.copy(), self._device)

    def array(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Return the numbers of `tensor` as an array, which nobody may write to."""
        dtype = array_dtype(self._dtype)
        with np.errstate(all="ignore"):  # a number that 16 bits cannot hold becomes infinite, as in torch
            array = self._read_floats(name, shape).astype(dtype, copy=False)
        self.size_bytes += array.nbytes
        self.plain[name] = shape
        return array

    def packed(
        self, modules: list[str], out_features: list[int], in_features: int, *, op: str = "linear"
    ) -> PackedWeight:
        """See `WeightSource`. Raises `Unsupported` when no kernel serves a weight."""
        return self.pack(Recipe(tuple(modules), tuple(out_features), in_features, op))

    def packed_slice(
        self, name: str, shape: tuple[int, int, int], index: int, *, transposed: bool = False, in_turn: bool = False
    ) -> PackedWeight:
        """See `WeightSource`. Raises as `packed` does."""
        recipe = Recipe((name,), (shape[1],), shape[2], "linear", slice=index, transposed=transposed, in_turn=in_turn)
        return self._remembered(recipe, self._pack(self._slice(recipe, shape[0]), recipe.modules, recipe.op))

    def recipe(self, packed: PackedWeight) -> Recipe | None:
        """Return how a weight was packed; None for one that did not come from here."""
        return self._recipes[id(packed)][1] if id(packed) in self._recipes else None

    def pack(self, recipe: Recipe) -> PackedWeight:
        """Pack a weight as `recipe` says: the same again, and counted again. Raises as `packed` does."""
        modules, sizes, width = recipe.modules, recipe.out_features, recipe.in_features
        if recipe.slice is not None:
            return self._remembered(recipe, self._pack(self._slice(recipe), modules, recipe.op))
        parts = [self._weight(module, size, width) for module, size in zip(modules, sizes, strict=True)]
        whole = stacked(parts)
        if whole is not None:
            return self._remembered(recipe, self._pack(whole, modules, recipe.op))
        packed = [self._pack(part, [module], recipe.op) for part, module in zip(parts, modules, strict=True)]
        return self._remembered(recipe, Parts(packed, sizes))

    def read_kv_scales(self, layers: Mapping[str, AttentionSpec]) -> None:
        """Read the scales of the KV cache, if its dtype has such. Raises `CheckpointError` on those that cannot be."""
        kind = KV_CACHE_DTYPES.get(self._kv_cache_dtype or "")
        if kind is None or not kind.has_scales:
            return
        read = stored_kv_scales if self._scheme is None else self._scheme.kv_scales
        for name, spec in layers.items():
            if (scales := read(self._checkpoint, name, spec.num_kv_heads)) is not None:
                self.kv_scales[name] = scales

    def _remembered(self, recipe: Recipe, packed: PackedWeight) -> PackedWeight:
        self._recipes[id(packed)] = packed, recipe
        return packed

    def _weight(self, module: str, out_features: int, in_features: int) -> Weight:
        if self._scheme is not None:
            weight = self._scheme.weight(self._checkpoint, module, out_features, in_features)
            if weight is not None:
                self._mark_module(module)
                return weight
        return _dense(self._read_floats(f"{module}.weight", (out_features, in_features)))

    def _slice(self, recipe: Recipe, count: int | None = None) -> Weight:
        """Return one matrix of a tensor of `count`, or of any number."""
        weight = self._stored_slice(recipe, count)
        return halves_in_order(weight) if recipe.in_turn else weight

    def _stored_slice(self, recipe: Recipe, count: int | None) -> Weight:
        (name,), (out_features,), index = recipe.modules, recipe.out_features, recipe.slice
        shape = count, out_features, recipe.in_features
        if self._scheme is not None and index is not None and (tensors := self._stack_tensors(name)):
            self._mark(set(tensors))
            return self._scheme.stacked(self._checkpoint, name, shape, index)
        stack = self._read_floats(name, (shape[0], shape[2], shape[1]) if recipe.transposed else shape)
        if index is None or not 0 <= index < len(stack):
            raise CheckpointError(f"Tensor {name!r} in {self._checkpoint.path} has no matrix {index} of {len(stack)}.")
        dense = _dense(stack[index].T if recipe.transposed else stack[index])
        return dense if self._scheme is None else self._scheme.slice(name, dense)

    def _stack_tensors(self, name: str) -> tuple[str, ...]:
        return () if self._scheme is None else self._scheme.stack_tensors(self._checkpoint, name)

    def _pack(self, weight: Weight, modules: Sequence[str], op: str) -> PackedWeight:
        refusals: list[str] = []
        device_type = self._device.partition(":")[0]
        for kernel in self._kernels:
            answer, by = _ask(kernel, op, weight, device_type)
            if answer:
                packed, kind = kernel.pack(by, self._device, self._dtype), type(by).__name__
                if by is not weight and isinstance(weight, Reordered):
                    packed, kind = ReorderedInputs(packed, weight.order), f"{kind}, its inputs reordered"
                self.size_bytes += packed.size_bytes
                self._checkpoint.release()  # else the file's pages count beside their packed copy until all are packed
                notes = [note for note in (getattr(answer, "note", ""), *(f"not {one}" for one in refusals)) if note]
                reasons = f" ({'; '.join(notes)})" if notes else ""
                self.choices[f"{kernel.name}: {op} {kind}{reasons}"] += 1
                return packed
            refusals.append(f"{kernel.name}: {getattr(answer, 'reason', answer)}")
        raise Unsupported(
            f"Weight {modules[0]!r} ({type(weight).__name__}, {weight.out_features} x {weight.in_features}) has no "
            f"kernel for {op!r} on {device_type!r}. Asked: {'; '.join(refusals) or 'none'}. Install a kernel "
            "package for this device or use another checkpoint."
        )

    def _read_floats(self, name: str, shape: tuple[int | None, ...]) -> np.ndarray:
        array = self._read(name, shape)
        self._need_floats(name, array.dtype.name)
        return array

    def _need_floats(self, name: str, dtype: str) -> None:
        if dtype.startswith(("int", "uint", "bool")):
            raise CheckpointError(
                f"Tensor {name!r} in {self._checkpoint.path} holds {dtype} numbers, but the model needs floating-point "
                "ones. It may be quantized in a way that its config does not name."
            )

    def _read(self, name: str, shape: tuple[int | None, ...]) -> np.ndarray:
        """Return a tensor whose shape is `shape`, None in it being any size."""
        expect(self._checkpoint, name, shape, who="the model")
        self._mark({name})
        return self._checkpoint.tensor(name)

    def _mark_module(self, module: str) -> None:
        """Count whatever a scheme may have read for a module; a bias is the layer's own to ask for."""
        self._mark({f"{module}.{name}" for name in self._layers.of(module) if not f".{name}".endswith(".bias")})

    def _mark(self, names: set[str]) -> None:
        self._used |= names
        if self._progress is not None:
            self._progress(len(self._used), len(self._names))

    def check_layers(self, config: ModelConfig) -> None:
        """Refuse a count that no checkpoint of so few tensors can have, before so many layers are built."""
        count = config.get("num_hidden_layers", 0)
        if count > len(self._names):
            raise CheckpointError(
                f"num_hidden_layers={count!r} in the config of model {config.name!r} is refused: "
                f"{self._checkpoint.path} has {len(self._names)} tensors in all. Check that config and weights "
                "belong together."
            )

    def check_all_used(self, also_unneeded: Sequence[str] = ()) -> None:
        """Raise `CheckpointError` when a tensor was left over that matters.

        Args:
            also_unneeded: Regular expressions of names that this model does without.
        """
        left = sorted(self._names - self._used)
        also_unneeded = [*also_unneeded, *(() if self._scheme is None else self._scheme.unneeded_tensors)]
        wanted = [n for n in left if not _UNNEEDED.search(n) and not any(re.search(p, n) for p in also_unneeded)]
        if wanted:
            raise CheckpointError(
                f"{len(wanted)} tensors of {self._checkpoint.path} have no place in the model, the first being "
                f"{wanted[0]!r}: {', '.join(wanted[:5])}. Its answers would be wrong; check that the architecture "
                "named in the config is right."
            )
        _log.debug("Left over in the checkpoint, not needed: %s", ", ".join(left) or "nothing")
        if self._progress is not None:
            self._progress(len(self._names), len(self._names))


def _ask(kernel: KernelProvider, op: str, weight: Weight, device_type: str) -> tuple[Support, Weight]:
    """Return a provider's answer, and the weight that it is about: what is reordered, if that is all it serves."""
    answer = kernel.supports(op, weight, device_type)
    if isinstance(weight, Reordered) and isinstance(answer, Rejected):
        return kernel.supports(op, weight.weight, device_type), weight.weight
    return answer, weight


def _dense(data: np.ndarray) -> Dense:
    if data.dtype.name not in _DENSE:
        data = data.astype(np.float32)
    return Dense(out_features=data.shape[0], in_features=data.shape[1], data=data)
