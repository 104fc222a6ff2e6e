"""A logger of a model of 512 tokens, and what it exports."""

import json
from pathlib import Path

import pytest

from modulm.interfaces.metrics import LoggedCache, LoggedConfig, LoggedModel, PluginLoad
from modulm.types import IterationStats, PrefixCacheStats, PromptTokenStats, SchedulerStats, SpecDecodingStats
from modulm_metrics_prometheus.logger import PrometheusStatLogger

HERE = Path(__file__).parent


@pytest.fixture
def contract():
    """vLLM's metrics: `metrics` with table, name, type, labels and family of buckets; `buckets` by family."""
    return json.loads((HERE / "contract.json").read_text())


@pytest.fixture
def folder():
    """The package's folder."""
    return HERE.parent


@pytest.fixture
def make_logger():
    def make(max_model_len=512, engine_indexes=(0,), plugins=()):
        cache = LoggedCache(
            block_size=16,
            cache_dtype="auto",
            enable_prefix_caching=True,
            gpu_memory_utilization=0.5,
            kv_cache_memory_bytes=None,
            num_gpu_blocks=100,
        )
        model = LoggedModel(model="folder/m", served_model_name="m", max_model_len=max_model_len)
        config = LoggedConfig(model_config=model, cache_config=cache, plugins=lambda: plugins)
        logger = PrometheusStatLogger(vllm_config=config, engine_indexes=list(engine_indexes))
        logger.log_engine_initialized()
        return logger

    return make


@pytest.fixture
def full(make_logger):
    """A logger all of whose metrics exist: it has heard of drafts, and of a plugin."""
    logger = make_logger(plugins=[PluginLoad(name="p", state="loaded", seconds=0.5)])
    drafts = SpecDecodingStats(num_drafts=1, num_draft_tokens=2, num_accepted_tokens_per_pos=[1, 0])
    scheduler = SchedulerStats(prefix_cache_stats=PrefixCacheStats(), spec_decoding_stats=drafts)
    logger.record(scheduler, IterationStats(prompt_token_stats=PromptTokenStats()))
    return logger
