"""Stat loggers under vLLM's names: found by entry point, checked, told of steps in whichever style they are written."""

import pytest
from vllm.config import VllmConfig
from vllm.v1.metrics import loggers
from vllm.v1.metrics.loggers import StatLoggerBase, load_stat_logger_plugin_factories

from modulm.frontend.stat_loggers import StatLoggers
from modulm.interfaces.metrics import LoggedCache, LoggedConfig, LoggedModel
from modulm.types import (
    EngineStats,
    FinishedRequestStats,
    IterationStats,
    PrefixCacheStats,
    PromptTokenStats,
    SchedulerStats,
)

DUMMY = """
from vllm.v1.metrics.loggers import StatLoggerBase
class DummyStatLogger(StatLoggerBase):
    def __init__(self, vllm_config, engine_index=0):
        self.recorded, self.config, self.engine_index = [], vllm_config, engine_index
    def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0):
        self.recorded.append((scheduler_stats, iteration_stats, mm_cache_stats, engine_idx))
    def log(self): ...
    def log_engine_initialized(self): self.ready = True
"""
ENDED = FinishedRequestStats(
    finish_reason="length", request_id="r", arrival_time=1.0, e2e_latency=9.0, first_token_latency=2.0,
    num_prompt_tokens=5, num_generation_tokens=6, num_cached_tokens=0, num_preemptions=0, max_tokens_param=7,
    queued_time=0.5, prefill_time=1.5, decode_time=7.0, inference_time=8.5, mean_time_per_output_token=1.4,
)  # fmt: skip
SCHEDULER = SchedulerStats(
    num_running_reqs=3, num_waiting_reqs=2, num_skipped_waiting_reqs=1, kv_cache_usage=0.25,
    prefix_cache_stats=PrefixCacheStats(queries=8, hits=2),
)  # fmt: skip
ITERATION = IterationStats(
    iteration_timestamp=100.0, prompt_token_stats=PromptTokenStats(computed=4, local_cache_hit=1),
    num_generation_tokens=6, num_preempted_reqs=1, finished_requests=[ENDED], time_to_first_tokens_iter=[2.0],
    inter_token_latencies_iter=[0.1, 0.2], n_params_iter=[1], max_num_generation_tokens_iter=[6],
)  # fmt: skip


@pytest.fixture
def dummy(site):
    site.install(loggers.STAT_LOGGER_PLUGINS_GROUP, {"dummy_stat_logger": "dummies:DummyStatLogger"}, dummies=DUMMY)
    import dummies

    return dummies.DummyStatLogger


def test_a_plugin_is_discovered(dummy, monkeypatch):
    monkeypatch.setenv("VLLM_PLUGINS", "dummy_stat_logger")
    assert load_stat_logger_plugin_factories() == [dummy]
    assert isinstance(load_stat_logger_plugin_factories()[0](VllmConfig()), dummy)


def test_none_is_loaded_when_the_list_is_empty(dummy, monkeypatch):
    monkeypatch.setenv("VLLM_PLUGINS", "")
    assert load_stat_logger_plugin_factories() == []


@pytest.mark.parametrize("bad", [object(), object, lambda config, index: None])
def test_what_is_no_logger_is_a_type_error_that_names_the_plugin(monkeypatch, bad):
    asked = []
    monkeypatch.setattr(
        "vllm.v1.metrics.loggers.load_plugins_by_group", lambda group: asked.append(group) or {"bad": bad}
    )
    with pytest.raises(TypeError, match="Stat logger plugin 'bad' must be a subclass of StatLoggerBase"):
        load_stat_logger_plugin_factories()
    assert asked == ["vllm.stat_logger_plugins"]


def feed(*factories):
    """Run a step's report through modulm's own front end; return the loggers of engine 0."""
    config = LoggedConfig(
        model_config=LoggedModel(model="m", served_model_name="served", max_model_len=64),
        cache_config=LoggedCache(
            block_size=16, cache_dtype="auto", enable_prefix_caching=True, gpu_memory_utilization=0.5,
            kv_cache_memory_bytes=None, num_gpu_blocks=10,
        ),
    )  # fmt: skip
    feeds = StatLoggers(config, factories=factories, enable_default_loggers=False)
    feeds.record(EngineStats(scheduler=SCHEDULER, iteration=ITERATION))
    feeds.close()
    return [adapter.per_engine_stat_loggers[0] for adapter in feeds.stat_loggers]


def test_the_engine_s_front_end_makes_it_and_tells_it_of_steps(dummy):
    (made,) = feed()
    assert type(made) is dummy and made.ready and made.engine_index == 0
    assert made.config.model_config.served_model_name == "served"
    assert made.recorded == [(SCHEDULER, ITERATION, None, 0)]


class Kept(StatLoggerBase):
    """Keeps what it is told."""

    def __init__(self, vllm_config, engine_index=0):
        self.told = []

    def log_engine_initialized(self): ...


class TwoArguments(Kept):
    def record(self, scheduler_stats, iteration_stats):
        self.told.append((scheduler_stats, iteration_stats))


class OtherNames(Kept):
    def record(self, scheduler, iteration, engine_idx=0):
        self.told.append((scheduler, iteration, engine_idx))


class Anything(Kept):
    def record(self, *args, **options):
        self.told.append((*args, options))


class OldestOfThisEngine(StatLoggerBase):
    """Neither `record` nor `log_engine_initialized`."""

    def __init__(self, vllm_config, engine_index=0):
        self.told = []

    def log(self, scheduler_stats, iteration_stats):
        self.told.append((scheduler_stats, iteration_stats))


class Inherits(OldestOfThisEngine):
    def log(self, scheduler_stats, iteration_stats):
        super().log(scheduler_stats, "changed")


class StatsAlone(Kept):
    def record(self, stats, engine_idx=0):
        self.told.append((stats.num_running_sys, stats.num_generation_tokens_iter, engine_idx))


@pytest.mark.parametrize(
    ("logger_class", "told"),
    [
        (TwoArguments, (SCHEDULER, ITERATION)),
        (OtherNames, (SCHEDULER, ITERATION, 0)),
        (Anything, (SCHEDULER, ITERATION, {"mm_cache_stats": None, "engine_idx": 0})),
        (OldestOfThisEngine, (SCHEDULER, ITERATION)),
        (Inherits, (SCHEDULER, "changed")),
        (StatsAlone, (3, 6, 0)),
    ],
)
def test_older_styles(site, logger_class, told):
    (made,) = feed(logger_class)
    assert made.told == [told]


def test_log_of_one_argument_gets_stats(site):
    class Older(StatLoggerBase):
        def __init__(self, vllm_config, engine_index=0):
            self.told = []

        def log(self, stats):
            self.told.append(vars(stats))

    (made,) = feed(Older)
    assert made.told == [
        {
            "now": 100.0, "num_running_sys": 3, "num_waiting_sys": 3, "num_swapped_sys": 0, "gpu_cache_usage_sys": 0.25,
            "cpu_cache_usage_sys": 0.0, "gpu_prefix_cache_hit_rate": 0.25, "num_prompt_tokens_iter": 5,
            "num_generation_tokens_iter": 6, "num_tokens_iter": 11, "num_preemption_iter": 1,
            "time_to_first_tokens_iter": [2.0], "time_per_output_tokens_iter": [0.1, 0.2], "time_e2e_requests": [9.0],
            "time_queue_requests": [0.5], "time_inference_requests": [8.5], "time_prefill_requests": [1.5],
            "time_decode_requests": [7.0], "num_prompt_tokens_requests": [5], "num_generation_tokens_requests": [6],
            "max_tokens_requests": [7], "n_requests": [1], "max_num_generation_tokens_requests": [6],
            "finished_reason_requests": ["length"],
        }
    ]  # fmt: skip


def test_a_log_that_nobody_could_call_is_refused_where_it_is_defined():
    with pytest.raises(TypeError, match=r"Odd\.log needs a, b, c\. A stat logger's log takes nothing, or one Stats"):

        class Odd(StatLoggerBase):
            def log(self, a, b, c): ...
