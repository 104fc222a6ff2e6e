"""Spans of requests, read back from OpenTelemetry's own in-memory exporter."""

import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from modulm.config import EngineConfig, ModelConfig
from modulm.errors import ConfigError
from modulm.frontend.spans import Spans, spans_to
from modulm.frontend.stat_loggers import logged_config
from modulm.sampling_params import SamplingParams
from modulm.types import FinishedRequestStats, IterationStats, PromptTokenStats

pytest.importorskip("opentelemetry.sdk", reason="the extra otlp is not installed")
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ENDED = {
    "finish_reason": "length",
    "request_id": "7-0",
    "arrival_time": 1_700_000_000.5,
    "e2e_latency": 2.0,
    "first_token_latency": 0.75,
    "num_prompt_tokens": 11,
    "num_generation_tokens": 5,
    "num_cached_tokens": 0,
    "num_preemptions": 0,
    "max_tokens_param": 6,
    "queued_time": 0.25,
    "prefill_time": 0.5,
    "decode_time": 1.125,
    "inference_time": 1.625,
    "mean_time_per_output_token": 0.25,
    "params": SamplingParams(temperature=0.5, top_p=0.9, n=2),
}
SETTINGS = logged_config(
    EngineConfig(model="m", served_model_name="small"),
    ModelConfig(name="m", hf={}, architectures=[], max_model_len=8),
)


@pytest.fixture
def spans():
    """Return the spans of requests that ended with these fields."""
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    logger = Spans(SETTINGS, 0, SimpleSpanProcessor(exporter))

    def record(*fields):
        ended = [FinishedRequestStats(**{**ENDED, **each}) for each in fields]
        logger.record(None, IterationStats(prompt_token_stats=PromptTokenStats(), finished_requests=ended))
        return exporter.get_finished_spans()

    return record


def test_a_span_has_vllms_name_times_and_attributes(spans):
    (span,) = spans({"trace_headers": {"x-request-id": "mine"}})
    assert (span.name, span.kind.name, span.parent) == ("llm_request", "SERVER", None)
    assert (span.start_time, span.end_time) == (1_700_000_000_500_000_000, 1_700_000_002_500_000_000)
    assert span.resource.attributes["service.name"] == "modulm" and span.status.is_ok
    assert dict(span.attributes) == {
        "gen_ai.request.id": "mine",
        "gen_ai.request.max_tokens": 6,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.n": 2,
        "gen_ai.response.model": "small",
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.prompt_tokens": 11,
        "gen_ai.usage.completion_tokens": 5,
        "gen_ai.latency.e2e": 2.0,
        "gen_ai.latency.time_to_first_token": 0.75,
        "gen_ai.latency.time_in_queue": 0.25,
        "gen_ai.latency.time_in_model_prefill": 0.5,
        "gen_ai.latency.time_in_model_decode": 1.125,
        "gen_ai.latency.time_in_model_inference": 1.625,
    }


def test_a_span_belongs_where_the_client_said(spans):
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine"}
    (span,) = spans({"trace_headers": headers})
    assert f"{span.context.trace_id:032x}" == TRACE and f"{span.parent.span_id:016x}" == PARENT


def test_a_parent_that_is_none_of_it_is_passed_over_and_a_failure_is_marked(spans):
    (span,) = spans({"trace_headers": {"traceparent": "nonsense"}, "finish_reason": "error"})
    assert span.parent is None and span.status.status_code.name == "ERROR"
    assert span.attributes["gen_ai.request.id"] == "7-0"


def test_requests_without_headers_get_none(spans):
    assert spans({"trace_headers": None}, {"trace_headers": {}}, {})[0].attributes["gen_ai.request.id"] == "7-0"
    assert len(spans({})) == 1


def test_what_is_missing_or_unknown_is_said(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "carrier-pigeon")
    with pytest.raises(ConfigError, match="'carrier-pigeon' is unknown. There are: grpc, http/protobuf"):
        spans_to("http://localhost:4317")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match="pip install 'modulm-core\\[otlp\\]'"):
        spans_to("http://localhost:4318")


class Collector(BaseHTTPRequestHandler):
    """Keeps what is sent to it."""

    bodies, come = [], threading.Event()

    def do_POST(self):
        self.bodies.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.end_headers()
        self.come.set()

    def log_message(self, *args): ...


def test_spans_reach_a_collector(monkeypatch):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra otlp is not installed")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    server = HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    logger = spans_to(f"http://127.0.0.1:{server.server_port}/v1/traces")(SETTINGS, 0)
    ended = FinishedRequestStats(**ENDED, trace_headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    logger.record(None, IterationStats(prompt_token_stats=PromptTokenStats(), finished_requests=[ended]))
    assert Collector.come.wait(20)
    server.shutdown()
    server.server_close()
    ((path, body),) = Collector.bodies
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    (span,) = resource.scope_spans[0].spans
    assert (path, span.name, span.trace_id.hex(), span.parent_span_id.hex()) == (
        "/v1/traces",
        "llm_request",
        TRACE,
        PARENT,
    )
    assert span.end_time_unix_nano - span.start_time_unix_nano == 2_000_000_000
