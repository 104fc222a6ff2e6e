"""Rotary embedding: metadata and factor tensors -> `rope_theta`, `rope_scaling`, `partial_rotary_factor`.

ggml divides each frequency by a stored factor. Those that Llama 3 ships come back as `llama3` parameters; any others
as `longrope` with the factors themselves, which computes the same. Reads only these few numbers of tensor data.
"""

import math
from typing import Any

import numpy as np

from modulm.errors import CheckpointError
from modulm_quant_gguf.header import Header
from modulm_quant_gguf.metadata import Keys
from modulm_quant_gguf.values import float32

_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def rope_config(header: Header, keys: Keys, head_dim: int) -> dict[str, Any]:
    """Return the keys of config.json that describe rotary embedding. Raises `CheckpointError` naming key or tensor."""
    config: dict[str, Any] = {"rope_theta": keys.real("rope.freq_base", 10000.0)}
    if not 0 < config["rope_theta"] < math.inf:
        raise keys.refusal("rope.freq_base", f"is {config['rope_theta']}, no positive number")
    rotated = keys.positive("rope.dimension_count", head_dim)
    if rotated % 2 or rotated > head_dim:
        raise keys.refusal("rope.dimension_count", f"is {rotated}: not even, or above the {head_dim} of a head")
    if rotated != head_dim:
        config["partial_rotary_factor"] = rotated / head_dim
    scaling = _from_tensors(header, keys, rotated, config["rope_theta"]) or _from_keys(keys)
    return config | ({"rope_scaling": scaling} if scaling else {})


def _from_keys(keys: Keys) -> dict[str, Any] | None:
    kind = keys.metadata.read(f"{keys.arch}.rope.scaling.type", str, "none")
    if "rope.scale_linear" in keys:  # how files of 2023 say it
        return {"rope_type": "linear", "factor": keys.real("rope.scale_linear")}
    if kind == "none":
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": keys.real("rope.scaling.factor")}
    if kind == "yarn":
        optional = {
            "attention_factor": keys.real("rope.scaling.yarn_attn_factor", None),
            "beta_fast": keys.real("rope.scaling.yarn_beta_fast", None),
            "beta_slow": keys.real("rope.scaling.yarn_beta_slow", None),
        }
        return {
            "rope_type": "yarn",
            "factor": keys.real("rope.scaling.factor"),
            "original_max_position_embeddings": keys.positive("rope.scaling.original_context_length"),
            **{name: value for name, value in optional.items() if value is not None},
        }
    raise keys.refusal("rope.scaling.type", f"is {kind!r}, but the file lacks what it needs. There are: linear, yarn")


def _from_tensors(header: Header, keys: Keys, rotated: int, theta: float) -> dict[str, Any] | None:
    plain = _factors(header, "rope_freqs.weight", rotated)
    if plain is not None:
        return _llama3(plain, rotated, theta) or {
            "rope_type": "longrope",
            "short_factor": plain,
            "long_factor": plain,
            "attention_factor": 1.0,
            "factor": 1.0,
            "original_max_position_embeddings": keys.positive("context_length"),
        }
    long, short = (_factors(header, f"rope_factors_{length}.weight", rotated) for length in ("long", "short"))
    if long is None or short is None:
        return None
    attention = keys.real("rope.scaling.attn_factor", None)
    return {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": long,
        **({"attention_factor": attention} if attention is not None else {}),
    }


def _factors(header: Header, name: str, rotated: int) -> list[float] | None:
    entry = header.tensors.get(name)
    if entry is None:
        return None
    what = f"Tensor {name!r} of {header.metadata.path}"
    if entry.shape != (rotated // 2,):
        raise CheckpointError(
            f"{what} has shape {list(entry.shape)}, not [{rotated // 2}] for {rotated} rotated dimensions."
        )
    values = float32(header.raw(entry), entry.type, what)
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise CheckpointError(f"{what} holds factors that are not positive numbers.")
    return [float(str(value)) for value in values]


def _llama3(factors: list[float], rotated: int, theta: float) -> dict[str, Any] | None:
    """Return the parameters that give these factors, if they are of the kind Llama 3.1 to 3.3 use."""
    factor = round(max(factors), 4)
    context, low, high = _LLAMA3["original_max_position_embeddings"], 1.0, _LLAMA3["high_freq_factor"]
    wavelengths = 2 * math.pi * theta ** (np.arange(0, rotated, 2) / rotated)
    smooth = np.clip((context / wavelengths - low) / (high - low), 0, 1)
    expected = 1 / ((1 - smooth) / factor + smooth)
    if not np.allclose(expected, factors, rtol=1e-4):
        return None
    return {"rope_type": "llama3", "factor": factor, **_LLAMA3}
