"""The layers that model files are built from: linear, embedding, norm, rotary, attention, activation, experts.

Each takes its weights by checkpoint name through `load(name, source)` and is one operation of a step program later.
Layers know neither formats nor kernels nor block tables. Provisional until a second party has written a model with it.
"""

from modulm.nn.activation import GatedActivation
from modulm.nn.attention import Attention
from modulm.nn.embedding import Embedding, LMHead
from modulm.nn.linear import Linear, MergedLinear
from modulm.nn.moe import SparseMoE
from modulm.nn.norm import RMSNorm
from modulm.nn.rope import Rope
from modulm.nn.rotary import RotaryEmbedding, apply_rotary

__all__ = [
    "Attention",
    "Embedding",
    "GatedActivation",
    "LMHead",
    "Linear",
    "MergedLinear",
    "RMSNorm",
    "Rope",
    "RotaryEmbedding",
    "SparseMoE",
    "apply_rotary",
]
