"""The example `custom_llama`: an architecture registered by string, whose class calls the forward of vLLM's Llama."""

import json
import re
import shutil
from importlib import import_module

import pytest
import torch

from modulm.config import ModelConfig
from modulm.errors import Incompatible

PROMPT = [2, 3, 4, 5, 6, 7, 2, 8, 9]
CALL = re.compile(r"MyCustomLlama\.forward: call (\d+), (\d+) tokens, process (\d+)")
CODE = """
import json, sys
from vllm import LLM, ModelRegistry, SamplingParams
llm = LLM(model={model!r}, num_kv_blocks=50, max_num_batched_tokens=8)
(output,) = llm.generate({{"prompt_token_ids": {prompt}}}, SamplingParams(temperature=0, max_tokens=6, ignore_eos=True))
print(json.dumps([output.outputs[0].token_ids, output.outputs[0].text, "MyCustomLlama" in
                  ModelRegistry.get_supported_archs(), llm.explain()["worker"]["program"]]))
"""


@pytest.fixture(scope="module")
def checkpoint(tiny_llama, tmp_path_factory):
    """The tiny Llama under the name of the example's architecture; hidden states change their sign."""
    folder = tmp_path_factory.mktemp("custom") / "model"
    shutil.copytree(tiny_llama, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["MyCustomLlama"], "hidden_scale": -1}))
    return folder


@pytest.fixture(scope="module")
def expected(tiny_llama):
    """What transformers' Llama says when the least likely token is taken each time."""
    from transformers import LlamaForCausalLM

    model, ids = LlamaForCausalLM.from_pretrained(tiny_llama), list(PROMPT)
    with torch.inference_mode():
        for _ in range(6):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmin()))
    return ids[len(PROMPT) :]


def test_it_generates_offline(script, checkpoint, expected):
    code = CODE.format(model=str(checkpoint), prompt=PROMPT)
    (tokens, _, is_known, program), log = script(code, MODULM_LOG_LEVEL="WARNING")
    assert tokens == expected
    assert is_known
    assert program.startswith("eager: ") and "written for vLLM" in program
    calls = [tuple(map(int, call)) for call in CALL.findall(log)]
    assert [call[:2] for call in calls] == [(1, 8), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1)]


def test_it_is_served(serve, checkpoint, expected):
    from tokenizers import Tokenizer

    server = serve(checkpoint, "--num-kv-blocks=50", MODULM_LOG_LEVEL="INFO")
    answer = server.complete(
        model=str(checkpoint), prompt=PROMPT, temperature=0, max_tokens=6, ignore_eos=True, skip_special_tokens=False
    )
    text = Tokenizer.from_file(str(checkpoint / "tokenizer.json")).decode(expected, skip_special_tokens=False)
    assert answer["choices"][0]["text"].split() == text.split()
    calls = CALL.findall(server.log.read_text())
    assert len(calls) == 6
    assert {int(process) for _, _, process in calls} != {server.process.pid}, "not in the engine's process"


def test_without_the_plugin_the_error_names_the_architecture(script, checkpoint):
    code = CODE.format(model=str(checkpoint), prompt=PROMPT).replace("llm = LLM(", "llm = refused(LLM, ")
    code = f"""
def refused(kind, **options):
    try:
        kind(**options)
    except ValueError as error:
        print(json.dumps(str(error)))
        sys.exit()
{code}"""
    text, _ = script(code, VLLM_PLUGINS="")
    assert text.startswith("Model architectures ['MyCustomLlama'] are not supported for now.")


def test_a_class_that_loads_its_weights_itself_is_refused():
    from vllm.model_executor.models.llama import LlamaForCausalLM

    class Loader(LlamaForCausalLM):
        def load_weights(self, weights):
            return super().load_weights(weights)

    with pytest.raises(Incompatible, match=r"Loader overrides load_weights\(\), which modulm does not call"):
        Loader.modulm_class()


def test_layers_of_vllm_are_said_to_be_missing():
    with pytest.raises(
        ImportError, match=r"'vllm\.model_executor\.layers' is not here.*derive from one of the classes"
    ):
        import vllm.model_executor.layers.linear  # noqa: F401


@pytest.fixture
def tiny_config():
    values = {
        "vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "rms_norm_eps": 1e-5, "max_position_embeddings": 32,
    }  # fmt: skip
    return ModelConfig(name="tiny", hf=values, architectures=["Mine"], max_model_len=32)


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_each_family_is_modulms_own_model(tiny_config, family):
    theirs = getattr(import_module(f"vllm.model_executor.models.{family.lower()}"), f"{family}ForCausalLM")
    ours = getattr(import_module(f"modulm.models.{family.lower()}"), f"{family}ForCausalLM")
    with torch.device("meta"):
        model, own = theirs.modulm_class()(tiny_config), ours(tiny_config)
    assert isinstance(model, ours)
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in own.named_parameters()]


def test_a_plugin_may_change_what_its_base_class_is_made_from(tiny_config):
    from vllm.config import get_current_vllm_config
    from vllm.model_executor.models.llama import LlamaForCausalLM

    class Wider(LlamaForCausalLM):
        def __init__(self, *, vllm_config, prefix=""):
            assert get_current_vllm_config() is vllm_config
            assert vllm_config.model_config.dtype is torch.float32
            vllm_config.model_config.hf_config.num_hidden_layers = 3
            super().__init__(vllm_config=vllm_config, prefix=prefix)

    with torch.device("meta"):
        model = Wider.modulm_class()(tiny_config)
    assert isinstance(model, Wider)
    assert len(model.model.layers) == model.config.num_hidden_layers == 3
    assert tiny_config.hf["num_hidden_layers"] == 1


@pytest.mark.parametrize("call", ["super", "model"])
def test_positions_and_embeddings_that_a_plugin_changes_are_used(tiny_config, monkeypatch, call):
    from vllm.forward_context import get_forward_context
    from vllm.model_executor.models.llama import LlamaForCausalLM

    from modulm.interfaces.model import ForwardBatch
    from modulm.models.llama import Decoder

    seen = {}

    class Shifted(LlamaForCausalLM):
        def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
            seen["metadata"] = get_forward_context().attn_metadata
            inner = super().forward if call == "super" else self.model
            return inner(None, positions + 5, inputs_embeds=torch.full((1, 8), 2.0))

    def record(self, token_ids, batch, embeds=None):
        seen.update(ids=token_ids, positions=batch.positions, embeds=embeds)

    with torch.device("meta"):
        model = Shifted.modulm_class()(tiny_config)
    monkeypatch.setattr(Decoder, "forward", record)
    batch = ForwardBatch(positions=torch.tensor([7]), kv_caches={}, metadata={"layer": "plan"}, max_seq_len=8)
    model.forward(torch.tensor([3]), batch)
    assert (seen["ids"], seen["positions"].tolist(), seen["embeds"].tolist()) == (None, [12], [[2.0] * 8])
    assert seen["metadata"] == {"layer": "plan"}
    with pytest.raises(RuntimeError, match="No forward pass is being computed here"):
        get_forward_context()


def test_embeddings_are_those_that_the_first_layer_gets(tiny_config, monkeypatch):
    from vllm.model_executor.models.llama import LlamaForCausalLM

    model = LlamaForCausalLM.modulm_class()(tiny_config)
    monkeypatch.setattr(model.model.embed_tokens, "forward", lambda ids: ids[:, None] * torch.ones(8))
    assert model.embed_input_ids(torch.tensor([3, 4])).tolist() == [[3.0] * 8, [4.0] * 8]
    with pytest.raises(NotImplementedError, match="pipeline parallelism, which modulm does not have"):
        model.model(torch.tensor([3]), torch.tensor([0]), intermediate_tensors={})
