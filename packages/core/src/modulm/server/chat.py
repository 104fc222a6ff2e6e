"""POST /v1/chat/completions: a conversation, rendered by the model's template, and `n` answers to it.

Knows the wire; generation itself is `reply.py`'s, templates are the front end's.
"""

from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from modulm.interfaces.parsers import CallStart
from modulm.outputs import CompletionOutput, RequestOutput
from modulm.sampling_params import SamplingParams
from modulm.server.body import read_body
from modulm.server.errors import refused_field
from modulm.server.generation import Numbered
from modulm.server.logprobs import chat_logprobs, prompt_logprobs
from modulm.server.reply import Generation, Writer
from modulm.server.request_ids import reply_id
from modulm.server.schema.chat import ChatChoice, ChatChunkChoice, ChatCompletion, ChatLogprobs, ChatRequest, Message
from modulm.server.schema.sampling import sampling_params
from modulm.server.schema.tokens import TokenizeRequest
from modulm.server.serving import Serving, serving_of
from modulm.server.tools import delta_of, message_of, parse_of, shown_tools, template_names

_NO_NEWS = Message()
_UNSAID_MAX_TOKENS = SamplingParams().max_tokens


async def create_chat_completion(request: Request) -> Response:
    """Answer a chat request."""
    serving = serving_of(request)
    body = await read_body(request, ChatRequest)
    serving.check_model(body.model)
    _check(body)
    parse, params = parse_of(serving, body), _params(serving, body)
    writer = ChatWriter(serving, body, reply_id(request, body.request_id, "chatcmpl-"))
    return Generation(request, body, writer, params, partial(rendered, serving, body), parse=parse)


def _check(body: ChatRequest) -> None:
    """Refuse what nothing would honour."""
    if body.top_logprobs and not body.logprobs:
        raise refused_field("top_logprobs", body.top_logprobs, "it needs logprobs=true")
    if body.stream and body.prompt_logprobs is not None:
        raise refused_field("prompt_logprobs", body.prompt_logprobs, "a stream does not tell them")
    both = (body.max_tokens, body.max_completion_tokens)
    if None not in both and len(set(both)) > 1:
        why = f"max_tokens says {body.max_tokens}, and both are names of one thing"
        raise refused_field("max_completion_tokens", body.max_completion_tokens, why)


def _params(serving: Serving, body: ChatRequest) -> SamplingParams:
    """An answer goes on to the model's limit unless the request or the checkpoint says otherwise."""
    default = serving.default_params.max_tokens
    asked = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    if asked is None and default != _UNSAID_MAX_TOKENS:
        asked = default
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return sampling_params(body, serving.default_params, max_tokens=asked, logprobs=logprobs)


def rendered(serving: Serving, body: ChatRequest | TokenizeRequest) -> list[dict[str, Any]]:
    """Return the conversation as the one prompt for the engine. Raises `Refused` or `RequestError`."""
    template = body.chat_template
    if template is not None and not serving.options.trust_request_chat_template:
        raise refused_field("chat_template", template, "the server was started without --trust-request-chat-template")
    names = template_names(serving, body)
    options: dict[str, Any] = {
        "chat_template": template,
        "tools": shown_tools(serving, body),
        "add_generation_prompt": body.add_generation_prompt,
        "continue_final_message": bool(body.continue_final_message),
    }
    if isinstance(body, ChatRequest):
        options["documents"] = body.documents
    prompt = serving.llm.render(body.messages, chat_template_kwargs=names, **options)
    if body.add_special_tokens:
        prompt["prompt_token_ids"] = serving.llm.tokenizer.encode(prompt["prompt"], True)
    return [prompt]


class ChatWriter(Writer):
    """Writes `chat.completion` objects and their chunks."""

    body: ChatRequest

    def __init__(self, serving: Serving, body: ChatRequest, reply_id: str) -> None:
        super().__init__(serving, body, reply_id, "chat.completion.chunk")
        self._begun: set[int] = set()
        self._called: set[int] = set()
        self._with_reasoning = body.include_reasoning is not False
        self._told_prompt = False
        self._output: RequestOutput | None = None

    @property
    def _role(self) -> str:
        """The server's role for answers, unless the last message is gone on with (vLLM's rule)."""
        opens = self.body.add_generation_prompt
        opens = not self.body.continue_final_message if opens is None else opens
        role: str = self.serving.options.response_role if opens else self.body.messages[-1]["role"]
        return role

    def once(self, batch: list[Numbered]) -> bytes:
        """Return the prompt's ids, for the first chunk, where ids are asked for."""
        if not self.body.return_token_ids or self._told_prompt:
            return b""
        self._told_prompt = True
        return b',"prompt_token_ids":' + msgspec.json.encode(batch[0][1].prompt_token_ids)

    def choices(self, number: int, output: RequestOutput) -> list[Any]:
        """Return the chunks that an output makes: each answer's role first, then what is new of it."""
        made: list[Any] = []
        for completion in output.outputs:
            index = completion.index
            self._note_calls(completion)
            if index not in self._begun:
                self._begun.add(index)
                opening = Message(role=self._role, content=self._echoed())
                made.append(ChatChunkChoice(index=index, delta=opening))
            logprobs, delta = self._logprobs(completion), self._delta(completion)
            if not (delta != _NO_NEWS or logprobs or completion.finish_reason or self.body.return_token_ids):
                continue
            chunk = ChatChunkChoice(index=index, delta=delta, logprobs=logprobs)
            if completion.finish_reason is not None:
                chunk.finish_reason, chunk.stop_reason = self._finish_reason(completion), completion.stop_reason
            if self.body.return_token_ids:
                chunk.token_ids = completion.token_ids
            made.append(chunk)
        return made

    def take(self, number: int, output: RequestOutput) -> None:
        """Keep the finished output."""
        self._output = output

    def whole(self) -> ChatCompletion:
        """Return the answer."""
        output = self._output
        assert output is not None
        for completion in output.outputs:
            self._note_calls(completion)
        answer = ChatCompletion(
            id=self.reply_id,
            created=self.created,
            model=self.serving.model_name,
            choices=[self._choice(completion) for completion in output.outputs],
            usage=self.usage(),
        )
        if self.body.prompt_logprobs is not None:
            answer.prompt_logprobs = prompt_logprobs(output.prompt_logprobs)
        if self.body.return_token_ids:
            answer.prompt_token_ids = output.prompt_token_ids
        return answer

    def _delta(self, completion: CompletionOutput) -> Message:
        if completion.events is not None:
            return delta_of(completion.events, with_reasoning=self._with_reasoning)
        return Message(content=completion.text) if completion.text else Message()

    def _message(self, completion: CompletionOutput) -> Message:
        role, echoed = self._role, self._echoed()
        if completion.events is None:
            return Message(role=role, content=echoed + completion.text, refusal=None)
        return message_of(completion.events, role=role, echoed=echoed, with_reasoning=self._with_reasoning)

    def _note_calls(self, completion: CompletionOutput) -> None:
        if any([isinstance(event, CallStart) for event in completion.events or ()]):
            self._called.add(completion.index)

    def _finish_reason(self, completion: CompletionOutput) -> str | None:
        """An answer that was cut short says so, calls or not; so does a call that was asked for by its name."""
        called = completion.index in self._called and not isinstance(self.body.tool_choice, dict)
        return "tool_calls" if called and completion.finish_reason == "stop" else completion.finish_reason

    def _choice(self, completion: CompletionOutput) -> ChatChoice:
        choice = ChatChoice(
            index=completion.index,
            message=self._message(completion),
            logprobs=self._logprobs(completion),
            finish_reason=self._finish_reason(completion),
            stop_reason=completion.stop_reason,
        )
        if self.body.return_token_ids:
            choice.token_ids = completion.token_ids
        return choice

    def _logprobs(self, completion: CompletionOutput) -> ChatLogprobs | None:
        if not completion.logprobs:
            return None
        tokenizer = self.serving.llm.tokenizer
        return chat_logprobs(completion.logprobs, self.body.top_logprobs or 0, tokenizer, as_ids=self.as_ids)

    def _echoed(self) -> str:
        """With `echo`, an answer repeats the message that it goes on with (vLLM's rule)."""
        last = self.body.messages[-1]
        content = last.get("content") if isinstance(last, dict) and last.get("role") == self._role else None
        return content if self.body.echo and isinstance(content, str) else ""
