"""The example `platform`: its worker class runs the steps, its attention backend is used, its changes are heeded."""

import re

CODE = """
import json
from vllm import LLM, SamplingParams
from vllm.platforms import current_platform
llm = LLM(model={model!r}, num_kv_blocks=40)
params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
found = llm.generate([{{"prompt_token_ids": list(range(2, 25))}}], params)[0].outputs[0].token_ids
attention = next(c["chosen"] for c in llm.explain()["choices"] if c["family"] == "modulm.attention")
llm.shutdown()
config, blocks = llm.config, llm.explain()["worker"]["kv_blocks"]
print(json.dumps([found, current_platform.device_name, attention, config.block_size, config.executor, blocks]))
"""
REFUSED = """
import json
import pytest
import my_platform.platform as example, my_platform.worker as workers
from vllm import LLM
found = []
for change in {changes!r}:
    with pytest.MonkeyPatch.context() as patch:
        exec(change)
        try:
            LLM(model={model!r}, num_kv_blocks=40)
        except Exception as error:
            found.append(f"{{type(error).__name__}}: {{error}}")
print(json.dumps(found))
"""
ATTENTION = "patch.setattr(example.MyPlatform, 'get_attn_backend_cls', lambda *args, **options: {!r})"
REFUSALS = {
    "patch.setattr(workers.MyWorker, 'determine_available_memory', lambda self: 1, raising=False)":
        ("Incompatible", "defines determine_available_memory, which modulm would never call"),
    "patch.setattr(workers, 'MyWorker', object)":
        ("Incompatible", "does not derive from vllm.v1.worker.cpu_worker.CPUWorker"),
    "patch.delattr(workers, 'MyWorker')":
        ("Broken", "Worker class 'my_platform.worker.MyWorker' is installed but broken"),
    ATTENTION.format(""):
        ("Incompatible", "answers '' to get_attn_backend_cls, but must answer a class path"),
    ATTENTION.format("no_such_module.Backend"):
        ("Broken", "no_such_module"),
    ATTENTION.format("vllm.v1.attention.backends.flash_attn.FlashAttentionBackend"):
        ("NotInstalled", "modulm-attention-flash"),
    "patch.setattr(example.MyPlatform, 'check_and_update_config', 'no function')":
        ("ConfigError", "Platform 'MyDevice' refuses the configuration: TypeError"),
}  # fmt: skip


def test_it_serves(script, tiny_llama):
    wanted, name, attention, blocks, executor, _ = script(CODE.format(model=str(tiny_llama)))[0]
    assert (name, blocks, executor) == ("cpu", 16, "inprocess") and "custom_attention" not in attention

    found, log = script(CODE.format(model=str(tiny_llama)), MY_DEVICE="1")
    assert found[1:5] == ["MyDevice", "custom_attention.kernel.MyFlashAttnBackend", 32, "my_platform.worker.MyWorker"]
    assert found[0] == wanted, "attention in float32 must not change the likeliest tokens"
    assert found[5].startswith("40 of 32 tokens")
    for words in (
        "device cpu is set",
        "attention for 4 heads of size 8",
        "worker 0 on cpu, 32 tokens a block",
        f"worker ran 6 steps of {23 + 5} tokens",
    ):
        assert f"vllm.my_platform: {words}" in log
    assert len(re.findall(r"MyFlashAttnImpl.forward: call", log)) == 2 * 6, "two layers, six steps"


def test_what_could_not_be_honoured_is_refused(script, tiny_llama):
    found, _ = script(REFUSED.format(changes=list(REFUSALS), model=str(tiny_llama)), MY_DEVICE="1")
    for text, (kind, words) in zip(found, REFUSALS.values(), strict=True):
        assert text.startswith(f"{kind}: ") and words in text
