"""A forward pass as data: `Graph`, what `worker/trace.py` records from a model and a native executor runs in one call.

Plain structs without tensors, so that a graph can be saved and run where torch is not imported. Every value is
[n, *shape] with one free n: the tokens of the step (`Graph.forward`), or the rows that need logits (`Graph.logits`).
Rows never mix but in attention. Views (`Split`, `Reshape`) stay inside a row. `reference/graph_torch.py` is the
arithmetic in full; `KernelProvider.program` runs it.
"""

from typing import Any, Literal, TypeAlias

import msgspec

from modulm.interfaces.attention import AttentionSpec

Activation: TypeAlias = Literal["gelu", "gelu_pytorch_tanh", "relu", "silu", "swigluoai"]
"""x * Phi(x); its tanh form 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))); max(x, 0); x / (1 + exp(-x)).

"swigluoai" is x / (1 + exp(-1.702 x)) of a gate of at most 7, times not `up` but 1 + up, up within -7 and 7 (gpt-oss).
"""


class Value(msgspec.Struct, frozen=True):
    """One row's `shape` and the dtype ("float32", "bfloat16", "float16", "int64"). () is one number per row."""

    shape: tuple[int, ...]
    dtype: str


class Operation(msgspec.Struct, frozen=True, kw_only=True, tag_field="op"):
    """Base of the vocabulary: indices into `Graph.values`, read and written. Outputs are new, never an input.

    Weights and tensors go by their name in the graph. Results are rounded once, to the output's dtype, unless said.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Embedding(Operation, frozen=True, kw_only=True, tag="embedding"):
    """ids () -> row `id` of the matrix [in_features]."""

    weight: str


class Linear(Operation, frozen=True, kw_only=True, tag="linear"):
    """x [in_features] -> W x + bias [out_features]. torch rounds W x to x's dtype before it adds the bias."""

    weight: str
    bias: str | None = None


class RMSNorm(Operation, frozen=True, kw_only=True, tag="rms_norm"):
    """x [..., size] -> x / sqrt(mean(x^2) + eps) * w over the last dimension, in float32 (arXiv:1910.07467).

    `weight` names a tensor [size]. With `unit_offset` it is 1 + w.
    """

    weight: str
    eps: float
    unit_offset: bool = False


class DynamicNTK(msgspec.Struct, frozen=True, kw_only=True):
    """Frequencies by length: inverse[i] = base ** (-2i / dim), in float32.

    base = theta * growth ** (dim / (dim - 2)), growth = factor * max(length, stated) / stated - (factor - 1).
    """

    theta: float
    factor: float
    stated: int


class RotaryTables(Operation, frozen=True, kw_only=True, tag="rotary_tables"):
    """positions () [, lengths ()] -> cos, sin [dim / 2] of position * inverse, times `scaling`; float32.

    `lengths` holds for each token the length of its sequence; it is there where frequencies depend on it: past
    `long_from` tokens `long_inverse` replaces `inverse` (LongRoPE), or `dynamic` does.

    Attributes:
        inverse: float32 [dim / 2], radians per position.
    """

    inverse: tuple[float, ...]
    scaling: float = 1.0
    long_inverse: tuple[float, ...] = ()
    long_from: int = 0
    dynamic: DynamicNTK | None = None


class Rotary(Operation, frozen=True, kw_only=True, tag="rotary"):
    """query [heads, size], key [kv_heads, size], cos, sin [dim / 2] -> both rotated (Su et al., arXiv:2104.09864).

    (a, b) = (x[i], x[i + dim / 2]) becomes (a cos - b sin, b cos + a sin) in float32; x[dim:] passes through.
    """


class Attention(Operation, frozen=True, kw_only=True, tag="attention"):
    """query [heads, size], key, value [kv_heads, size] -> [heads * size]; see `AttentionBackend.forward`.

    Writes key and value to the cache of `layer`, then attends as `Graph.layers[layer]` says. `sinks` names a tensor
    [heads], where that has them.
    """

    layer: str
    sinks: str | None = None


class GatedActivation(Operation, frozen=True, kw_only=True, tag="gated_activation"):
    """(gate, up) side by side [2 * size] -> act(gate) * up [size] (arXiv:2002.05202); torch rounds act(gate) too."""

    function: Activation


class Add(Operation, frozen=True, kw_only=True, tag="add"):
    """a, b of one shape -> a + b."""


class Scale(Operation, frozen=True, kw_only=True, tag="scale"):
    """x -> x * factor, the factor being float32."""

    factor: float


class Split(Operation, frozen=True, kw_only=True, tag="split"):
    """x [a + b + ...] -> [a], [b], ...: views of consecutive parts of the row; sizes are those of the outputs."""


class Reshape(Operation, frozen=True, kw_only=True, tag="reshape"):
    """x -> the same numbers in the output's shape; a view."""


class SparseMoE(Operation, frozen=True, kw_only=True, tag="sparse_moe"):
    """x [hidden_size] -> the sum of p[e] * down[e](act(gate) * up) over the `top_k` likeliest experts e.

    p = softmax(router x) over all experts, in float32; `normalised` divides the chosen by their sum. (gate, up) is
    gate_up[e] x. Terms add up in x's dtype by ascending e (arXiv:1701.06538). Weights by name, one per expert, and so
    the biases of their results, where there are any.
    """

    router: str
    gate_up: tuple[str, ...]
    down: tuple[str, ...]
    top_k: int
    function: Activation
    normalised: bool
    router_bias: str | None = None
    gate_up_bias: tuple[str, ...] = ()
    down_bias: tuple[str, ...] = ()


class LMHead(Operation, frozen=True, kw_only=True, tag="lm_head"):
    """x [hidden_size] -> float32 y = W x / divisor, then soft_cap * tanh(y / soft_cap) unless None [vocab_size]."""

    weight: str
    divisor: float = 1.0
    soft_cap: float | None = None


Op: TypeAlias = (
    Embedding
    | Linear
    | RMSNorm
    | RotaryTables
    | Rotary
    | Attention
    | GatedActivation
    | Add
    | Scale
    | Split
    | Reshape
    | SparseMoE
    | LMHead
)


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """Operations in the order in which they run. Its `inputs` (by name) and `output` are indices of values."""

    inputs: dict[str, int]
    ops: tuple[Op, ...]
    output: int


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """A model's forward pass.

    Attributes:
        values: What operations read and write. Each is written once and belongs to one section.
        forward: "token_ids", "positions" and, where rotation depends on it, "sequence_lengths" (as in
            `nn/rotary.py`) -> hidden states [hidden_size].
        logits: "hidden", some rows of `forward`'s output -> float32 logits [vocab_size].
        weights: Name of each packed weight -> (out_features, in_features). Names are the module's in the model and
            the attribute's: "model.layers.0.mlp.down_proj.weight".
        tensors: Name of each plain tensor (norm, bias) -> its shape and dtype.
        layers: Name of each attention layer -> what it needs.
    """

    values: tuple[Value, ...]
    forward: Section
    logits: Section
    weights: dict[str, tuple[int, int]]
    tensors: dict[str, Value]
    layers: dict[str, AttentionSpec]

    def to_dict(self) -> dict[str, Any]:
        """Return the graph in lists, dicts, strings and numbers."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "Graph":
        """Undo `to_dict`. Raises `msgspec.ValidationError` on anything else."""
        return msgspec.convert(plain, cls)
