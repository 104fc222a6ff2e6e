"""Single layers against float64: what the models' tests cannot tell apart."""

import numpy as np
import pytest
import torch

from modulm.errors import CheckpointError
from modulm.interfaces.model import ForwardBatch
from modulm.interfaces.quantization import Dense
from modulm.nn import (
    Embedding,
    GatedActivation,
    Linear,
    LMHead,
    MergedLinear,
    RMSNorm,
    Rope,
    RotaryEmbedding,
    apply_rotary,
)
from modulm.reference.linear_torch import TorchKernels


class Source:
    def __init__(self, **tensors):
        self.tensors = {name.replace("__", "."): torch.from_numpy(array).float() for name, array in tensors.items()}
        self.packs = []

    def has(self, name):
        return name in self.tensors

    def tensor(self, name, shape):
        if name not in self.tensors:
            raise CheckpointError(f"Tensor {name!r} is missing.")
        assert self.tensors[name].shape == shape
        return self.tensors[name]

    def packed(self, modules, out_features, in_features, *, op="linear"):
        self.packs.append((modules, op))
        data = torch.cat(
            [self.tensor(f"{m}.weight", (n, in_features)) for m, n in zip(modules, out_features, strict=True)]
        )
        weight = Dense(out_features=len(data), in_features=in_features, data=data.numpy())
        return TorchKernels().pack(weight, "cpu", "float32")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def close(got, want, tolerance=1e-5):
    np.testing.assert_allclose(got.numpy(), want, rtol=tolerance, atol=tolerance)


def test_merged_linear_reads_its_parts_beside_itself(rng):
    q, k, b, x = rng.normal(size=(5, 3)), rng.normal(size=(2, 3)), rng.normal(size=2), rng.normal(size=(4, 3))
    layer = MergedLinear(3, {"q": 5, "k": 2})
    layer.load("a.qk", Source(a__q__weight=q, a__k__weight=k, a__k__bias=b))
    want = x @ np.concatenate([q, k]).T + np.concatenate([np.zeros(5), b])
    close(layer(torch.from_numpy(x).float()), want)


def test_a_bias_that_the_model_expects_must_be_there(rng):
    source = Source(a__weight=rng.normal(size=(5, 3)))
    Linear(3, 5).load("a", source)
    with pytest.raises(CheckpointError, match=r"'a\.bias'"):
        Linear(3, 5, bias=True).load("a", source)


def test_a_bias_that_nobody_expects_is_added_all_the_same(rng):
    weight, bias, x = rng.normal(size=(5, 3)), rng.normal(size=5), rng.normal(size=(4, 3))
    layer = Linear(3, 5)
    layer.load("a", Source(a__weight=weight, a__bias=bias))
    close(layer(torch.from_numpy(x).float()), x @ weight.T + bias)


def test_a_tied_head_shares_the_embeddings_weight(rng):
    source = Source(embed__weight=rng.normal(size=(7, 3)))
    embedding = Embedding(7, 3, dtype=torch.float32, tied=True)
    head = LMHead(3, 7, tied_to=embedding, divisor=2.0, soft_cap=1.5)
    embedding.load("embed", source)
    head.load("lm_head", source)
    assert source.packs == [(["embed"], "linear")]
    assert list(head.children()) == []
    matrix = source.tensors["embed.weight"].double().numpy()
    ids = torch.tensor([6, 0, 6])
    close(embedding(ids), matrix[ids])
    close(head(embedding(ids)), 1.5 * np.tanh(matrix[ids] @ matrix.T / 2 / 1.5))


@pytest.mark.parametrize("unit_offset", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm(unit_offset, dtype, rng):
    x, weight = torch.from_numpy(rng.normal(size=(4, 2, 13))).to(dtype), rng.normal(size=13)
    layer = RMSNorm(13, 1e-3, unit_offset=unit_offset)
    layer.load("n", Source(n__weight=weight))
    wide = x.double().numpy()
    want = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-3) * (weight + unit_offset)
    assert layer(x).dtype == dtype
    close(layer(x).float(), want, 1e-5 if dtype == torch.float32 else 2e-2)


def test_rotation_turns_pairs_and_leaves_the_rest(rng):
    rope = Rope(kind="default", dim=6, theta=100.0, max_position_embeddings=32)
    positions = torch.tensor([0, 3, 31])
    batch = ForwardBatch(positions=positions, kv_caches={}, metadata={}, max_seq_len=32)
    x = torch.from_numpy(rng.normal(size=(3, 2, 10))).float()
    query, key = apply_rotary(x, x[:, :1], RotaryEmbedding(rope)(batch))
    angles = positions.numpy()[:, None, None] * 100.0 ** (-np.arange(3) / 3)
    pairs = x[..., :3].double().numpy() + 1j * x[..., 3:6].double().numpy()
    turned = pairs * np.exp(1j * angles)
    close(query, np.concatenate([turned.real, turned.imag, x[..., 6:]], axis=-1))
    close(key, query[:, :1].numpy())


def test_gpt_oss_gates_are_clamped_as_transformers_clamps():
    from transformers import GptOssConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

    both = 6 * torch.randn(50, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert (both > 7).any() and (both < -7).any()
    sizes = {"num_local_experts": 1, "hidden_size": 4, "intermediate_size": 12}
    theirs = GptOssExperts(GptOssConfig(num_hidden_layers=1, **sizes))
    want = theirs._apply_gate(torch.stack(both.chunk(2, dim=-1), dim=-1).flatten(-2))
    close(GatedActivation("swigluoai")(both), want.numpy())


def test_models_hold_nothing_on_the_meta_device_they_are_built_under():
    with torch.device("meta"):
        layer = RotaryEmbedding(
            Rope(kind="dynamic", dim=4, theta=10.0, max_position_embeddings=8, parameters={"factor": 2})
        )
    batch = ForwardBatch(positions=torch.arange(12), kv_caches={}, metadata={}, max_seq_len=12)
    assert layer.needs_sequence_lengths
    assert all(table.isfinite().all() for table in layer(batch))
