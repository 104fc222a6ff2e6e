"""The engine's heart: drain messages, schedule, execute, apply, emit.

Joins scheduler and executor and sees to it that every request gets its reply, whatever fails. Knows no text and no
tensors. Where next: `scheduler.py` for who runs, `interfaces/executor.py` for who computes.
"""

from collections import deque

from modulm.config import EngineConfig
from modulm.engine.admit import Limits, refusal
from modulm.engine.grammar import Grammars, Preparation
from modulm.engine.scheduler import Scheduler
from modulm.errors import EngineError, RequestError
from modulm.interfaces.executor import Executor
from modulm.log import logger
from modulm.types import EngineStats, FinishReason, Plan, Request, StepOutput

_log = logger("engine")
_MOMENT_S = 0.005


class Engine:
    """Runs requests on an executor.

    `submit`, `abort` and `has_work` may be called from any thread; `step`, `stats` and `shutdown` from one.

    Args:
        config: Budgets and policies.
        executor: Ready to execute; belongs to the engine from here on.
        max_model_len: Longest sequence, prompt and output together; None takes the configuration's.
        grammars: Forms that outputs may have; None refuses requests that ask for one.
    """

    def __init__(
        self,
        config: EngineConfig,
        executor: Executor,
        *,
        max_model_len: int | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        self._executor = executor
        self._grammars = grammars
        self._prepared: dict[str, tuple[Request, Preparation]] = {}
        """Requests whose form is being compiled."""
        self._scheduler = Scheduler(config, executor.kv_layout())
        self._limits = Limits(
            max_model_len=max_model_len or config.max_model_len,
            max_num_batched_tokens=config.tokens_per_step,
            chunked_prefill=config.enable_chunked_prefill,
        )
        self._inbox: deque[Request | tuple[list[str], FinishReason]] = deque()
        self._outbox: list[StepOutput] = []
        self._closed = False

    def submit(self, request: Request) -> None:
        """Hand over a request. Whatever comes of it, one output with a `finish_reason` will follow."""
        self._inbox.append(request)

    def abort(self, request_ids: list[str], reason: FinishReason = "abort") -> None:
        """End requests, each with a last output of that reason; ids unknown or ended are passed over."""
        self._inbox.append((list(request_ids), reason))

    def has_work(self) -> bool:
        """Whether `step` has anything to do or to say."""
        return bool(self._inbox or self._outbox or self._prepared or self._scheduler.has_work())

    def step(self) -> list[StepOutput]:
        """Run one step and return what it brought, to whom."""
        self._drain()
        self._admit_prepared()
        if self._scheduler.has_work() and not self._closed:
            plan = self._scheduler.schedule()
            entries, grammars = self._scheduler.constrained()
            if self._grammars is not None and entries:
                drafts = [plan.scheduled[entry].draft_token_ids for entry in entries]
                plan.masks = self._grammars.fill(entries, grammars, drafts)
            self._outbox += self._execute(plan)
        return self._emit()

    def _drain(self) -> None:
        while self._inbox:
            message = self._inbox.popleft()
            if isinstance(message, Request):
                self._take(message)
            else:
                self._abort(*message)

    def _take(self, request: Request) -> None:
        reason = self._refusal(request)
        form, thinking = request.params.structured_outputs, request.thinking
        if reason is not None:
            self._outbox.append(StepOutput(request_id=request.request_id, finish_reason="error", error=reason))
        elif form is None and thinking is None:
            self._scheduler.add(request)
        elif self._grammars is not None:
            self._prepared[request.request_id] = (request, self._grammars.prepare(form, thinking))
        else:
            why = "structured_outputs is refused: this engine was built without it."
            self._outbox.append(_refused(request, RequestError(why)))

    def _admit_prepared(self) -> None:
        """Queue requests whose form is ready; wait a moment for one when there is nothing else to do."""
        if self._prepared and not self._outbox and not self._scheduler.has_work():
            next(iter(self._prepared.values()))[1].wait(_MOMENT_S)
        for request, preparation in [each for each in self._prepared.values() if each[1].is_over()]:
            del self._prepared[request.request_id]
            try:
                self._scheduler.add(request, preparation.result())
            except RequestError as error:
                self._outbox.append(_refused(request, error))

    def _abort(self, request_ids: list[str], reason: FinishReason) -> None:
        for request_id in request_ids:
            if self._prepared.pop(request_id, None) is not None:
                self._outbox.append(StepOutput(request_id=request_id, finish_reason=reason))
        self._outbox += self._scheduler.abort(request_ids, reason)

    def _refusal(self, request: Request) -> str | None:
        if self._closed:
            return "The engine has been shut down and takes no requests. Start a new one."
        if request.request_id in self._scheduler or request.request_id in self._prepared:
            return (
                f"Request id {request.request_id!r} belongs to a request that has not ended, which goes on. "
                "Give every request an id of its own."
            )
        return refusal(request, self._limits, self._scheduler.kv)

    def _execute(self, plan: Plan) -> list[StepOutput]:
        try:
            result = self._executor.execute(plan)
            if plan.masks is not None:
                plan.masks.wait()  # whatever the executor did: a grammar is not told of tokens while it fills a mask
        except EngineError as error:
            _log.exception("A step of %d sequences failed", len(plan.scheduled))
            return self._scheduler.fail(plan, f"The step failed: {error}")
        except BaseException as error:
            # Not ours to judge (a bug, Ctrl-C), but the accounts must hold if the caller steps again.
            self._outbox += self._scheduler.fail(plan, f"The step was broken off: {error!r}")
            raise
        return self._scheduler.apply(plan, result)

    def _emit(self) -> list[StepOutput]:
        outputs, self._outbox = self._outbox, []
        return outputs

    def stats(self) -> EngineStats:
        """Return what happened since the last call, and how things stand; for one reader."""
        return self._scheduler.stats()

    def shutdown(self) -> None:
        """Free the executor; may be called twice. Requests that have not ended get "abort" from the next `step`."""
        self._drain()
        self._closed = True
        self._abort(list(self._prepared), "abort")
        self._outbox += self._scheduler.close()
        if self._grammars is not None:
            self._grammars.shutdown()
        self._executor.shutdown()


def _refused(request: Request, error: RequestError) -> StepOutput:
    parameter = error.parameter or "structured_outputs"
    return StepOutput(request_id=request.request_id, finish_reason="error", error=str(error), refused=parameter)
