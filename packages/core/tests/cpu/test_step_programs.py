"""Recording, its refusals, and the data it gives. That graphs say what models compute, for every
architecture, is proven in `test_models_logits.py`.
"""

import json
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from modulm.config import ModelConfig
from modulm.errors import Unsupported
from modulm.interfaces.attention import BatchLayout
from modulm.interfaces.model import ForwardBatch
from modulm.interfaces.program import Graph, Value
from modulm.interfaces.quantization import Dense
from modulm.models.gemma2 import Gemma2ForCausalLM
from modulm.models.granite import GraniteForCausalLM
from modulm.models.llama import LlamaForCausalLM
from modulm.models.mixtral import MixtralForCausalLM
from modulm.nn import Attention
from modulm.reference.attention_torch import TorchAttention
from modulm.reference.graph_torch import GraphInterpreter
from modulm.reference.linear_torch import TorchKernels
from modulm.worker.trace import trace

HF = {
    "vocab_size": 97, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "attention_bias": True,
}  # fmt: skip


class RandomWeights:
    def __init__(self, dtype):
        self.dtype = dtype
        self.generator = torch.Generator().manual_seed(0)

    def has(self, name):
        return ".experts.gate_up_proj" not in name

    def tensor(self, name, shape):
        return torch.randn(shape, generator=self.generator).to(self.dtype)

    def packed(self, modules, out_features, in_features, *, op="linear"):
        data = torch.randn(sum(out_features), in_features, generator=self.generator) / in_features**0.5
        weight = Dense(out_features=len(data), in_features=in_features, data=data.numpy())
        return TorchKernels().pack(weight, "cpu", str(self.dtype).removeprefix("torch."))


def build(model_class=LlamaForCausalLM, dtype="float32", **changes):
    config = ModelConfig(name="m", hf={**HF, **changes}, architectures=["x"], max_model_len=64, dtype=dtype)
    with torch.device("meta"):
        model = model_class(config)
    source = RandomWeights(getattr(torch, dtype))
    for name, module in model.named_modules():
        if hasattr(module, "load"):
            module.load(name, source)
    return model


@pytest.mark.parametrize("model_class", [LlamaForCausalLM, Gemma2ForCausalLM, GraniteForCausalLM, MixtralForCausalLM])
def test_a_graph_in_bfloat16_gives_the_models_bits(model_class):
    scalars = {"embedding_multiplier": 3.3, "residual_multiplier": 0.3, "logits_scaling": 7.0, "sliding_window": 9}
    model = build(model_class, "bfloat16", **scalars)
    recording, backend = trace(model), TorchAttention()
    layers = {module.name: module for module in model.modules() if isinstance(module, Attention)}
    for layer in layers.values():
        layer.bind(backend)
    layout = BatchLayout(
        query_start=np.array([0, 13], np.int32), seq_lens=np.array([13], np.int32), block_size=16,
        block_table=np.array([[1]], np.int32), slot_mapping=np.arange(16, 29),
    )  # fmt: skip
    metadata = dict.fromkeys(layers, backend.plan(layout, torch.device("cpu")))
    caches = [{name: torch.full((2, 16, 2, 2, 16), torch.nan) for name in layers} for _ in range(2)]
    tokens, positions = torch.arange(13) * 7 % 97, torch.arange(13)
    batch = ForwardBatch(positions=positions, kv_caches=caches[0], metadata=metadata, max_seq_len=13)
    interpreter = GraphInterpreter(
        recording.graph, recording.weights, recording.tensors, dict.fromkeys(layers, backend)
    )
    with torch.inference_mode():
        want = model(tokens, batch)
        found = interpreter.forward({"token_ids": tokens, "positions": positions}, caches[1], metadata)
        assert found.dtype == torch.bfloat16
        assert torch.equal(found, want)
        assert torch.equal(interpreter.logits(found), model.compute_logits(want))


def test_a_graph_is_plain_data_that_needs_no_torch():
    graph = trace(build(MixtralForCausalLM, sliding_window=9)).graph
    text = json.dumps(graph.to_dict())
    assert Graph.from_dict(json.loads(text)) == graph
    code = (
        "import sys, json; from modulm.interfaces.program import Graph\n"
        "graph = Graph.from_dict(json.load(sys.stdin))\n"
        "assert 'torch' not in sys.modules; print(len(graph.forward.ops))"
    )
    done = subprocess.run([sys.executable, "-c", code], input=text, capture_output=True, text=True)
    assert done.stdout.strip() == str(len(graph.forward.ops)), done.stderr


def test_names_are_those_of_modules_and_tied_weights_have_one():
    graph = trace(build(tie_word_embeddings=True)).graph
    assert graph.logits.ops[-1].weight == graph.forward.ops[0].weight == "model.embed_tokens.weight"
    assert graph.weights["model.layers.1.self_attn.qkv_proj.weight"] == (128, 48)
    assert graph.tensors["model.layers.1.self_attn.qkv_proj.bias"] == Value((128,), "float32")
    assert list(graph.layers) == [f"model.layers.{index}.self_attn" for index in range(2)]


def test_recording_thirty_layers_takes_less_than_50_ms():
    model = build(num_hidden_layers=30)
    times = []
    for _ in range(5):
        started = time.perf_counter()
        graph = trace(model).graph
        times.append(time.perf_counter() - started)
    print(f"recorded {len(graph.forward.ops) + len(graph.logits.ops)} operations in {min(times) * 1e3:.1f} ms")
    assert min(times) < 0.05


def replaced(change):
    """Llama whose second layer's MLP does `change(x)` first."""
    model = build()
    mlp = model.model.layers[1].mlp
    original = mlp.forward
    mlp.forward = lambda x: original(change(x))
    return model


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (torch.relu, "relu"),
        (lambda x: torch.cat([x, x]), "cat"),
        (lambda x: x + torch.ones(48), "adding"),
        (lambda x: torch.ones(48) * x, "mul"),
        (lambda x: x * torch.ones(48), "multiplying"),
        (lambda x: 1 + x, "__radd__"),
        (lambda x: x - x, "__sub__"),
        (lambda x: x.float(), "'float'"),
        (lambda x: x[:1], "__getitem__"),
        (lambda x: x if x else x, "__bool__"),
        (lambda x: x if len(x) > 1 else x, "__len__"),
        (lambda x: x if x == 0 else x, "__eq__"),
        (lambda x: x.split([40, 4], dim=-1)[0], "splitting"),
        (lambda x: x.split([1, 1], dim=0)[0], "splitting"),
        (lambda x: x.unflatten(-1, (-1, 7)), "unflattening"),
    ],
)
def test_what_cannot_be_recorded_is_refused_by_name_and_place(change, says):
    with pytest.raises(Unsupported, match=says) as caught:
        trace(replaced(change))
    assert "model.layers.1" in str(caught.value)


def test_a_model_that_looks_at_the_batch_is_refused():
    model = build()
    original = model.forward
    model.forward = lambda ids, batch: original(ids, batch) if batch.max_seq_len > 10 else None
    with pytest.raises(Unsupported, match="__gt__"):
        trace(model)
