"""Outputs for coroutines: one thread polls the engine and detokenises, and wakes each event loop once a step.

The counterpart of `mailboxes.py`, where whoever waits does the work. Knows labels and outputs; the requests themselves
are `frontend.py`'s. Labels are ours, so that clients may use an id twice.
"""

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from modulm.errors import EngineError
from modulm.frontend.box import Box
from modulm.frontend.frontend import Frontend
from modulm.log import logger
from modulm.outputs import CompletionOutput, RequestOutput
from modulm.sampling_params import RequestOutputKind, SamplingParams
from modulm.transport.client import TICK_S, WatchedClient
from modulm.types import EngineStats

_log = logger("frontend")
_TOKENIZING_THREADS = 2
_MOST_IDS = 8192
"""Longer prompts are checked in the threads that tokenise, though they are ids already."""
_ANSWER_S = 60.0


class Stream:
    """One request's outputs, on their way to the coroutine that reads them."""

    def __init__(self, label: str, loop: asyncio.AbstractEventLoop, params: SamplingParams | None) -> None:
        self.label = label
        self.loop = loop
        self.outputs = Box(joins=params is not None and params.output_kind is RequestOutputKind.DELTA)


class Streams:
    """The requests under way. `open` belongs to event loops, one or several; all else to any thread.

    Args:
        client: The front end's own; polled by nobody else.
        on_report: Takes the report of every step, where the client was asked for them; runs in the polling thread.

    Attributes:
        refusal: Why no more requests are taken; None while they are.
    """

    def __init__(
        self, frontend: Frontend, client: WatchedClient, on_report: Callable[[EngineStats], None] | None = None
    ) -> None:
        self._frontend = frontend
        self._client = client
        self._on_report = on_report
        self._labels = itertools.count()
        self._streams: dict[str, Stream] = {}
        self._last_report: EngineStats | None = None
        self._questions: deque[Future[EngineStats]] = deque()
        self.refusal: str | None = None
        self._ended = False
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._pool = ThreadPoolExecutor(_TOKENIZING_THREADS, thread_name_prefix="modulm-tokenize")
        self._thread = threading.Thread(target=self._run, name="modulm-poll", daemon=True)
        self._thread.start()

    @property
    def num_open(self) -> int:
        """Requests whose last output has not come yet."""
        return len(self._streams)

    async def open(self, prompt: Any, params: SamplingParams | None, **options: Any) -> Stream:
        """Submit a request (see `Frontend.submit`); `close` must follow. What takes long is done in another thread."""
        loop = asyncio.get_running_loop()
        if _is_short(prompt):
            return self._submit(loop, prompt, params, options)
        self._check_open()
        work = loop.run_in_executor(self._pool, self._submit, loop, prompt, params, options)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(self._close_when_done)
            raise

    def close(self, stream: Stream) -> None:
        """Read no more of it; a request that has not ended is aborted."""
        if self._streams.pop(stream.label, None) is not None:
            self._frontend.abort(stream.label)

    def refuse(self, reason: str) -> None:
        """Take no more requests."""
        self.refusal = reason

    def abort_all(self) -> None:
        """End every request; each gets a last output."""
        for label in list(self._streams):
            self._frontend.abort(label)

    def stats(self) -> EngineStats:
        """Return the engine's report, asked for by the polling thread; for one reader. Raises `EngineError`."""
        question: Future[EngineStats] = Future()
        with self._lock:
            if self._ended:
                self._check_open()
            self._questions.append(question)
        try:
            return question.result(_ANSWER_S)
        except TimeoutError as error:
            raise EngineError(f"The engine has not reported within {_ANSWER_S:.0f} s. Ask again.") from error

    def shutdown(self) -> None:
        """End the engine and the threads; may be called twice. Requests under way end with "abort"."""
        self.refuse("This engine has been shut down: it takes no requests. Start a new one.")
        self._closing.set()
        self._thread.join()
        self._pool.shutdown()

    def _submit(
        self, loop: asyncio.AbstractEventLoop, prompt: Any, params: SamplingParams | None, options: dict[str, Any]
    ) -> Stream:
        stream = Stream(str(next(self._labels)), loop, params)
        with self._lock:
            self._check_open()
            self._streams[stream.label] = stream
        try:
            self._frontend.submit(prompt, params, request_id=stream.label, **options)
        except BaseException:
            self._streams.pop(stream.label, None)
            raise
        return stream

    def _check_open(self) -> None:
        if self.refusal is not None:
            raise EngineError(self.refusal)

    def _close_when_done(self, work: "asyncio.Future[Stream]") -> None:
        if not work.cancelled() and work.exception() is None:
            self.close(work.result())

    def _run(self) -> None:
        while not self._closing.is_set():
            self._turn()
            self._pass_on_report()
            self._answer()
        try:
            self._frontend.shutdown()
            while self._frontend.has_work() and self._turn():
                pass
        finally:  # whatever happens, nobody waits for ever
            with self._lock:
                self._ended = True
                left = list(self._streams)
            self._deliver([_failed(label, "The engine has been shut down.") for label in left])
            self._answer()

    def _pass_on_report(self) -> None:
        if (report := self._client.report) is None or self._on_report is None:
            return
        self._last_report = report
        try:
            self._on_report(report)
        except Exception:  # statistics are not worth a request
            _log.exception("A report was lost")

    def _turn(self) -> bool:
        """Poll once and hand out what came; whether that went well."""
        try:
            self._deliver(self._frontend.poll())
        except EngineError as error:  # nobody was waiting for anything
            _log.debug("%s", error)
        except Exception:  # a bug: whoever waits must not wait for ever
            _log.exception("Polling failed; all %d requests under way end", self.num_open)
            labels = list(self._streams)
            self.abort_all()
            self._deliver([_failed(label, "The front end failed; the log says why.") for label in labels])
        else:
            return True
        self._closing.wait(TICK_S)
        return False

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        """Put outputs into their streams, by one call to each event loop."""
        batches: dict[asyncio.AbstractEventLoop, list[tuple[Box, RequestOutput]]] = {}
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is not None:
                batches.setdefault(stream.loop, []).append((stream.outputs, output))
                if output.finished:
                    self._streams.pop(stream.label, None)
        for loop, batch in batches.items():
            try:
                loop.call_soon_threadsafe(_put, batch)
            except RuntimeError:  # the loop is closed, and its readers are gone
                self._drop_loop(loop)

    def _drop_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        for stream in list(self._streams.values()):
            if stream.loop is loop:
                self.close(stream)

    def _answer(self) -> None:
        while self._questions:
            question = self._questions.popleft()
            try:
                question.set_result(self._last_report or self._frontend.stats())
            except Exception as error:
                question.set_exception(error)


def _is_short(prompt: Any) -> bool:
    """Whether a prompt is a few ids; text is not, however short."""
    token_ids = prompt.get("prompt_token_ids") if isinstance(prompt, Mapping) else prompt
    if token_ids is None or isinstance(token_ids, str):
        return False
    return not hasattr(token_ids, "__len__") or len(token_ids) <= _MOST_IDS


def _put(batch: list[tuple[Box, RequestOutput]]) -> None:
    for box, output in batch:
        box.put(output)


def _failed(label: str, error: str) -> RequestOutput:
    nothing = CompletionOutput(index=0, text="", token_ids=[], finish_reason="error")
    return RequestOutput(
        request_id=label, prompt=None, prompt_token_ids=[], outputs=[nothing], finished=True, error=error
    )
