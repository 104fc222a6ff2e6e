"""The example `custom_attention`: one backend as CUSTOM, two by names of their own, the same tokens as modulm's own."""

import re
import shutil

import pytest

CALL = re.compile(r"(\w+)Impl\.forward: call \d+, (\d+) tokens, process (\d+)")
CODE = """
import json
from vllm import LLM, SamplingParams
prompts = [{{"prompt_token_ids": [2 + (7 * i * i + n) % 26 for i in range(n)]}} for n in (37, 1, 16, 20)]
params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
found, computed = {{}}, {{}}
for name in {backends}:
    options = dict(num_kv_blocks=60, max_num_batched_tokens=24, attention_backend=name)
    llm = LLM(model={model!r}, **options)
    outputs = [output for _ in range(2) for output in llm.generate(prompts, params)]
    found[name] = [output.outputs[0].token_ids for output in outputs]
    computed[name] = sum(len(o.prompt_token_ids) - o.num_cached_tokens + 5 - 1 for o in outputs)
    llm.shutdown()
print(json.dumps([found, computed]))
"""


def test_backends_by_name_give_the_tokens_of_modulms_own(script, tiny_llama):
    names = ["torch", "CUSTOM", "my_flash_attn", "MY_OLD_ATTN"]  # the second run of each finds a cached prefix
    (found, computed), log = script(CODE.format(backends=names, model=str(tiny_llama)))
    expected = found.pop("torch")
    assert expected[:4] == expected[4:] and expected[0] != expected[2]
    assert found == dict.fromkeys(names[1:], expected)
    tokens = {"MyFlashAttn": 0, "MyOldAttn": 0}
    for name, count, _ in CALL.findall(log):
        tokens[name] += int(count)
    assert computed["torch"] < 2 * (37 + 1 + 16 + 20 + 4 * 4), "nothing was cached"
    assert tokens == {
        "MyFlashAttn": 2 * (computed["CUSTOM"] + computed["my_flash_attn"]),
        "MyOldAttn": 2 * computed["MY_OLD_ATTN"],
    }


@pytest.fixture(scope="module")
def tiny_windowed(tiny_llama, tmp_path_factory):
    """Gemma 3: three layers that see 11 tokens back and share their blocks' memory with a fourth that sees all."""
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    folder = tmp_path_factory.mktemp("tiny-gemma3") / "model"
    shutil.copytree(tiny_llama, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    torch.manual_seed(8)
    config = Gemma3TextConfig(
        vocab_size=28, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, query_pre_attn_scalar=8, max_position_embeddings=256, sliding_window=12,
        layer_types=["sliding_attention"] * 3 + ["full_attention"], bos_token_id=0, eos_token_id=1,
        initializer_range=0.3,
    )  # fmt: skip
    Gemma3ForCausalLM(config).float().save_pretrained(folder)
    return folder


def test_windows(script, tiny_windowed):
    names = ["torch", "CUSTOM", "MY_OLD_ATTN"]
    (found, _), _ = script(CODE.format(backends=names, model=str(tiny_windowed)))
    expected = found["torch"]
    assert expected[:4] == expected[4:] and expected[0] != expected[2]
    assert found == dict.fromkeys(names, expected)


def test_the_variable_chooses_where_no_option_does(script, tiny_llama):
    code = CODE.format(backends=["auto", "torch"], model=str(tiny_llama))
    (found, _), log = script(code, VLLM_ATTENTION_BACKEND="CUSTOM")
    assert found["auto"] == found["torch"]
    assert {name for name, _, _ in CALL.findall(log)} == {"MyFlashAttn"}


def test_it_is_served(serve, script, tiny_llama):
    server = serve(tiny_llama, "--num-kv-blocks=50", "--attention-backend=CUSTOM")
    answer = server.complete(model=str(tiny_llama), prompt="a b c d", temperature=0, max_tokens=4)
    assert len(answer["choices"][0]["text"].split()) == answer["usage"]["completion_tokens"] > 0
    calls = CALL.findall(server.log.read_text())
    assert [int(count) for _, count, _ in calls][:2] == [4, 4]
    assert {int(process) for _, _, process in calls} != {server.process.pid}, "not in the engine's process"


def test_one_that_is_not_registered_is_unknown(script, tiny_llama):
    code = CODE.format(backends=["CUSTOM"], model=str(tiny_llama))
    code = f"try:\n{'    '.join(code.splitlines(True))}except Exception as error:\n    print(json.dumps(str(error)))"
    text, _ = script(code, VLLM_PLUGINS="")
    assert text.startswith("Attention backend 'CUSTOM' is unknown. Installed: ")
