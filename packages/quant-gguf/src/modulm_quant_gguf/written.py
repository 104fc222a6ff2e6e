"""Checkpoints of plain numbers -> one GGUF file: names, metadata and blocks by the `gguf` package, rounded to nearest.

What llama.cpp's converter does to a model is done here for the architectures below: rows of q and k are permuted for
interleaved rotary embedding, Llama 3's scaled frequencies become a tensor. The tokenizer is `written_tokenizer.py`'s.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np

from modulm.errors import CheckpointError, ConfigError
from modulm.interfaces.quantizing import Wish, finite
from modulm_quant_gguf.written_tokenizer import add_tokenizer

if TYPE_CHECKING:
    from modulm.interfaces.checkpoint import Checkpoint

_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
_PERMUTED = ("llama",)
_OUTER = ("token_embd.weight", "output.weight")
_FLOATS = ("F16", "BF16")


def quantize(checkpoint: "Checkpoint", out: Path, wish: Wish) -> str:
    """Write the checkpoint; see `QuantizationScheme.quantize`."""
    wish.takes("method")
    wish.one_of("method", ("rtn",), "rtn")
    config, name = checkpoint.config(), wish.format.removeprefix("gguf-")
    model = (config.get("architectures") or ["none"])[0]
    if model not in _ARCHITECTURES:
        raise ConfigError(
            f"--format={wish.format!r} is not written of {model}. There are: {', '.join(_ARCHITECTURES)}. Others are "
            "made by llama.cpp: convert_hf_to_gguf.py, then llama-quantize."
        )
    file = out / f"model-{name}.gguf"
    writer = gguf.GGUFWriter(file, _ARCHITECTURES[model])
    writer.add_file_type(getattr(gguf.LlamaFileType, f"MOSTLY_{name.upper()}"))
    _add_sizes(writer, config)
    add_tokenizer(writer, checkpoint.path, config["vocab_size"])
    tensors = _Tensors(checkpoint, config, _ARCHITECTURES[model], gguf.GGMLQuantizationType[name.upper()])
    tensors.write(writer)
    writer.close()
    if name.upper() in _FLOATS:
        return f"all matrices as {name}"
    return f"{tensors.num_quantized} tensors of {name} rounded to nearest, embedding and output as {tensors.outer.name}"


class _Tensors:
    """Names, types and numbers of a file's tensors, one at a time."""

    def __init__(
        self, checkpoint: "Checkpoint", config: dict[str, Any], arch: str, kind: gguf.GGMLQuantizationType
    ) -> None:
        self._checkpoint, self._config, self._kind = checkpoint, config, kind
        self._is_permuted = arch in _PERMUTED
        types = gguf.GGMLQuantizationType
        self.outer = kind if kind.name in _FLOATS else types.Q8_0
        self._plain = kind if kind.name in _FLOATS else types.F16
        self.num_quantized = 0
        number = next(one for one, found in gguf.MODEL_ARCH_NAMES.items() if found == arch)
        self._names = gguf.get_tensor_name_map(number, config["num_hidden_layers"])
        self._factors = _rope_factors(config)

    def write(self, writer: Any) -> None:
        """Write all that the writer was given so far, and the tensors. Raises `CheckpointError` naming one."""
        named = [(name, self._gguf_name(name)) for name in self._checkpoint.tensor_names()]
        for name, theirs in named:
            shape = self._checkpoint.info(name).shape
            kind = self._type(theirs, shape)
            self.num_quantized += kind is self._kind and kind.name not in _FLOATS
            writer.add_tensor_info(theirs, shape, np.dtype(np.float32), _size(shape, kind), kind)
        if self._factors is not None:
            shape, kind = self._factors.shape, gguf.GGMLQuantizationType.F32
            writer.add_tensor_info("rope_freqs.weight", shape, self._factors.dtype, self._factors.nbytes, kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for name, theirs in named:
            numbers = finite(self._checkpoint.tensor(name), name, self._checkpoint).astype(np.float32)
            kind = self._type(theirs, numbers.shape)
            writer.write_tensor_data(gguf.quants.quantize(self._permuted(numbers, theirs), kind))
            self._checkpoint.release()
        if self._factors is not None:
            writer.write_tensor_data(self._factors)

    def _gguf_name(self, name: str) -> str:
        found: str | None = self._names.get_name(name, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise CheckpointError(f"Tensor {name!r} in {self._checkpoint.path} has no name in GGUF.")
        return found

    def _type(self, name: str, shape: tuple[int, ...]) -> gguf.GGMLQuantizationType:
        """Return a tensor's type: float32 for vectors, floats for rows that are not whole blocks."""
        if len(shape) == 1:
            return gguf.GGMLQuantizationType.F32
        kind = self.outer if name in _OUTER else self._kind
        return kind if shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0 else self._plain

    def _permuted(self, numbers: np.ndarray, name: str) -> np.ndarray:
        """Return rows of q and k with the halves of each head in turn."""
        part = name.split(".")[-2]
        if not self._is_permuted or part not in ("attn_q", "attn_k"):
            return numbers
        heads = self._config["num_attention_heads"]
        if part == "attn_k":
            heads = self._config.get("num_key_value_heads") or heads
        turned = numbers.reshape(heads, 2, len(numbers) // heads // 2, *numbers.shape[1:]).swapaxes(1, 2)
        return np.ascontiguousarray(turned.reshape(numbers.shape))


def _size(shape: tuple[int, ...], kind: gguf.GGMLQuantizationType) -> int:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    return math.prod(shape) // block * size


def _add_sizes(writer: Any, config: dict[str, Any]) -> None:
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    head_dim = config.get("head_dim") or hidden // heads
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    if window and window < config["max_position_embeddings"]:
        raise ConfigError(f"sliding_window={window} of the model is not held by GGUF for its architecture.")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(config.get("rms_norm_eps", 1e-6))
    writer.add_rope_freq_base(_rope(config).get("rope_theta") or 10000.0)
    writer.add_vocab_size(config["vocab_size"])


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    """Return what is said of rotary embedding, wherever it stands."""
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = found.get("rope_type") or found.get("type") or "default"
    return {"rope_theta": config.get("rope_theta"), **found, "rope_type": kind}


def _rope_factors(config: dict[str, Any]) -> np.ndarray | None:
    """Return what frequencies are divided by, of Llama 3's scaling; None without any. Source: arXiv:2407.21783."""
    rope = _rope(config)
    if rope["rope_type"] == "default":
        return None
    if rope["rope_type"] != "llama3":
        raise ConfigError(
            f"rope_type={rope['rope_type']!r} of the model is not written to GGUF. There is: default, llama3."
        )
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    lengths = 2 * np.pi * (rope.get("rope_theta") or 10000.0) ** (np.arange(0, size, 2) / size)
    low, high, factor = (rope[key] for key in ("low_freq_factor", "high_freq_factor", "factor"))
    smooth = (rope["original_max_position_embeddings"] / lengths - low) / (high - low)
    smooth = smooth.clip(0, 1)  # 1: short waves stay as they are; 0: long ones are stretched by the factor
    return np.asarray(1 / ((1 - smooth) / factor + smooth), np.float32)
