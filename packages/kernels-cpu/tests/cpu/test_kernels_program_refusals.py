"""What is not run natively, each with its reason, and that an engine then runs the model eagerly and says so."""

import json
import os
import subprocess
import sys

import msgspec
import numpy as np
import pytest
import torch

from modulm.errors import Unsupported
from modulm.interfaces import program as ops
from modulm.interfaces.quantization import Dense
from modulm.reference.attention_torch import TorchAttention
from modulm_kernels_cpu.attention import CPUAttention
from modulm_kernels_cpu.program import NativeProgram
from modulm_kernels_cpu.provider import CPUKernels

TEXT = "The quick brown fox jumps over the lazy dog, the five boxing wizards over jugs of liquor."
REASONS = {
    "bfloat16": "Activations are bfloat16",
    "another backend": "'model.layers.1.self_attn' has attention backend 'torch', not 'cpu_attn'",
    "another provider": "'model.layers.0.mlp.down_proj.weight' is not packed by these kernels",
    "embedding in parts": "'model.embed_tokens.weight' is in several parts",
    "scaled logits": "'lm_head'",
    "two outputs": "'lm_head'",
    "no operation": "'lm_head'",
    "rotation read twice": "'rotary' has no native counterpart",
}


def with_section(graph, name, **changes):
    return msgspec.structs.replace(graph, **{name: msgspec.structs.replace(getattr(graph, name), **changes)})


def other_graph(graph, case):
    """Return a graph that is refused for its operations."""
    logits, rows = graph.logits, graph.logits.inputs["hidden"]
    if case == "scaled logits":
        count = len(graph.values)
        scale = ops.Scale(inputs=(logits.output,), outputs=(count,), factor=2.0)
        graph = msgspec.structs.replace(graph, values=(*graph.values, graph.values[logits.output]))
        return with_section(graph, "logits", ops=(*logits.ops, scale), output=count)
    if case == "two outputs":
        return with_section(graph, "logits", output=rows)
    if case == "no operation":
        return with_section(graph, "logits", ops=(), output=rows)
    if case == "rotation read twice":
        found = list(graph.forward.ops)
        at = next(i for i, op in enumerate(found) if isinstance(op, ops.Attention))
        query, key, _ = found[at].inputs
        found[at] = msgspec.structs.replace(found[at], inputs=(query, key, key))
        return with_section(graph, "forward", ops=tuple(found))
    return graph


def build(record, case, make=NativeProgram):
    recording = record("LlamaForCausalLM", dtype="bfloat16" if case == "bfloat16" else "float32")
    graph = other_graph(recording.graph, case)
    weights = {name: weight.parts for name, weight in recording.weights.items()}
    if case == "another provider":
        name = "model.layers.0.mlp.down_proj.weight"
        weights[name] = [recording.weights[name].reference]
    if case == "embedding in parts":
        weights["model.embed_tokens.weight"] *= 2
    backends = {name: CPUAttention() for name in graph.layers}
    if case == "another backend":
        backends["model.layers.1.self_attn"] = TorchAttention()
    return make(
        graph,
        weights=weights,
        tensors={name: tensor.float().numpy() for name, tensor in recording.tensors.items()},
        kv_caches={name: np.zeros((4, 2, 2, 4, 16), np.float32) for name in graph.layers},
        groups=dict.fromkeys(graph.layers, 0),
        backends=backends,
    )


def test_nothing_is_refused_as_it_is(record):
    program = build(record, None)
    assert program.num_operations == len(record("LlamaForCausalLM").graph.forward.ops) + 1


@pytest.mark.parametrize("case", REASONS)
def test_refusals_have_reasons(case, record):
    for make in (NativeProgram, CPUKernels().program):
        with pytest.raises(Unsupported, match=REASONS[case]):
            build(record, case, make)


# Engines, on tiny models on disk.

ARCHITECTURES = {
    "LlamaForCausalLM": {},
    "SmolLM3ForCausalLM": {  # two KV groups, and layers that rotate nothing
        "use_sliding_window": True, "sliding_window": 20, "no_rope_layers": [1, 0],
        "layer_types": ["sliding_attention", "full_attention"],
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Weights and a tokenizer of single bytes; config.json is left to say which architecture."""
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("tiny-llama")
    tokens = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    config = {
        "model_type": "llama", "vocab_size": len(tokens), "hidden_size": 32,
        "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "hidden_act": "silu", "bos_token_id": 0,
        "eos_token_id": 1, "tie_word_embeddings": False, "torch_dtype": "float32",
    }  # fmt: skip
    (folder / "common.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(7)
    shapes = {"model.embed_tokens": (len(tokens), 32), "lm_head": (len(tokens), 32)}
    sizes = {"q_proj": (32, 32), "k_proj": (16, 32), "v_proj": (16, 32), "o_proj": (32, 32)}
    for layer in ("model.layers.0", "model.layers.1"):
        shapes |= {f"{layer}.self_attn.{name}": shape for name, shape in sizes.items()}
        shapes |= {f"{layer}.mlp.{name}_proj": (64, 32) for name in ("gate", "up")}
        shapes[f"{layer}.mlp.down_proj"] = (32, 64)
    tensors = {f"{name}.weight": 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    norms = ["model.norm"]
    for layer in ("model.layers.0", "model.layers.1"):
        norms += [f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm"]
    tensors |= {f"{name}.weight": torch.ones(32) for name in norms}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture
def ran(folder):
    """Run an engine with some options: what it says of its program, and the tokens of two prompts."""
    from modulm import LLM, SamplingParams

    def run(architecture="LlamaForCausalLM", **options):
        config = json.loads((folder / "common.json").read_text())
        config |= {"architectures": [architecture], **ARCHITECTURES[architecture]}
        (folder / "config.json").write_text(json.dumps(config))
        llm = LLM(str(folder), **{"num_kv_blocks": 64, "max_num_seqs": 4, "dtype": "float32", **options})
        try:
            params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
            outputs = llm.generate([TEXT[:length] for length in (19, 1, 80, 81, 34, 62)], params)
            return llm.explain()["worker"]["program"], [output.outputs[0].token_ids for output in outputs]
        finally:
            llm.shutdown()

    return run


@pytest.mark.parametrize("options", [{}, {"max_num_batched_tokens": 32}, {"num_kv_blocks": 24}], ids=str)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_engine_runs_natively_and_gives_the_tokens_of_the_eager_model(architecture, options, ran):
    one = Dense(out_features=1, in_features=1, data=np.zeros((1, 1), np.float32))
    if not CPUKernels().supports("linear", one, "cpu"):
        pytest.skip("this processor has no kernels of ours")
    how, tokens = ran(architecture, **options)
    assert "operations, run by kernels 'cpu'" in how
    eagerly, want = ran(architecture, enforce_eager=True)
    assert eagerly == "eager: enforce_eager says so"
    assert tokens == want
    assert all(len(ids) == 20 for ids in tokens)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": "bfloat16"}, "cpu: Activations are bfloat16"),
        ({"attention_backend": "torch"}, "'model.layers.0.self_attn' has attention backend 'torch'"),
        ({"dtype": "bfloat16", "kv_cache_dtype": "int8_per_token_head"}, "cpu: Activations are bfloat16"),
        ({"kernels": "torch"}, "none of the kernels torch runs step programs"),
    ],
    ids=str,
)
def test_an_engine_that_cannot_runs_eagerly_and_says_why(options, reason, ran):
    how, tokens = ran(**options)
    assert how.startswith("eager: ") and reason in how
    assert all(len(ids) == 20 for ids in tokens)


SECOND = """
import json, sys
from modulm import LLM, SamplingParams
options = json.loads(sys.argv[2])
llm = LLM(sys.argv[1], num_kv_blocks=64, max_num_seqs=4, **options)
params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, seed=3)
sampled = SamplingParams(temperature=0.8, top_p=0.9, max_tokens=20, ignore_eos=True, seed=3, logprobs=2)
tokens = [o.outputs[0].token_ids for p in (params, sampled) for o in llm.generate(["hello", "a"], p)]
print(json.dumps([llm.explain()["worker"]["program"], tokens, "torch" in sys.modules]))
"""


@pytest.fixture
def process(folder, tmp_path):
    """Run an engine in a fresh process: what it says of its program, its tokens, whether torch was imported."""
    config = json.loads((folder / "common.json").read_text()) | {"architectures": ["LlamaForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))

    def run(**options):
        environment = {**os.environ, "MODULM_CACHE_DIR": str(tmp_path)}
        command = [sys.executable, "-c", SECOND, str(folder), json.dumps(options)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    return run


def test_a_second_process_runs_the_saved_program_without_torch(process, tmp_path):
    how, tokens, has_torch = process()
    assert has_torch and "operations" in how
    assert process() == [how, tokens, False]
    (file,) = (tmp_path / "programs").iterdir()
    file.write_bytes(file.read_bytes()[:-1])  # damaged: recorded anew, and written again
    assert process() == [how, tokens, True]
    assert process() == [how, tokens, False]
    assert process(kv_cache_dtype="int8_per_token_head")[::2] == [how, False]  # the dtype is not in the recording


def test_what_the_saved_program_cannot_serve_runs_eagerly(process):
    _, tokens, _ = process()
    how, eager, has_torch = process(attention_backend="torch")
    assert how.startswith("eager: ") and has_torch and eager[:2] == tokens[:2]
    assert process(enforce_eager=True)[0].startswith("eager: ")
    assert process(dtype="bfloat16")[0].startswith("eager: ")  # another program: the saved one is not taken for it
    assert process()[2] is False
