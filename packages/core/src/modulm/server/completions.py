"""POST /v1/completions: prompts as texts or ids, each with `n` choices; echo, log-probabilities, streams.

Choice `i` of prompt `p` has the index `p * n + i`. Knows the wire; generation itself is `reply.py`'s.
"""

import reprlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from modulm.errors import RequestError
from modulm.frontend.detokenize import detokenizer
from modulm.outputs import CompletionOutput, PromptLogprobs, RequestOutput
from modulm.server.body import read_body
from modulm.server.errors import refused_field
from modulm.server.logprobs import TextOffsets, completion_logprobs, prompt_logprobs
from modulm.server.reply import Generation, Writer
from modulm.server.request_ids import reply_id
from modulm.server.schema.completions import Completion, CompletionChoice, CompletionLogprobs, CompletionRequest
from modulm.server.schema.sampling import sampling_params
from modulm.server.serving import Serving, serving_of

_QUICK = 1000
"""Characters that become ids sooner (0.3 ms) than another thread is asked for them while an engine computes."""


async def create_completion(request: Request) -> Response:
    """Answer a completion request."""
    serving = serving_of(request)
    body = await read_body(request, CompletionRequest)
    serving.check_model(body.model)
    prompts = listed(body.prompt)
    params = sampling_params(body, serving.default_params, **_changes(body))
    if body.best_of is not None and body.best_of != params.n:
        raise refused_field("best_of", body.best_of, f"it must equal n, which is {params.n}: all choices are returned")
    if body.stream and body.prompt_logprobs is not None:
        raise refused_field("prompt_logprobs", body.prompt_logprobs, "a stream does not tell them")
    prepare = partial(tokenized, serving, prompts, body.add_special_tokens is not False)
    is_quick = sum(len(prompt) for prompt in prompts if isinstance(prompt, str)) <= _QUICK
    writer = CompletionWriter(serving, body, reply_id(request, body.request_id, "cmpl-"), params.n)
    return Generation(request, body, writer, params, prepare() if is_quick else prepare, len(prompts))


def _changes(body: CompletionRequest) -> dict[str, Any]:
    """`max_tokens` of 0 scores the prompt: one token is made and not told. Echoed tokens come from the engine too."""
    changes: dict[str, Any] = {"logprobs": body.logprobs}
    if body.max_tokens == 0:
        changes |= {"max_tokens": 1, "min_tokens": 0}
    if body.echo and body.logprobs is not None and body.prompt_logprobs is None:
        changes["prompt_logprobs"] = body.logprobs
    return changes


def listed(prompt: str | list[Any]) -> list[str] | list[list[int]]:
    """Return the prompts one by one: all texts, or all lists of ids. Raises `RequestError`."""
    if isinstance(prompt, str):
        return [prompt]
    kinds = set(map(type, prompt))
    if kinds == {int}:
        return [prompt]
    if kinds in ({str}, {list}):
        return prompt
    what = f"it mixes {' and '.join(sorted(kind.__name__ for kind in kinds))}" if kinds else "it is empty"
    raise RequestError(
        f"prompt={reprlib.repr(prompt)} is refused: {what}. Send a text, a list of texts, a list of token ids, or a "
        "list of lists of token ids.",
        parameter="prompt",
    )


def tokenized(
    serving: Serving, prompts: Sequence[str] | Sequence[list[int]], add_special_tokens: bool
) -> list[dict[str, Any]]:
    """Return prompts for the engine. Texts become ids all at once, so that a bad one is known before any runs."""
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if not texts:
        return [{"prompt_token_ids": prompt} for prompt in prompts]
    ids = serving.llm.tokenizer.encode_batch(texts, add_special_tokens)
    return [{"prompt": text, "prompt_token_ids": one} for text, one in zip(texts, ids, strict=True)]


class CompletionWriter(Writer):
    """Writes `text_completion` objects."""

    body: CompletionRequest

    def __init__(self, serving: Serving, body: CompletionRequest, reply_id: str, num_choices: int) -> None:
        super().__init__(serving, body, reply_id, "text_completion")
        self._n = num_choices
        self._begun: set[int] = set()
        self._offsets: dict[int, TextOffsets] = {}
        """Where the next tokens of a choice begin, where log-probabilities are asked for."""
        self._prompt_logprobs: dict[int, PromptLogprobs] = {}
        self._waiting: list[tuple[int, RequestOutput]] = []
        self._whole: list[CompletionChoice] = []

    def choices(self, number: int, output: RequestOutput) -> list[Any]:
        """Return the choices that an output adds to."""
        if output.prompt_logprobs is not None:
            self._prompt_logprobs[number] = output.prompt_logprobs
        elif self.body.echo and self.body.logprobs is not None and number not in self._prompt_logprobs:
            self._waiting.append((number, output))  # the first choice has them, and may come last
            return []
        ready = [each for each in self._waiting if each[0] == number] + [(number, output)]
        self._waiting = [each for each in self._waiting if each[0] != number]
        made = [self._choice(each, one, completion) for each, one in ready for completion in one.outputs]
        return [choice for choice in made if choice is not None]

    def take(self, number: int, output: RequestOutput) -> None:
        """Keep what a finished output says."""
        self._whole += self.choices(number, output)

    def whole(self) -> Completion:
        """Return the answer, choices in order."""
        return Completion(
            id=self.reply_id,
            created=self.created,
            model=self.serving.model_name,
            choices=sorted(self._whole, key=lambda choice: choice.index),
            usage=self.usage(),
        )

    def count(self, number: int, output: RequestOutput) -> None:
        """Take an output into the usage; a token that is not told does not count."""
        super().count(number, output)
        if self.body.max_tokens == 0:
            self._num_completion = 0

    def _choice(self, number: int, output: RequestOutput, completion: CompletionOutput) -> CompletionChoice | None:
        body = self.body
        index = number * self._n + completion.index
        is_first = index not in self._begun
        self._begun.add(index)
        told = completion if body.max_tokens != 0 else _without_tokens(completion)
        echoed = self._prompt_text(output) if body.echo and is_first else ""
        choice = CompletionChoice(
            index=index, text=echoed + told.text, finish_reason=told.finish_reason, stop_reason=told.stop_reason
        )
        if body.logprobs is not None:
            choice.logprobs = self._logprobs(number, index, output, told, echoed)
        if body.return_token_ids:
            choice.token_ids = told.token_ids
            if is_first:
                choice.prompt_token_ids = output.prompt_token_ids
        if not body.stream and body.prompt_logprobs is not None:
            choice.prompt_logprobs = prompt_logprobs(output.prompt_logprobs)
        says = choice.text or choice.logprobs or choice.finish_reason or body.return_token_ids
        return choice if says or is_first else None

    def _logprobs(
        self, number: int, index: int, output: RequestOutput, told: CompletionOutput, echoed: str
    ) -> CompletionLogprobs | None:
        """Return the lists for the tokens told now, the prompt's first among them where it is echoed."""
        is_first = index not in self._offsets
        echoes = self.body.echo and is_first
        if is_first:
            self._offsets[index] = self._text_offsets(len(echoed), output.prompt_token_ids)
        positions: list[Any] = list(told.logprobs or ())
        offsets = self._offsets[index].of([next(iter(position)) for position in positions])
        first = ""
        if echoes:
            positions = [*self._prompt_logprobs[number], *positions]
            offsets = self._text_offsets(0, ()).of(output.prompt_token_ids) + offsets
            first_id = output.prompt_token_ids[0]
            first = f"token_id:{first_id}" if self.as_ids else self.serving.llm.tokenizer.token_text(first_id)
        return completion_logprobs(positions, offsets, first=first, as_ids=self.as_ids) if positions else None

    def _text_offsets(self, start: int, prompt_token_ids: Sequence[int]) -> TextOffsets:
        """Return the offsets of tokens that follow a prompt, in a text that has `start` characters before them."""
        grows = detokenizer(
            self.serving.llm.tokenizer,
            prompt_token_ids=prompt_token_ids,
            skip_special_tokens=self.body.skip_special_tokens is not False,
            spaces_between_special_tokens=self.body.spaces_between_special_tokens is not False,
        )
        return TextOffsets(grows, start)

    def _prompt_text(self, output: RequestOutput) -> str:
        if output.prompt is not None:
            return output.prompt
        skips = self.body.skip_special_tokens is not False
        text: str = self.serving.llm.tokenizer.decode(output.prompt_token_ids, skips)
        return text


def _without_tokens(completion: CompletionOutput) -> CompletionOutput:
    """No token was asked for, so the limit is what ends it, whatever token was made."""
    reason = completion.finish_reason and "length"
    return CompletionOutput(index=completion.index, text="", token_ids=[], finish_reason=reason)
