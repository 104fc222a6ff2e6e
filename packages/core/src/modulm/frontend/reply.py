"""One client's request under way: its completions put together into `RequestOutput`s, as often as it asked for them.

Knows the client's label and parameters; not the engine, whose ids it only passes on.
"""

from collections.abc import Callable

from modulm.frontend.completion import Completion
from modulm.frontend.logprobs import prompt_logprobs
from modulm.frontend.parse import ResponseReader
from modulm.frontend.prompt import Prompt
from modulm.frontend.tokenizer import Tokenizer
from modulm.outputs import PromptLogprobs, RequestOutput
from modulm.sampling_params import RequestOutputKind
from modulm.types import Delta, Request, StepOutput, TokenLogprobs


class Reply:
    """What is told to one client.

    Attributes:
        label: The client's id for the request; not necessarily unique.
        completions: By the engine's request id, in the order of their index.
    """

    def __init__(
        self,
        label: str,
        prompt: Prompt,
        requests: list[Request],
        tokenizer: Tokenizer,
        make_reader: Callable[[], ResponseReader] | None = None,
    ) -> None:
        self.label = label
        self.completions = {
            request.request_id: Completion(request, index, tokenizer, make_reader and make_reader())
            for index, request in enumerate(requests)
        }
        self._text = prompt.text
        self._request = requests[0]
        self._tokenizer = tokenizer
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._num_cached_tokens = 0
        self._news: dict[int, Completion] = {}
        self._error: str | None = None
        self._refused: str | None = None
        self._over = False

    @property
    def finished(self) -> bool:
        """Whether every completion has ended."""
        return all([completion.finish_reason is not None for completion in self.completions.values()])

    def live_ids(self) -> list[str]:
        """Return the engine's ids of the completions that go on."""
        return [request_id for request_id, each in self.completions.items() if each.finish_reason is None]

    def take(self, output: StepOutput) -> Delta:
        """Return what one output of the engine adds to its completion."""
        completion = self.completions[output.request_id]
        if completion.index == 0:
            self._num_cached_tokens = max(self._num_cached_tokens, output.num_cached_tokens)
            if output.prompt_logprobs is not None:
                self._prompt_logprobs += output.prompt_logprobs
        delta = completion.take(output)
        self._error = self._error or delta.error
        self._refused = self._refused or output.refused
        if delta.token_ids or delta.finish_reason:
            self._news[completion.index] = completion
        return delta

    def emit(self) -> RequestOutput | None:
        """Return what the client is to be told now, or None when that is nothing."""
        kind, finished = self._request.params.output_kind, self.finished
        if self._over or (kind is RequestOutputKind.FINAL_ONLY and not finished):
            return None
        told = dict(enumerate(self.completions.values())) if kind is RequestOutputKind.FINAL_ONLY else self._news
        if not told:
            return None
        self._over = finished
        output = RequestOutput(
            request_id=self.label,
            prompt=self._text,
            prompt_token_ids=self._request.prompt_token_ids,
            outputs=[told[index].output(kind, self._request.adapter) for index in sorted(told)],
            finished=finished,
            prompt_logprobs=self._emit_prompt_logprobs(kind) if 0 in told else None,
            num_cached_tokens=self._num_cached_tokens,
            lora_request=self._request.adapter,
            error=self._error,
            refused=self._refused,
        )
        self._news = {}
        return output

    def _emit_prompt_logprobs(self, kind: RequestOutputKind) -> PromptLogprobs | None:
        """Streams that tell news only are told once."""
        params, positions = self._request.params, self._prompt_logprobs
        if params.prompt_logprobs is None or positions is _TOLD:
            return None
        if kind is RequestOutputKind.DELTA:
            self._prompt_logprobs = _TOLD
        return prompt_logprobs(positions, self._tokenizer.token_text if params.detokenize else None)


_TOLD: list[TokenLogprobs] = []
