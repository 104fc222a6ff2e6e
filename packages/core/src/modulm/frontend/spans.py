"""One OpenTelemetry span per request, under vLLM's names: a stat logger that looks at requests that have ended.

A span is made of what the engine measured, after the fact; nothing is traced while tokens are generated. Where it
belongs came with the request (`Request.trace_headers`). Needs the extra `otlp`.
"""

import os
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from modulm.errors import ConfigError
from modulm.interfaces.metrics import LoggedConfig, StatLoggerBase
from modulm.types import FinishedRequestStats, IterationStats, SchedulerStats

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

_EXPORTERS = {
    "grpc": "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
    "http/protobuf": "opentelemetry.exporter.otlp.proto.http.trace_exporter",
}
_PROTOCOL = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
_NS = 1e9


def spans_to(endpoint: str) -> Callable[[LoggedConfig, int], StatLoggerBase]:
    """Return what makes the logger that sends spans to an OpenTelemetry collector, such as http://localhost:4317.

    The environment variable OTEL_EXPORTER_OTLP_TRACES_PROTOCOL chooses between grpc, which is the default, and
    http/protobuf. Raises `ConfigError` where that cannot be.
    """
    protocol = os.environ.get(_PROTOCOL, "grpc")
    if protocol not in _EXPORTERS:
        raise ConfigError(f"{_PROTOCOL}={protocol!r} is unknown. There are: {', '.join(_EXPORTERS)}.")
    try:
        module = import_module(_EXPORTERS[protocol])
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(
            f"otlp_traces_endpoint={endpoint!r} cannot be used: OpenTelemetry is not installed ({error}). "
            "It comes with an extra: pip install 'modulm-core[otlp]'."
        ) from error
    processor = BatchSpanProcessor(module.OTLPSpanExporter(endpoint=endpoint))
    return lambda config, index: Spans(config, index, processor)


class Spans(StatLoggerBase):
    """Gives a span to every request that ended and came with `trace_headers`."""

    def __init__(self, vllm_config: LoggedConfig, engine_index: int, processor: "SpanProcessor") -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.trace import SpanKind, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        provider = TracerProvider(resource=Resource.create({"service.name": "modulm"}))
        provider.add_span_processor(processor)
        self._tracer = provider.get_tracer("modulm")
        self._model = vllm_config.model_config.served_model_name
        self._kind = SpanKind.SERVER
        self._failure = StatusCode.ERROR
        self._parent_of = TraceContextTextMapPropagator().extract

    def log_engine_initialized(self) -> None:
        """Nothing to say."""

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Make the spans of one step."""
        for ended in iteration_stats.finished_requests if iteration_stats is not None else ():
            if ended.trace_headers is not None:
                self._span(ended, ended.trace_headers)

    def _span(self, ended: FinishedRequestStats, headers: dict[str, str]) -> None:
        start = int(ended.arrival_time * _NS)
        span = self._tracer.start_span(
            "llm_request",
            context=self._parent_of(headers),
            kind=self._kind,
            start_time=start,
            attributes={"gen_ai.response.model": self._model, **_attributes(ended, headers)},
        )
        if ended.finish_reason == "error":
            span.set_status(self._failure)
        span.end(start + int(ended.e2e_latency * _NS))


def _attributes(ended: FinishedRequestStats, headers: dict[str, str]) -> dict[str, Any]:
    params = ended.params
    asked = {} if params is None else {"temperature": params.temperature, "top_p": params.top_p, "n": params.n}
    return {
        "gen_ai.request.id": headers.get("x-request-id", ended.request_id),
        "gen_ai.request.max_tokens": ended.max_tokens_param,
        "gen_ai.response.finish_reasons": [ended.finish_reason],
        "gen_ai.usage.prompt_tokens": ended.num_prompt_tokens,
        "gen_ai.usage.completion_tokens": ended.num_generation_tokens,
        "gen_ai.latency.e2e": ended.e2e_latency,
        "gen_ai.latency.time_to_first_token": ended.first_token_latency,
        "gen_ai.latency.time_in_queue": ended.queued_time,
        "gen_ai.latency.time_in_model_prefill": ended.prefill_time,
        "gen_ai.latency.time_in_model_decode": ended.decode_time,
        "gen_ai.latency.time_in_model_inference": ended.inference_time,
        **{f"gen_ai.request.{name}": value for name, value in asked.items()},
    }
