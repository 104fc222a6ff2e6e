"""Every metric that is exported, with its type, labels and buckets: vLLM's names, so that its dashboards work.

A counter's name gets `_total` in the exposition. All but the few that say otherwise carry the labels `model_name` and
`engine`; every label has few values, fixed when the server starts. Knows nothing of where the numbers come from:
`logger.py` fills them in.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

LATENCY = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
BETWEEN_TOKENS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
STEP_TOKENS = tuple(float(2**power) for power in (0, *range(3, 15)))
COMPLETIONS = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTIONS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
UP_TO_MODEL_LEN: tuple[float, ...] = ()
"""Stands for the series 1, 2, 5, 10, 20, 50 ... as far as the model's longest sequence."""

SCOPE = ("model_name", "engine")
REASONS = ("stop", "length", "abort", "error")
REJECTIONS = ("max_num_queued_reqs", "max_num_queued_tokens", "other")
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """The plugin's settings: upper ends of the buckets of all histograms of a kind, in seconds, ascending."""

    latency: tuple[float, ...] = LATENCY
    first_token: tuple[float, ...] = FIRST_TOKEN
    between_tokens: tuple[float, ...] = BETWEEN_TOKENS

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            ends = getattr(self, name)
            if not ends or list(ends) != sorted(set(ends)):
                raise ValueError(f"{name} must hold at least one number, and they must ascend")


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric. `labels` come after those of `scope`; `values` are all that the last of them takes."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    scope: tuple[str, ...] = SCOPE
    buckets: tuple[float, ...] = ()


def _each(names: dict[str, str], buckets: tuple[float, ...] = ()) -> list[Metric]:
    return [Metric(name=name, help=text, buckets=buckets) for name, text in names.items()]


GAUGES = [
    *_each(
        {
            "vllm:num_requests_running": "Requests that take part in steps.",
            "vllm:num_requests_waiting": "Requests that wait to be processed.",
            "vllm:kv_cache_usage_perc": "Share of the KV cache that is held; 1 means all of it.",
        }
    ),
    Metric(
        name="vllm:num_requests_waiting_by_reason",
        help="Requests that wait: for room (capacity), or passed over for another reason (deferred).",
        labels=("reason",),
        values=("capacity", "deferred"),
    ),
    Metric(
        name="vllm:engine_sleep_state",
        help="Whether the engine is awake, or sleeps at level 1 (weights_offloaded) or 2 (discard_all).",
        labels=("sleep_state",),
        values=SLEEP_STATES,
    ),
]
COUNTERS = [
    *_each(
        {
            "vllm:prefix_cache_queries": "Tokens looked up in the prefix cache.",
            "vllm:prefix_cache_hits": "Tokens found in the prefix cache.",
            "vllm:num_preemptions": "Requests that lost their blocks and are computed again.",
            "vllm:prompt_tokens": "Prompt tokens taken in, computed or cached.",
            "vllm:prompt_tokens_cached": "Prompt tokens that were not computed.",
            "vllm:generation_tokens": "Tokens generated.",
        }
    ),
    Metric(
        name="vllm:prompt_tokens_by_source",
        help="Prompt tokens by where they came from.",
        labels=("source",),
        values=("local_compute", "local_cache_hit", "external_kv_transfer"),
    ),
    Metric(
        name="vllm:prompt_tokens_cached_by_source",
        help="Tokens found in the prefix cache by the tier that had them.",
        labels=("source",),
        values=("device",),
    ),
    Metric(
        name="vllm:request_success",
        help="Requests that ended, by reason.",
        labels=("finished_reason",),
        values=REASONS,
    ),
    Metric(
        name="vllm:admission_rejections",
        help="Requests turned away because a queue was full, by the limit.",
        scope=("model_name",),
        labels=("reason",),
        values=REJECTIONS,
    ),
]
DRAFT_COUNTERS = [
    *_each(
        {
            "vllm:spec_decode_num_drafts": "Drafts verified.",
            "vllm:spec_decode_num_draft_tokens": "Tokens drafted.",
            "vllm:spec_decode_num_accepted_tokens": "Drafted tokens that were accepted.",
        }
    ),
    Metric(
        name="vllm:spec_decode_num_accepted_tokens_per_pos",
        help="Drafted tokens that were accepted, by their position in the draft.",
        labels=("position",),
    ),
]
"""Made when the first draft is reported."""
HISTOGRAMS = [
    *_each(
        {
            "vllm:e2e_request_latency_seconds": "From a request's arrival to its end.",
            "vllm:request_queue_time_seconds": "From the moment the engine has a request until it is scheduled.",
            "vllm:request_inference_time_seconds": "From the first scheduling to the last token.",
            "vllm:request_prefill_time_seconds": "From the first scheduling to the first token.",
            "vllm:request_decode_time_seconds": "From the first token to the last.",
        },
        LATENCY,
    ),
    *_each({"vllm:time_to_first_token_seconds": "From a request's arrival to its first token."}, FIRST_TOKEN),
    *_each(
        {
            "vllm:inter_token_latency_seconds": "Between the steps that gave a request tokens.",
            "vllm:request_time_per_output_token_seconds": "Mean time per token after the first, by request.",
        },
        BETWEEN_TOKENS,
    ),
    *_each({"vllm:iteration_tokens_total": "Tokens computed and generated in a step."}, STEP_TOKENS),
    *_each({"vllm:request_params_n": "Completions that a request asks for."}, COMPLETIONS),
    *_each({"vllm:request_num_preemptions": "Times a request was preempted."}, PREEMPTIONS),
    *_each(
        {
            "vllm:request_prompt_tokens": "A request's prompt.",
            "vllm:request_generation_tokens": "Tokens generated for a request.",
            "vllm:request_max_num_generation_tokens": "Tokens of the longest of a request's completions.",
            "vllm:request_params_max_tokens": "The most tokens that a request may get.",
            "vllm:request_prefill_kv_computed_tokens": "Prompt tokens of a request that were computed, not cached.",
        },
        UP_TO_MODEL_LEN,
    ),
]
Families = dict[str, Any]
"""Counters, gauges and histograms by name."""


def token_buckets(max_model_len: int) -> list[float]:
    """Return 1, 2, 5, 10, 20, 50 ... up to `max_model_len`."""
    series = [float(digit * 10**power) for power in range(len(str(max_model_len))) for digit in (1, 2, 5)]
    return [value for value in series if value <= max_model_len]


def make(registry: CollectorRegistry, max_model_len: int, chosen: Buckets) -> Families:
    """Register every metric that is always there, and return them by name."""
    families: Families = {}
    instead = {LATENCY: chosen.latency, FIRST_TOKEN: chosen.first_token, BETWEEN_TOKENS: chosen.between_tokens}
    for metric in HISTOGRAMS:
        buckets: Sequence[float] = instead.get(metric.buckets, metric.buckets) or token_buckets(max_model_len)
        families[metric.name] = Histogram(metric.name, metric.help, _labels(metric), buckets=buckets, registry=registry)
    for metric in GAUGES:
        families[metric.name] = Gauge(metric.name, metric.help, _labels(metric), registry=registry)
    return families | make_counters(registry, COUNTERS)


def make_counters(registry: CollectorRegistry, metrics: Sequence[Metric]) -> Families:
    """Register counters, and return them by name."""
    return {each.name: Counter(each.name, each.help, _labels(each), registry=registry) for each in metrics}


def _labels(metric: Metric) -> tuple[str, ...]:
    return metric.scope + metric.labels
