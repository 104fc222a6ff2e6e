"""One completion under way: the engine's outputs -> text, cut at stop strings -> what its client is told.

Knows ids, text and log-probabilities of one sequence; not its siblings (`reply.py`), not the engine.
"""

from collections.abc import Sequence

from modulm.frontend.detokenize import detokenizer
from modulm.frontend.logprobs import position_logprobs
from modulm.frontend.parse import ResponseReader
from modulm.frontend.stops import StopStrings
from modulm.frontend.tokenizer import Tokenizer
from modulm.interfaces.parsers import Event
from modulm.outputs import CompletionOutput, SampleLogprobs
from modulm.sampling_params import RequestOutputKind
from modulm.types import Adapter, Delta, Request, StepOutput, TokenLogprobs


class Completion:
    """What came of one sequence.

    Attributes:
        index: Its number among the completions of the prompt.
        finish_reason: None while it goes on.
    """

    def __init__(
        self, request: Request, index: int, tokenizer: Tokenizer, reader: ResponseReader | None = None
    ) -> None:
        params = request.params
        self.index = index
        self.finish_reason: str | None = None
        self._request = request
        self._tokenizer = tokenizer
        self._reader = reader
        if params.detokenize:
            self._detokenizer = detokenizer(
                tokenizer,
                prompt_token_ids=request.prompt_token_ids,
                skip_special_tokens=params.skip_special_tokens,
                spaces_between_special_tokens=params.spaces_between_special_tokens,
                kept=() if reader is None else reader.kept,
            )
        assert isinstance(params.stop, list)
        self._stops = StopStrings(params.stop, include_in_output=params.include_stop_str_in_output)
        self._stop_reason: int | str | None = None
        self._num_tokens = 0
        self._cumulative_logprob = 0.0 if params.logprobs is not None else None
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: SampleLogprobs = []
        self._events: list[Event] = []

    def take(self, output: StepOutput) -> Delta:
        """Return what one output of the engine adds. Nothing may follow once the delta has a finish reason.

        Tokens after the one that completes a stop string are dropped, so that the result does not depend on how many
        tokens a step brings.
        """
        delta = Delta(request_id=output.request_id, index=self.index, error=output.error)
        self._take_tokens(output, delta)
        if self._stops.matched is None and output.finish_reason is not None:
            self._take_end(output, delta)
        if self._stops.matched is not None:
            delta.finish_reason, delta.stop_reason = "stop", self._stops.matched
        if self._reader is not None:
            if delta.finish_reason is not None:
                self._reader.finish(delta.finish_reason)
            self._events += self._reader.events
            self._reader.events = []
        if output.logprobs is not None:
            delta.logprobs = output.logprobs[: len(delta.token_ids)]
        self._add(delta)
        return delta

    def output(self, kind: RequestOutputKind, adapter: Adapter | None) -> CompletionOutput:
        """Return everything so far; for `DELTA` only what came since the last call."""
        wants_logprobs = self._request.params.logprobs is not None
        output = CompletionOutput(
            index=self.index,
            text="".join(self._texts),
            token_ids=self._token_ids,
            cumulative_logprob=self._cumulative_logprob,
            logprobs=self._logprobs if wants_logprobs else None,
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
            lora_request=adapter,
            events=None if self._reader is None else self._events,
        )
        if kind is RequestOutputKind.DELTA:
            self._texts, self._token_ids, self._logprobs, self._events = [], [], [], []
        else:
            self._texts = [output.text]
            self._token_ids, self._logprobs = list(self._token_ids), list(self._logprobs)
            self._events = list(self._events)
        return output

    def _take_tokens(self, output: StepOutput, delta: Delta) -> None:
        """Fill in ids and text, up to a stop string."""
        params = self._request.params
        ends_output = output.stop_token_id is not None and not params.include_stop_str_in_output
        last = len(output.token_ids) - 1
        for position, token_id in enumerate(output.token_ids):
            self._num_tokens += 1
            delta.token_ids.append(token_id)
            if params.detokenize and not (ends_output and position == last):
                text = self._detokenizer.step(token_id)
                if self._reader is not None:
                    text = self._reader.think(text, [token_id])
                delta.text += self._answered(self._watched(text), [token_id])
            if self._stops.matched is not None:
                return

    def _take_end(self, output: StepOutput, delta: Delta) -> None:
        """Fill in the reason and what was held back; that may itself complete a stop string."""
        assert output.finish_reason is not None
        delta.finish_reason = output.finish_reason
        # An end-of-sequence id is no news; one that the client listed is.
        if output.stop_token_id in (self._request.params.stop_token_ids or ()):
            delta.stop_reason = output.stop_token_id
        if self._request.params.detokenize:
            tail = self._detokenizer.finish()
            if self._reader is not None:
                tail = self._reader.think(tail) + self._reader.end_thinking(delta.finish_reason)
            delta.text += self._answered(self._watched(tail) + self._stops.flush())

    def _watched(self, text: str) -> str:
        return self._stops.feed(text, armed=self._num_tokens > self._request.params.min_tokens)

    def _answered(self, text: str, token_ids: Sequence[int] = ()) -> str:
        if self._reader is not None:
            self._reader.answer(text, token_ids)
        return text

    def _add(self, delta: Delta) -> None:
        self._texts.append(delta.text)
        self._token_ids += delta.token_ids
        self.finish_reason, self._stop_reason = delta.finish_reason, delta.stop_reason
        for position in delta.logprobs or ():
            self._add_logprobs(position)

    def _add_logprobs(self, position: TokenLogprobs) -> None:
        text_of = self._tokenizer.token_text if self._request.params.detokenize else None
        self._logprobs.append(position_logprobs(position, text_of))
        if self._cumulative_logprob is not None:
            self._cumulative_logprob += position.logprob
