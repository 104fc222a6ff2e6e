"""GGUF's tensor names -> transformers', and what llama.cpp's converter did to a tensor, so that it can be undone.

It does three things: permutes the rows of q and k for interleaved rotary embedding, adds one to Gemma's norms, and
stacks experts. Knows names and shapes and reads no data: `checkpoint.py` does.
Source: llama.cpp's conversion scripts, and tensor_mapping.py of the `gguf` package.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from modulm.errors import CheckpointError
from modulm_quant_gguf.header import Header, TensorEntry

_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_k": "self_attn.k_proj",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "attn_output": "self_attn.o_proj",
    "attn_q": "self_attn.q_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_v": "self_attn.v_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.up_proj",
}
_SANDWICH = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_MIXTRAL = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
}
_QWEN_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
_GPT_OSS = _QWEN_EXPERTS | {
    "attn_sinks": "self_attn.sinks",
    "ffn_gate_inp": "mlp.router",
    "post_attention_norm": "post_attention_layernorm",
}
_LAYERS = {
    "gemma2": _LAYER | _SANDWICH,
    "gemma3": _LAYER | _SANDWICH,
    "gpt-oss": _LAYER | _GPT_OSS,
    "granite": _LAYER,
    "llama": _LAYER | _MIXTRAL,
    "olmo2": _LAYER | _SANDWICH,
    "phi3": _LAYER | {"ffn_up": "mlp.gate_up_proj"},
    "qwen2": _LAYER,
    "qwen3": _LAYER,
    "qwen3moe": _LAYER | _QWEN_EXPERTS,
    "smollm3": _LAYER,
}
ARCHITECTURES = tuple(_LAYERS)
_PERMUTED = ("granite", "llama", "smollm3")
_PLUS_ONE = ("gemma2", "gemma3")
_BARE = ("attn_sinks",)  # transformers' names of these have no suffix
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
# What becomes part of the configuration, or can be computed from it, is no tensor of the model.
_NOT_TENSORS = re.compile(r"rope_freqs\.weight|rope_factors_(long|short)\.weight|blk\.\d+\.attn_rot_embd\.weight")


@dataclass(frozen=True)
class Source:
    """Where a tensor under transformers' name comes from.

    Attributes:
        entry: The tensor in the file.
        expert: Which of its stacked experts, if it is a stack.
        heads: Number of heads its rows are permuted within; 0: they are not.
        offset: What to subtract from its values.
    """

    entry: TensorEntry
    expert: int | None = None
    heads: int = 0
    offset: float = 0.0

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape under transformers' name, row-major."""
        return self.entry.shape if self.expert is None else self.entry.shape[1:]

    @property
    def row_order(self) -> np.ndarray | None:
        """Index of the file's rows that puts them in transformers' order, or None.

        Transformers rotates halves of a head against each other, llama.cpp neighbours: row 2i + j of a head in the
        file is row j * (size / 2) + i there.
        """
        if not self.heads:
            return None
        return np.arange(self.shape[0]).reshape(self.heads, -1, 2).swapaxes(1, 2).reshape(-1)


def architecture(header: Header) -> str:
    """Return `general.architecture`. Raises `CheckpointError` when it is none we know."""
    name = header.metadata.read("general.architecture", str)
    if name not in _LAYERS:
        raise header.metadata.refusal(
            "general.architecture", f"is {name!r}, which is not supported. There are: {', '.join(ARCHITECTURES)}"
        )
    return name


def sources(header: Header) -> dict[str, Source]:
    """Return every tensor under its transformers name; those without one keep GGUF's.

    Raises `CheckpointError` naming the tensor whose shape does not fit the metadata.
    """
    arch = architecture(header)
    found: dict[str, Source] = {}
    for entry in header.tensors.values():
        for name, source in _named(header, arch, entry):
            if name in found:
                raise CheckpointError(f"Tensors {found[name].entry.name!r} and {entry.name!r} are both {name!r}.")
            found[name] = source
    return found


def _named(header: Header, arch: str, entry: TensorEntry) -> Iterator[tuple[str, Source]]:
    if _NOT_TENSORS.fullmatch(entry.name):
        return
    stem, _, suffix = entry.name.rpartition(".")
    offset = 1.0 if arch in _PLUS_ONE and stem.endswith("_norm") else 0.0
    if stem in _OUTER:
        yield f"{_OUTER[stem]}.{suffix}", Source(entry, offset=offset)
        return
    match = _LAYER_NAME.fullmatch(entry.name)
    pattern = _LAYERS[arch].get(match[2]) if match else None
    if match is None or pattern is None:
        yield entry.name, Source(entry)
        return
    name = f"model.layers.{int(match[1])}.{pattern}"
    name = name if match[2] in _BARE else f"{name}.{suffix}"
    if "{}" in pattern:
        for expert in range(_num_experts(header, arch, entry)):
            yield name.format(expert), Source(entry, expert=expert)
    else:
        yield name, Source(entry, heads=_heads(header, arch, match[2], entry), offset=offset)


def _num_experts(header: Header, arch: str, entry: TensorEntry) -> int:
    count = header.metadata.read(f"{arch}.expert_count", int)
    if len(entry.shape) != (2 if entry.name.endswith(".bias") else 3) or entry.shape[0] != count:
        raise CheckpointError(
            f"Tensor {entry.name!r} of {header.metadata.path} has shape {list(entry.shape)}, "
            f"not one of {count} stacked experts as '{arch}.expert_count' has it."
        )
    return count


def _heads(header: Header, arch: str, part: str, entry: TensorEntry) -> int:
    if arch not in _PERMUTED or part not in ("attn_q", "attn_k"):
        return 0
    heads = header.metadata.read(f"{arch}.attention.head_count", int)
    if part == "attn_k":
        heads = header.metadata.read(f"{arch}.attention.head_count_kv", int, heads)
    is_vector_of_blocks = len(entry.shape) == 1 and entry.type.block > 1
    if heads == 0 or entry.shape[0] % (2 * heads) or is_vector_of_blocks:
        raise CheckpointError(
            f"Tensor {entry.name!r} of {header.metadata.path}, {entry.type.name} {list(entry.shape)}, "
            f"cannot be divided into {heads} heads of whole pairs of rows."
        )
    return heads
