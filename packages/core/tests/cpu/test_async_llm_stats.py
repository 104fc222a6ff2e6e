"""What a serving engine tells of itself: counts that agree with what its clients got, and spans of requests."""

import asyncio
import contextlib
import time

import psutil
import pytest

from modulm import AsyncLLM, RequestOutputKind, SamplingParams
from modulm.config import EngineConfig
from modulm.frontend.spans import Spans
from modulm.interfaces.metrics import AggregateStatLoggerBase
from modulm.plugins import discovery

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Sums(AggregateStatLoggerBase):
    """Adds up."""

    made = []

    def __init__(self, vllm_config, engine_indexes):
        self.num_prompt = self.num_cached = self.num_tokens = 0
        self.ended, self.latencies = [], []
        self.plugins = vllm_config.plugins
        self.made.append(self)

    def log_engine_initialized(self): ...

    def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0):
        self.num_prompt += iteration_stats.num_prompt_tokens
        self.num_cached += iteration_stats.prompt_token_stats.cached_tokens
        self.num_tokens += iteration_stats.num_generation_tokens
        self.ended += iteration_stats.finished_requests
        self.latencies += iteration_stats.inter_token_latencies_iter


@pytest.fixture(params=[False, True], ids=["apart", "beside"])
def start(request, tiny_folder, monkeypatch, tmp_path):
    """Start an engine, apart or in a thread, with a logger of sums; both are given back."""
    monkeypatch.setenv("VLLM_PLUGINS", "")
    monkeypatch.setenv("MODULM_CACHE_DIR", str(tmp_path))
    engines = []

    def begin(**options):
        config = EngineConfig.make(model=str(tiny_folder), num_kv_blocks=200, max_num_seqs=16)
        options = {"in_process": request.param, "stat_loggers": [Sums], **options}
        engines.append(AsyncLLM.from_config(config, **options))
        return engines[-1], Sums.made[-1]

    yield begin
    for engine in engines:
        engine.shutdown()


async def read(engine, prompt, params=GREEDY, most=None, **options):
    """Return the ids and the finish reason of a request that is left after `most` outputs."""
    ids, reason = [], None
    async with contextlib.aclosing(engine.generate(prompt, params, **options)) as stream:
        async for output in stream:
            ids += output.outputs[0].token_ids
            reason = output.outputs[0].finish_reason
            if most is not None and (most := most - 1) <= 0:
                break
    return ids, reason


def eventually(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_counts_agree_with_what_clients_got(start):
    engine, sums = start(disable_log_stats=True)
    prompts = [list(range(9, 9 + length)) for length in (3, 17, 33, 40)]

    async def all_of_them():
        found = [await read(engine, prompts[-1])]
        return found + await asyncio.gather(*[read(engine, prompt) for prompt in prompts])

    found = asyncio.run(all_of_them())
    eventually(lambda: len(sums.ended) == 5)
    assert sums.num_tokens == sum(len(ids) for ids, _ in found) == 5 * 12
    assert sums.num_prompt == 40 + sum(map(len, prompts))
    assert sums.num_cached > 0 and sums.num_cached == sum(each.num_cached_tokens for each in sums.ended)
    assert len(sums.latencies) == 5 * 11
    assert sorted(each.num_prompt_tokens for each in sums.ended) == [3, 17, 33, 40, 40]


def test_reasons_are_those_that_clients_got(start):
    """A stop string is found by the front end, and is no abort."""
    engine, sums = start()
    text = engine.tokenizer.decode(asyncio.run(read(engine, [9]))[0][:6])
    stopped = asyncio.run(read(engine, [9], GREEDY.clone(stop=[text[-2:]])))
    asyncio.run(read(engine, [9], GREEDY.clone(max_tokens=200), most=2))
    eventually(lambda: len(sums.ended) == 3)
    assert stopped[1] == "stop"
    assert [each.finish_reason for each in sums.ended] == ["length", "stop", "abort"]


def test_spans_have_the_clients_id_and_place(start, monkeypatch):
    pytest.importorskip("opentelemetry.sdk", reason="the extra otlp is not installed")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, endpoints = InMemorySpanExporter(), []

    def spans_to(endpoint):
        endpoints.append(endpoint)
        return lambda config, index: Spans(config, index, SimpleSpanProcessor(exporter))

    monkeypatch.setattr("modulm.frontend.stat_loggers.spans_to", spans_to)
    engine, _ = start(otlp_traces_endpoint="http://localhost:4317")
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "no", "authorization": "secret"}
    asyncio.run(read(engine, [9, 10], request_id="mine", trace_headers=headers))
    asyncio.run(read(engine, [9, 10, 11]))
    eventually(lambda: len(exporter.get_finished_spans()) == 2)
    first, second = exporter.get_finished_spans()
    assert endpoints == ["http://localhost:4317"]
    assert f"{first.context.trace_id:032x}" == TRACE and second.parent is None
    assert first.attributes["gen_ai.request.id"] == "mine" and "secret" not in str(first.attributes)
    names = ("gen_ai.usage.prompt_tokens", "gen_ai.usage.completion_tokens")
    tokens = [tuple(span.attributes[name] for name in names) for span in (first, second)]
    assert tokens == [(2, 12), (3, 12)]
    for span in (first, second):
        took = {name: span.attributes[f"gen_ai.latency.{name}"] for name in ("e2e", "time_to_first_token")}
        assert 0 < took["time_to_first_token"] < took["e2e"] < 20
        assert (span.end_time - span.start_time) / 1e9 == pytest.approx(took["e2e"], abs=1e-5)
        assert abs(span.end_time / 1e9 - time.time()) < 60


def test_a_logger_that_cannot_be_made_ends_the_start(start):
    class Fails(Sums):
        def __init__(self, vllm_config, engine_indexes):
            raise KeyError("no such server")

    before = psutil.Process().children()
    with pytest.raises(KeyError, match="no such server"):
        start(stat_loggers=[Sums, Fails])
    assert psutil.Process().children() == before


PLUGIN = """
from modulm.interfaces.metrics import StatLoggerBase
class Raises(StatLoggerBase):
    def __init__(self, vllm_config, engine_index=0): ...
    def log_engine_initialized(self): ...
    def record(self, *args, **options): raise OSError("disk full")
"""


def test_what_becomes_of_a_plugins_logger_is_listed(start, tmp_path, monkeypatch):
    site = tmp_path / "site"
    info = site / "own_stats-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "own_stats.py").write_text(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-stats\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[vllm.stat_logger_plugins]\nraises = own_stats:Raises\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("VLLM_PLUGINS", "raises")
    discovery.reset()
    engine, sums = start()

    def state():
        found = [each for each in engine.plugin_records() if each["name"] == "raises" and each["state"] != "available"]
        return [(each["state"], "disk full" in each["reason"]) for each in found]

    assert state() == [("loaded", False)] and [each.name for each in sums.plugins() if each.seconds] == ["raises"]
    assert len(asyncio.run(read(engine, [9]))[0]) == 12
    eventually(lambda: state() == [("broken", True)])
    monkeypatch.undo()
    discovery.reset()
