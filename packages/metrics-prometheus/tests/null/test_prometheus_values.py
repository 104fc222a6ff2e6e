"""What reports become: numbers checked against sums made by hand."""

import pytest

from modulm.errors import SettingError
from modulm.interfaces.metrics import PluginLoad
from modulm.interfaces.settings import provide
from modulm.types import (
    FinishedRequestStats,
    IterationStats,
    PrefixCacheStats,
    PromptTokenStats,
    SchedulerStats,
    SpecDecodingStats,
)


def value(logger, name, engine="0", **labels):
    """Return a sample; counters and histograms by their full names."""
    if engine is not None:
        labels = {"model_name": "m", "engine": engine, **labels}
    return logger.registry.get_sample_value(name, labels)


def ended(reason="stop", **fields):
    defaults = {
        "request_id": "0-0",
        "arrival_time": 1.0,
        "e2e_latency": 3.0,
        "first_token_latency": 1.5,
        "num_prompt_tokens": 30,
        "num_generation_tokens": 4,
        "num_cached_tokens": 16,
        "num_preemptions": 0,
        "max_tokens_param": 64,
        "queued_time": 0.4,
        "prefill_time": 1.1,
        "decode_time": 0.9,
        "inference_time": 2.0,
        "mean_time_per_output_token": 0.3,
    }
    return FinishedRequestStats(finish_reason=reason, **{**defaults, **fields})


def scheduler(**fields):
    return SchedulerStats(**{"prefix_cache_stats": PrefixCacheStats(), **fields})


def iteration(computed=0, hits=0, **fields):
    return IterationStats(prompt_token_stats=PromptTokenStats(computed=computed, local_cache_hit=hits), **fields)


def test_gauges_say_how_things_stand(make_logger):
    logger = make_logger()
    logger.record(scheduler(num_running_reqs=9, num_waiting_reqs=9, kv_cache_usage=0.9), None)
    logger.record(
        scheduler(num_running_reqs=2, num_waiting_reqs=3, num_skipped_waiting_reqs=4, kv_cache_usage=0.25), None
    )
    assert value(logger, "vllm:num_requests_running") == 2
    assert value(logger, "vllm:num_requests_waiting") == 7
    assert value(logger, "vllm:num_requests_waiting_by_reason", reason="capacity") == 3
    assert value(logger, "vllm:num_requests_waiting_by_reason", reason="deferred") == 4
    assert value(logger, "vllm:kv_cache_usage_perc") == 0.25


def test_counters_add_up(make_logger):
    logger = make_logger()
    lookups = PrefixCacheStats(requests=1, queries=30, hits=16, preempted_queries=100)
    for _ in range(3):
        logger.record(
            scheduler(prefix_cache_stats=lookups), iteration(14, 16, num_generation_tokens=5, num_preempted_reqs=2)
        )
    expected = {
        "vllm:prefix_cache_queries_total": 90,
        "vllm:prefix_cache_hits_total": 48,
        "vllm:prompt_tokens_total": 90,
        "vllm:prompt_tokens_cached_total": 48,
        "vllm:generation_tokens_total": 15,
        "vllm:num_preemptions_total": 6,
        "vllm:iteration_tokens_total_count": 3,
        "vllm:iteration_tokens_total_sum": 3 * 19,
    }
    assert {name: value(logger, name) for name in expected} == expected
    by_source = "vllm:prompt_tokens_by_source_total"
    sources = ("local_compute", "local_cache_hit", "external_kv_transfer")
    assert [value(logger, by_source, source=source) for source in sources] == [42, 48, 0]
    assert value(logger, "vllm:prompt_tokens_cached_by_source_total", source="device") == 48


def test_a_request_that_ended_is_in_every_histogram_of_requests(make_logger):
    logger = make_logger()
    logger.record(None, iteration(finished_requests=[ended(), ended("length", num_preemptions=3)]))
    sums = {
        "e2e_request_latency_seconds": 6.0,
        "request_queue_time_seconds": 0.8,
        "request_prefill_time_seconds": 2.2,
        "request_decode_time_seconds": 1.8,
        "request_inference_time_seconds": 4.0,
        "request_time_per_output_token_seconds": 0.6,
        "request_num_preemptions": 3,
        "request_prompt_tokens": 60,
        "request_generation_tokens": 8,
        "request_params_max_tokens": 128,
        "request_prefill_kv_computed_tokens": 28,
    }
    for name, total in sums.items():
        assert value(logger, f"vllm:{name}_sum") == pytest.approx(total), name
        assert value(logger, f"vllm:{name}_count") == 2, name
    assert value(logger, "vllm:request_queue_time_seconds_bucket", le="0.3") == 0
    assert value(logger, "vllm:request_queue_time_seconds_bucket", le="0.5") == 2
    reasons = {reason: value(logger, "vllm:request_success_total", finished_reason=reason) for reason in REASONS}
    assert reasons == {"stop": 1, "length": 1, "abort": 0, "error": 0}


REASONS = ("stop", "length", "abort", "error")


def test_latencies_of_a_step_are_observed_one_by_one(make_logger):
    logger = make_logger()
    logger.record(
        None,
        iteration(
            time_to_first_tokens_iter=[0.07, 3.0],
            inter_token_latencies_iter=[0.02, 0.02, 0.3],
            n_params_iter=[1, 4],
            max_num_generation_tokens_iter=[7, 90],
        ),
    )
    assert value(logger, "vllm:time_to_first_token_seconds_bucket", le="0.08") == 1
    assert value(logger, "vllm:time_to_first_token_seconds_count") == 2
    assert value(logger, "vllm:inter_token_latency_seconds_bucket", le="0.025") == 2
    assert value(logger, "vllm:inter_token_latency_seconds_sum") == pytest.approx(0.34)
    assert value(logger, "vllm:request_params_n_sum") == 5
    assert value(logger, "vllm:request_max_num_generation_tokens_sum") == 97
    assert value(logger, "vllm:iteration_tokens_total_count") == 0  # nothing was computed


def test_engines_have_a_label_and_do_not_mix(make_logger):
    logger = make_logger(engine_indexes=(0, 5))
    logger.record(scheduler(num_running_reqs=1), iteration(num_generation_tokens=1), engine_idx=0)
    logger.record(scheduler(num_running_reqs=2), iteration(num_generation_tokens=2), engine_idx=5)
    for engine, count in (("0", 1), ("5", 2)):
        assert value(logger, "vllm:num_requests_running", engine) == count
        assert value(logger, "vllm:generation_tokens_total", engine) == count


def test_two_loggers_in_one_process_share_nothing(make_logger):
    first, second = make_logger(), make_logger()
    first.record(None, iteration(num_generation_tokens=1))
    assert value(first, "vllm:generation_tokens_total") == 1
    assert value(second, "vllm:generation_tokens_total") == 0


def test_refusals_have_a_bounded_label(make_logger):
    logger = make_logger()
    for reason in ("max_num_queued_reqs", "max_num_queued_reqs", "max_num_queued_tokens", "key-17", "key-18"):
        logger.record_admission_rejection(reason)
    found = [
        value(logger, "vllm:admission_rejections_total", None, model_name="m", reason=reason)
        for reason in ("max_num_queued_reqs", "max_num_queued_tokens", "other", "key-17")
    ]
    assert found == [2, 1, 2, None]


def test_sleep_has_three_states(make_logger):
    logger = make_logger()

    def states():
        names = ("awake", "weights_offloaded", "discard_all")
        return [value(logger, "vllm:engine_sleep_state", sleep_state=name) for name in names]

    found = [states()]
    for call in ((1, 1), (1, 2), (0, 0)):
        logger.record_sleep_state(*call)
        found.append(states())
    assert found == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]


def test_drafts_appear_with_the_first_of_them(make_logger):
    logger = make_logger()
    assert value(logger, "vllm:spec_decode_num_drafts_total") is None
    for accepted in ([1, 1, 0], [1, 0, 0]):
        drafts = SpecDecodingStats(
            num_drafts=1, num_draft_tokens=3, num_accepted_tokens=sum(accepted), num_accepted_tokens_per_pos=accepted
        )
        logger.record(scheduler(spec_decoding_stats=drafts), None)
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    assert [value(logger, f"vllm:spec_decode_{name}_total") for name in names] == [2, 6, 3]
    by_position = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    assert [value(logger, by_position, position=position) for position in "0123"] == [2, 1, 0, None]


def test_plugins_are_those_of_the_moment_of_the_scrape(make_logger):
    plugins = [PluginLoad(name="gguf", state="loaded", seconds=0.25)]
    logger = make_logger(plugins=plugins)
    plugins += [
        PluginLoad(name="gguf", state="loaded", seconds=0.5),
        PluginLoad(name="bad", state="broken", seconds=1.0),
        PluginLoad(name="unused", state="available", seconds=None),
    ]
    name = "modulm:plugin_load_seconds"
    assert value(logger, name, None, plugin="gguf", state="loaded") == 0.75
    assert value(logger, name, None, plugin="bad", state="broken") == 1.0
    assert value(logger, name, None, plugin="unused", state="available") is None


def test_the_caches_settings_are_labels(make_logger):
    settings = {
        "block_size": "16",
        "cache_dtype": "auto",
        "enable_prefix_caching": "True",
        "gpu_memory_utilization": "0.5",
        "kv_cache_memory_bytes": "None",
        "num_gpu_blocks": "100",
    }
    registry = make_logger().registry
    assert registry.get_sample_value("vllm:cache_config_info", {"engine": "0", **settings}) == 1


@pytest.fixture
def given():
    """Sets the plugin's settings."""
    yield lambda **settings: provide({"prometheus": settings})
    provide({})


def test_buckets_are_the_user_s_where_given(make_logger, given):
    given(first_token="[0.2, 0.5]", latency=[2, 4, 8])
    logger = make_logger()
    logger.record(scheduler(), iteration(time_to_first_tokens_iter=[0.3], finished_requests=[ended()]))
    first = {le: value(logger, "vllm:time_to_first_token_seconds_bucket", le=le) for le in ("0.2", "0.5", "+Inf")}
    assert first == {"0.2": 0, "0.5": 1, "+Inf": 1}
    assert value(logger, "vllm:time_to_first_token_seconds_bucket", le="0.25") is None
    latency = [value(logger, "vllm:e2e_request_latency_seconds_bucket", le=le) for le in ("2.0", "4.0", "1.0")]
    assert latency == [0, 1, None]
    assert value(logger, "vllm:inter_token_latency_seconds_bucket", le="0.01") == 0, "what is not given stays"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"latency": [2, 1]}, "latency must hold at least one number, and they must ascend"),
        ({"first_token": "[]"}, "first_token must hold at least one"),
        ({"first_token": "fast"}, "'prometheus.first_token'='fast' is refused: Expected `array`"),
        ({"buckets": [1]}, "There are: latency, first_token, between_tokens"),
    ],
)
def test_buckets_that_cannot_be(make_logger, given, settings, words):
    given(**settings)
    with pytest.raises(SettingError, match=words):
        make_logger()
