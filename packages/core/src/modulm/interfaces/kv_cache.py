"""How keys and values are cached: the dtypes there are, and the scales that narrow ones are rounded by.

A cache of `fp8_e4m3` or `fp8_e5m2` holds number / scale, rounded to nearest even and cut off at the largest, and stands
for that times the scale. Scales belong to a checkpoint: while a model loads, before its weights, the worker reads them
once for each attention layer (`QuantizationScheme.kv_scales`) and puts them into `AttentionSpec.kv_scales`. Where there
are none all are 1. `int8_per_token_head` needs none: a backend calculates them from each token and keeps them beside
it. Knows no device and no layout: that is the attention backend's (`interfaces/attention.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modulm.errors import CheckpointError
from modulm.interfaces.checkpoint import expect, finite

if TYPE_CHECKING:
    from modulm.interfaces.checkpoint import Checkpoint
    from modulm.interfaces.quantization_config import QuantizationConfig


@dataclass(frozen=True, kw_only=True)
class KVCacheDtype:
    """One way to store keys and values.

    Attributes:
        array, tensor: numpy's and torch's type that a cache's memory has; numbers of 8 bits and fewer are bytes.
        has_scales: Whether a layer's `KVScales` count.
    """

    array: str
    tensor: str
    has_scales: bool = False


KV_CACHE_DTYPES = {
    "float32": KVCacheDtype(array="float32", tensor="float32"),
    "bfloat16": KVCacheDtype(array="uint16", tensor="bfloat16"),
    "float16": KVCacheDtype(array="float16", tensor="float16"),
    "int8_per_token_head": KVCacheDtype(array="int8", tensor="int8"),
    "fp8_e4m3": KVCacheDtype(array="uint8", tensor="uint8", has_scales=True),
    "fp8_e5m2": KVCacheDtype(array="uint8", tensor="uint8", has_scales=True),
    "nvfp4": KVCacheDtype(array="uint8", tensor="uint8", has_scales=True),
}
"""By vLLM's names. `nvfp4`: 4 bits (e2m1), and an e4m3 scale for each 16 numbers of a head, times the layer's scale."""


@dataclass(frozen=True, kw_only=True)
class KVScales:
    """What 1 stands for in a layer's cache: above 0, one for each key/value head. A checkpoint's one is repeated."""

    key: tuple[float, ...]
    value: tuple[float, ...]


def declared_kv_cache(config: "QuantizationConfig") -> str | None:
    """Return the cache dtype that a declaration means; words for one that there is not; None: it means none.

    Reads `kv_cache_scheme`, an object (compressed-tensors, ModelOpt) or "static" (AutoFP8), and `kv_cache_quant_algo`.
    """
    found = config.keys.get("kv_cache_scheme") or config.keys.get("kv_cache_quant_algo")
    if isinstance(found, dict):
        bits, kind, strategy = (found.get(key) for key in ("num_bits", "type", "strategy"))
        if kind == "float" and found.get("symmetric", True) and not found.get("dynamic"):
            if bits == 8 and strategy in (None, "tensor", "attn_head"):
                return "fp8_e4m3"
            if bits == 4 and (found.get("group_size") or 16) == 16:
                return "nvfp4"
        return f"{kind}{bits} by {strategy}" + ("" if found.get("symmetric", True) else ", with zero points")
    if found is not None and not isinstance(found, str):
        key = next(key for key in ("kv_cache_scheme", "kv_cache_quant_algo") if config.keys.get(key))
        raise config.refused(key, "it must be an object with num_bits and type, or the name of an algorithm")
    return {"static": "fp8_e4m3", "fp8": "fp8_e4m3", "nvfp4": "nvfp4", "none": None}.get(
        (found or "none").lower(), found
    )


def stored_kv_scales(checkpoint: "Checkpoint", layer: str, num_kv_heads: int) -> KVScales | None:
    """Return the scales that a checkpoint has for attention layer `layer` ("model.layers.0.self_attn").

    By the names of FP8, ModelOpt and compressed-tensors checkpoints, each one number or one for each head. None: there
    are none. Raises `CheckpointError` naming the tensor that is missing, or whose numbers or shape cannot be.
    """
    names = frozenset(name for name in checkpoint.tensor_names() if name.startswith(f"{layer}."))
    both = [name for name in (f"{layer}.kv_scale", f"{layer}.attn.kv_scale") if name in names]
    key, value = (_of_part(layer, part, names) or both for part in "kv")
    if not key and not value:
        return None
    if len(key) != 1 or len(value) != 1:
        told = ", ".join(sorted({*key, *value}))
        raise CheckpointError(
            f"Attention layer {layer!r} in {checkpoint.path} must have one scale for keys and one for values of the KV "
            f"cache (k_scale and v_scale, or kv_scale), but it has {told}. Check that the checkpoint is complete, or "
            "choose a --kv-cache-dtype without scales."
        )
    for name in sorted(names):
        if name.endswith(("k_zero_point", "v_zero_point", "k_bias", "v_bias")) and finite(checkpoint, name).any():
            raise CheckpointError(
                f"Tensor {name!r} in {checkpoint.path} shifts what the KV cache holds, which has scales alone here. "
                "Choose a --kv-cache-dtype of 16 bits."
            )
    return KVScales(
        key=_numbers(checkpoint, key[0], layer, num_kv_heads), value=_numbers(checkpoint, value[0], layer, num_kv_heads)
    )


def _of_part(layer: str, part: str, names: frozenset[str]) -> list[str]:
    places = ("", "attn.", f"{part}_proj.", "qkv_proj.")
    known = [f"{layer}.{place}{part}_scale" for place in places] + [f"{layer}.{part}_proj.output_scale"]
    return [name for name in known if name in names]


def _numbers(checkpoint: "Checkpoint", name: str, layer: str, num_kv_heads: int) -> tuple[float, ...]:
    shape = checkpoint.info(name).shape
    wide: Sequence[int] = [size for size in shape if size != 1]
    wanted = shape if wide in ([], [num_kv_heads]) else (num_kv_heads,)
    who = f"attention layer {layer!r} of {num_kv_heads} key heads, which takes one scale or one for each head,"
    expect(checkpoint, name, wanted, ("float32", "bfloat16", "float16"), who=who)
    found = finite(checkpoint, name).astype("float32").reshape(-1)
    if not (found > 0).all():
        raise CheckpointError(
            f"Tensor {name!r} in {checkpoint.path} holds a scale that is not above 0, by which no key or value can be "
            "divided. The file is damaged: fetch it again, or choose a --kv-cache-dtype without scales."
        )
    return tuple(map(float, found)) * (num_kv_heads // len(found))
