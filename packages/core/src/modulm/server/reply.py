"""A generation's answer on the wire: one JSON body, or server-sent events, one write per step of the engine.

The status waits for the first output, so that a refusal is a status and not an event. A socket that does not take more
holds back only its own stream. Knows ASGI; what is written comes from a `Writer` (`completions.py`, `chat.py`).
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from modulm.errors import RequestError
from modulm.frontend.parse import Parse
from modulm.log import logger
from modulm.sampling_params import SamplingParams
from modulm.server.errors import error_event
from modulm.server.generation import Numbered, outputs, until_closed
from modulm.server.schema.sampling import GenerationRequest, Usage
from modulm.server.serving import Serving, serving_of

_log = logger("server")
_DONE = b"data: [DONE]\n\n"
_EVENTS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
CLIENT_GONE = 499
"""nginx's status for a client that has closed its connection: only middleware and logs see it."""
Prepare = Callable[[], Sequence[Any]]
"""Turns the body into prompts for the engine; may block, so that it is called in a thread."""


class Writer(ABC):
    """Makes JSON of outputs, and counts tokens.

    Args:
        reply_id: The answer's id.
        kind: What chunks call themselves.
    """

    def __init__(self, serving: Serving, body: GenerationRequest, reply_id: str, kind: str) -> None:
        self.serving = serving
        self.body = body
        self.reply_id = reply_id
        self.as_ids = bool(body.return_tokens_as_token_ids) or serving.options.return_tokens_as_token_ids
        self._tells_usage = body.has_usage or serving.options.enable_force_include_usage
        self._num_prompt: dict[int, int] = {}
        self._num_cached: dict[int, int] = {}
        self._num_completion = 0
        self.created = int(time.time())
        head = {"id": reply_id, "object": kind, "created": self.created, "model": serving.model_name}
        self._head = b"data: " + msgspec.json.encode(head)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if self._tells_usage else b"]}\n\n"

    @abstractmethod
    def choices(self, number: int, output: Any) -> list[msgspec.Struct]:
        """Return what an output adds to a stream: a choice for each event."""

    @abstractmethod
    def take(self, number: int, output: Any) -> None:
        """Keep a finished output for `whole`."""

    @abstractmethod
    def whole(self) -> msgspec.Struct:
        """Return the answer to a request that is no stream."""

    def events(self, batch: list[Numbered]) -> bytes:
        """Return the events that tell of a batch; may be empty."""
        choices = []
        for number, output in batch:
            choices += self.choices(number, output)
            self.count(number, output)
        tail = self._tail
        if self._tells_usage and self.body.has_running_usage:
            tail = b'],"usage":' + msgspec.json.encode(self.usage()) + b"}\n\n"
        parts = [part for choice in choices for part in (self._head, msgspec.json.encode(choice), tail)]
        if parts:
            parts[2] = b"]" + self.once(batch) + tail[1:]
        return b"".join(parts)

    def once(self, batch: list[Numbered]) -> bytes:
        """Return fields, each behind a comma, that only one chunk has: the first of these."""
        return b""

    def answer(self, outputs: list[Numbered]) -> bytes:
        """Return the whole answer, of the finished output of each prompt."""
        for number, output in outputs:
            self.count(number, output)
            self.take(number, output)
        return msgspec.json.encode(self.whole())

    def end(self) -> bytes:
        """Return what comes after the last chunk."""
        if not self._tells_usage:
            return _DONE
        return self._head + b'],"usage":' + msgspec.json.encode(self.usage()) + b"}\n\n" + _DONE

    def count(self, number: int, output: Any) -> None:
        """Take an output into the usage."""
        self._num_prompt[number] = len(output.prompt_token_ids)
        self._num_cached[number] = output.num_cached_tokens or 0
        self._num_completion += sum([len(completion.token_ids) for completion in output.outputs])

    def usage(self) -> Usage:
        """Return the usage so far."""
        prompt, completion = sum(self._num_prompt.values()), self._num_completion
        usage = Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)
        if self.serving.options.enable_prompt_tokens_details:
            usage.prompt_tokens_details = {"cached_tokens": sum(self._num_cached.values())}
        return usage


class Generation(Response):
    """The response to a completion or chat request: it generates while it is sent. `prepare` may be the prompts."""

    def __init__(
        self,
        request: Request,
        body: GenerationRequest,
        writer: Writer,
        params: SamplingParams,
        prepare: Prepare | Sequence[Any],
        num_prompts: int = 1,
        parse: Parse | None = None,
    ) -> None:
        self.background = None
        self.status_code = 200
        self._serving = serving_of(request)
        self._key = request.scope.get("modulm.key")
        self._asked = request.headers
        self._body = body
        self._writer = writer
        self._params = params
        self._prepare = prepare
        self._parse = parse
        self._num_seqs = num_prompts * params.n
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, unless the client goes first."""
        try:
            await until_closed(receive, self._answer(send))
            if not self._started:  # the client is gone, but middleware waits for a response
                await send({"type": "http.response.start", "status": CLIENT_GONE, "headers": []})
                await send({"type": "http.response.body", "body": b""})
        except RequestError as error:
            parse = self._parse
            if parse is not None and (parse.forced or parse.is_strict) and error.parameter == "structured_outputs":
                error = await asyncio.to_thread(self._serving.llm.parsers.call_forms.blamed, parse, error)
            field = self._body.field_of(error.parameter)
            message = str(error) if field is None else str(error).replace(str(error.parameter), field, 1)
            raise RequestError(message, parameter=field) from error

    async def _answer(self, send: Send) -> None:
        with self._serving.admission.place(self._key, self._num_seqs):
            prompts = await asyncio.to_thread(self._prepare) if callable(self._prepare) else self._prepare
            self._log(prompts)
            body = self._body
            options: dict[str, Any] = {"priority": body.priority or 0, "cache_salt": body.cache_salt}
            options |= {"trace_headers": self._asked, "parse": self._parse}
            stream = outputs(self._serving.llm, prompts, self._params, request_id=self._writer.reply_id, **options)
            async with aclosing(stream):
                await (self._stream(send, stream) if body.stream else self._whole(send, stream))

    async def _whole(self, send: Send, stream: AsyncGenerator[list[Numbered], None]) -> None:
        last: list[Numbered] = []
        async for batch in stream:
            last += batch
        answer = await self._written(self._writer.answer, last)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
        self._started = True
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _stream(self, send: Send, stream: AsyncGenerator[list[Numbered], None]) -> None:
        try:
            async for batch in stream:
                events = await self._written(self._writer.events, batch)
                if not self._started:
                    self._started = True
                    await send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
                if events:
                    await send({"type": "http.response.body", "body": events, "more_body": True})
            end = self._writer.end()
        except Exception as error:
            if not self._started:
                raise
            _log.exception("Stream %s ends early", self._writer.reply_id)
            end = error_event(error) + _DONE
        await send({"type": "http.response.body", "body": end})

    def _log(self, prompts: Sequence[Any]) -> None:
        if self._serving.options.enable_log_requests:
            sizes = [len(prompt["prompt_token_ids"]) for prompt in prompts]
            _log.info("Request %s: prompt tokens %s, %s", self._writer.reply_id, sizes, self._params)

    async def _written(self, write: Callable[[list[Numbered]], bytes], batch: list[Numbered]) -> bytes:
        """Write outputs; in a thread where they tell of prompts, which takes long, so that other streams go on."""
        if self._params.prompt_logprobs is not None and any(output.prompt_logprobs for _, output in batch):
            return await asyncio.to_thread(write, batch)
        return write(batch)
