"""The front end's door: prompts go in by `submit`, text comes out of `poll`.

A client's request becomes one engine request per completion, under ids of our own: a client's id is a label, so it may
be used again at once. Knows text and ids; the engine only through its client (`transport/client.py`). Where to look
next: `admit.py` for what is refused, `completion.py` for how ids become text.
"""

import itertools
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from modulm.config import EngineConfig, ModelConfig
from modulm.errors import ConfigError, EngineError, RequestError
from modulm.frontend import defaults
from modulm.frontend.admit import Admission, Limits
from modulm.frontend.parse import Parse, Parsers
from modulm.frontend.prompt import check_salt, read_prompt
from modulm.frontend.reply import Reply
from modulm.frontend.tokenizer import Tokenizer
from modulm.interfaces.logits import LogitsProcessor
from modulm.outputs import RequestOutput
from modulm.sampling_params import SamplingParams
from modulm.transport.client import EngineClient
from modulm.types import Adapter, EngineStats, StepOutput

if TYPE_CHECKING:
    from modulm.frontend.render import Renderer


class Frontend:
    """Requests under way at one engine. `submit` and `abort` from any thread, `poll` from one.

    Args:
        generation_config: Contents of generation_config.json, or nothing to leave its recommendations out.
        chat_template: A file or Jinja source to use instead of the model's; `config.chat_template` by default.
        logits_processors: Asked whether they accept each request's parameters.

    Attributes:
        tokenizer: The model's tokenizer.
        eos_token_ids: Ids that end an output unless a request ignores them.
        parsers: What reads responses where a request wants that.
    """

    def __init__(
        self,
        config: EngineConfig,
        model_config: ModelConfig,
        tokenizer: Tokenizer,
        generation_config: dict[str, Any],
        engine: EngineClient,
        *,
        chat_template: str | None = None,
        logits_processors: Sequence[type[LogitsProcessor]] = (),
    ) -> None:
        self.tokenizer = tokenizer
        self.eos_token_ids = defaults.eos_token_ids(tokenizer, generation_config, model_config)
        self._generation_config = generation_config
        self._engine = engine
        self._chat_template = chat_template or config.chat_template
        if self._chat_template is not None:
            _ = self._renderer  # a template of the user's is checked at once
        self.parsers = Parsers(config, tokenizer, lambda: self._renderer.templates)
        self._admission = Admission(
            Limits.of(config, model_config), tokenizer, self.eos_token_ids, tuple(logits_processors)
        )
        self._labels = itertools.count()
        # A garbage collection may abort a stream while its own thread is in here.
        self._lock = threading.RLock()
        self._live: dict[str, Reply] = {}
        """By the engine's request id."""
        self._aborted: list[Reply] = []
        """To be told at the next poll."""

    def default_params(self) -> SamplingParams:
        """Return the parameters that the checkpoint's generation config recommends."""
        return defaults.default_params(self._generation_config)

    @cached_property
    def _renderer(self) -> "Renderer":
        """Made for the first conversation: many processes see none, and Jinja takes a tenth of a start."""
        from modulm.frontend.render import Renderer, check_template, read_template

        template, asked = self.tokenizer.chat_template, self._chat_template
        if asked is not None:
            template = read_template(asked)
            try:
                check_template(template)
            except RequestError as error:
                raise ConfigError(f"chat_template={asked[:80]!r} cannot be used: {error}") from error
        return Renderer(template, self.tokenizer.named_tokens)

    def render(self, messages: Any, **options: Any) -> dict[str, Any]:
        """Return a conversation as a prompt for `submit`; the options are those of `Renderer.render`."""
        text = self._renderer.render(messages, **options)
        return {"prompt": text, "prompt_token_ids": self.tokenizer.encode(text, add_special_tokens=False)}

    def submit(
        self,
        prompt: Any,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        adapter: Adapter | None = None,
        trace_headers: Mapping[str, str] | None = None,
        parse: Parse | None = None,
    ) -> str:
        """Hand a prompt over and return the label its outputs will have: `request_id`, or a fresh one.

        `trace_headers` are those of the client's HTTP request that tell where its span belongs; None: it gets none.
        With `parse`, outputs have `events`. Raises `RequestError` when it is refused; nothing runs then.
        """
        params = params or self.default_params()
        read = read_prompt(prompt, self.tokenizer)
        check_salt(cache_salt)
        read.cache_salt = cache_salt or read.cache_salt
        params, thinking, make_reader = self.parsers.begin(parse, read, params)
        requests = self._admission.admit(read, params, priority=priority, adapter=adapter, thinking=thinking)
        label = request_id if request_id is not None else str(next(self._labels))
        if trace_headers is not None:
            for request in requests:
                request.trace_headers = {"x-request-id": label, **trace_headers}
        reply = Reply(label, read, requests, self.tokenizer, make_reader)
        with self._lock:
            self._live |= dict.fromkeys(reply.completions, reply)
        try:
            for request in requests:
                self._engine.submit(request)
        except Exception:
            self._forget(reply.completions)
            self._engine.abort(list(reply.completions))
            raise
        return label

    def abort(self, request_id: str) -> None:
        """End every request of this label; `poll` tells of it once more. Unknown labels are passed over."""
        with self._lock:
            replies = {id(reply): reply for reply in list(self._live.values()) if reply.label == request_id}
        for reply in replies.values():
            request_ids = reply.live_ids()
            self._forget(request_ids)
            self._engine.abort(request_ids)
            self._aborted.append(reply)

    def poll(self) -> list[RequestOutput]:
        """Let the engine run, and return what there is to tell. Raises `EngineError` when it is gone for good.

        Requests that are under way then get a last output with the error first.
        """
        try:
            outputs = self._engine.poll()
        except EngineError as error:
            if not self.has_work():
                raise
            outputs = [_ended(request_id, "error", str(error)) for request_id in list(self._live)]
        told = {id(reply): reply for output in outputs if (reply := self._take(output))}
        while self._aborted:
            reply = self._aborted.pop()
            for request_id in reply.live_ids():
                reply.take(_ended(request_id, "abort"))
            told[id(reply)] = reply
        return [output for reply in told.values() if (output := reply.emit())]

    def has_work(self) -> bool:
        """Whether `poll` has more to tell."""
        return bool(self._live or self._aborted)

    def stats(self) -> EngineStats:
        """Return the engine's report; for one reader."""
        return self._engine.stats()

    def shutdown(self) -> None:
        """End the engine; requests under way get "abort" from `poll`."""
        self._engine.shutdown()

    def _take(self, output: StepOutput) -> Reply | None:
        """Pass an output on; ids that we have done with (aborted, stopped) may still get some."""
        reply = self._live.get(output.request_id)
        if reply is None:
            return None
        delta = reply.take(output)
        if delta.finish_reason is not None:
            self._forget([output.request_id])
            if output.finish_reason is None:  # a stop string: the engine does not know that it is over
                self._engine.abort([output.request_id], "stop")
        return reply

    def _forget(self, request_ids: Iterable[str]) -> None:
        with self._lock:
            for request_id in request_ids:
                self._live.pop(request_id, None)


def _ended(request_id: str, reason: Any, error: str | None = None) -> StepOutput:
    return StepOutput(request_id=request_id, finish_reason=reason, error=error)
