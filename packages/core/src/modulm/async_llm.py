"""`AsyncLLM`: the door for servers. The engine runs in a process of its own, and coroutines read its outputs.

Knows prompts and outputs, as `llm.py` does; the work is done behind `launch.py` and `frontend/streams.py`.
"""

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from modulm.config import EngineConfig, ModelConfig
from modulm.frontend.parse import Parse
from modulm.frontend.stat_loggers import Factory, StatLoggers, logged_config
from modulm.frontend.streams import Streams
from modulm.launch import Serving, explained, launch_thread, name_plugins
from modulm.outputs import Health, RequestOutput
from modulm.plugins import discovery
from modulm.plugins.bootstrap import load_records
from modulm.plugins.families import STAT_LOGGER
from modulm.plugins.report import as_objects
from modulm.sampling_params import SamplingParams
from modulm.transport.inprocess import ThreadClient
from modulm.types import EngineStats

_DRAIN_STEP_S = 0.02
_LAST_OUTPUTS_S = 5.0


class AsyncLLM:
    """A model loaded for serving. Built by `from_config`; its calls may come from any event loop.

    Attributes:
        config: As the platform completed it.
        model_config: The model as its checkpoint declares it.
        tokenizer: The model's tokenizer.
        parsers: What reads responses where a request wants that.
        stat_loggers: Told of every step; they may have routes for a server, and hear from it of refusals.
    """

    @classmethod
    def from_config(
        cls,
        config: EngineConfig,
        *,
        in_process: bool = False,
        engine_restarts: int = 3,
        stat_loggers: Sequence[Factory] = (),
        disable_log_stats: bool = False,
        otlp_traces_endpoint: str | None = None,
    ) -> "AsyncLLM":
        """Start an engine and return when it is ready; blocks meanwhile.

        Args:
            config: What to load.
            in_process: Run the engine in a thread of this process.
            engine_restarts: How often in a row an engine process that ended by itself is started again.
            stat_loggers: Classes, or functions that make loggers (`interfaces/metrics.py`), besides those of plugins.
            disable_log_stats: Write no line of statistics every ten seconds.
            otlp_traces_endpoint: An OpenTelemetry collector that gets a span of every request.

        Raises `ConfigError`, `PluginError` or `CheckpointError`; nothing keeps running then.
        """
        is_read = not disable_log_stats or any(record.usable for record in discovery.records(STAT_LOGGER))
        reports = is_read or bool(stat_loggers) or otlp_traces_endpoint is not None
        if in_process:
            serving = launch_thread(config, reports=reports)
        else:
            from modulm.engine_process import launch_process

            serving = launch_process(config, reports=reports, restarts=engine_restarts)
        try:
            loggers = StatLoggers(
                logged_config(
                    serving.config, serving.model, serving.ready.num_kv_blocks, lambda: _plugin_records(serving)
                ),
                factories=stat_loggers,
                enable_default_loggers=not disable_log_stats,
                otlp_traces_endpoint=otlp_traces_endpoint,
            )
        except BaseException:
            serving.frontend.shutdown()
            raise
        name_plugins("front end")
        return cls(serving, loggers)

    def __init__(self, serving: Serving, stat_loggers: StatLoggers) -> None:
        self._serving = serving
        self.stat_loggers = stat_loggers
        self._frontend = serving.frontend
        self.config: EngineConfig = serving.config
        self.model_config: ModelConfig = serving.model
        self.tokenizer = serving.frontend.tokenizer
        self.parsers = serving.frontend.parsers
        self._streams = Streams(serving.frontend, serving.client, stat_loggers.record)

    def default_params(self) -> SamplingParams:
        """Return the parameters that the checkpoint's generation config recommends."""
        return self._frontend.default_params()

    def render(self, messages: Any, **options: Any) -> dict[str, Any]:
        """Return a conversation as a prompt for `generate`; blocks while it is tokenised, so call it in a thread."""
        return self._frontend.render(messages, **options)

    async def generate(
        self,
        prompt: Any,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        trace_headers: Mapping[str, str] | None = None,
        parse: Parse | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Yield outputs as `params.output_kind` says; the last one is `finished`.

        Closing the iterator, or cancelling the task that reads it, aborts the request before the engine's next step.
        `break` out of `async for` closes it only when Python collects it: use `contextlib.aclosing`.
        An engine that fails gives a last output with finish reason "error" and `error` set. `trace_headers` may be all
        headers of an HTTP request; those of W3C trace contexts tell where its span belongs. With `parse`, outputs have
        `events`: what this engine's parsers find.

        Raises, at the first step: `RequestError` when the request is refused, `EngineError` when the engine takes
        none (then `retry_after_s` may say when to ask again).
        """
        span = self._span_headers(trace_headers or {}, request_id) if self.stat_loggers.makes_spans else None
        stream = await self._streams.open(
            prompt, params, priority=priority, cache_salt=cache_salt, trace_headers=span, parse=parse
        )
        try:
            finished = False
            while not finished:
                output = await stream.outputs.get()
                output.request_id = request_id if request_id is not None else output.request_id
                finished = output.finished
                yield output
        finally:
            self._streams.close(stream)

    def health(self) -> Health:
        """Say how the engine is, without asking it."""
        health = self._serving.client.health()
        if self._streams.refusal is not None:
            return dataclasses.replace(health, ready=False, reason=self._streams.refusal)
        return health

    def describe(self) -> dict[str, Any]:
        """Return what this engine is made of, as `LLM.explain` does."""
        made = self._serving.ready.explained
        return {**made, "choices": made["choices"] + explained(self.parsers.choices)}

    def plugin_records(self) -> list[dict[str, Any]]:
        """Return the load records as plain data, each with the `process` it is of: "engine" or "frontend".

        An engine in a thread of this process shares them all; they count as the engine's.
        """
        return _plugin_records(self._serving)

    def stats(self) -> EngineStats:
        """Return the engine's report; blocks until it answers. With stat loggers, the last that they were given."""
        return self._streams.stats()

    async def drain(self, timeout_s: float) -> None:
        """Take no more requests and wait for those under way; abort what is left after `timeout_s`."""
        self._streams.refuse("This engine is being shut down: it takes no more requests. Ask another one.")
        if not await self._emptied(timeout_s):
            self._streams.abort_all()
            await self._emptied(_LAST_OUTPUTS_S)

    async def _emptied(self, timeout_s: float) -> bool:
        """Wait until no request is under way; whether that came about in time."""
        deadline = time.monotonic() + timeout_s
        while self._streams.num_open and time.monotonic() < deadline:
            await asyncio.sleep(_DRAIN_STEP_S)
        return not self._streams.num_open

    def shutdown(self) -> None:
        """End the engine; may be called twice. Requests under way get a last output, "abort"."""
        self._streams.shutdown()
        self.stat_loggers.close()

    def _span_headers(self, headers: Mapping[str, str], request_id: str | None) -> dict[str, str]:
        found = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        return found if request_id is None else {**found, "x-request-id": request_id}


def _plugin_records(serving: Serving) -> list[dict[str, Any]]:
    own = as_objects(load_records())
    if isinstance(serving.client, ThreadClient):
        return [{**record, "process": "engine"} for record in own]
    engines = [{**record, "process": "engine"} for record in serving.ready.plugins]
    return engines + [{**record, "process": "frontend"} for record in own]
