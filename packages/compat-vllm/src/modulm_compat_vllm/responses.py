"""What parsers of either kind, written for vLLM, need of a response: its request, its text so far, its ids so far."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionRequest,
    ChatCompletionToolsParam,
    FunctionDefinition,
)

from modulm.interfaces.parsers import ResponseContext
from modulm.sampling_params import SamplingParams
from modulm_compat_vllm.tokenizer import ParserTokenizer

_HEEDED = ("skip_special_tokens", "spaces_between_special_tokens")
"""Of what `adjust_request` may set."""
_SCHEMA = ("name", "description", "parameters", "strict")


def request_of(context: ResponseContext) -> ChatCompletionRequest:
    """Return the request as parsers see it."""
    tools = [
        ChatCompletionToolsParam(function=FunctionDefinition(**{k: v for k, v in tool.items() if k in _SCHEMA}))
        for tool in context.tools
    ]
    return ChatCompletionRequest(
        tools=tools or None,
        tool_choice="auto" if tools else "none",
        chat_template_kwargs=dict(context.template_kwargs),
    )


def adjusted(plugin_class: type, params: SamplingParams, context: ResponseContext) -> SamplingParams:
    """Return the parameters as the parser wants them: it says so by changing the request."""
    parser = plugin_class(ParserTokenizer.of(context.tokenizer))
    request = request_of(context)
    for name in _HEEDED:
        setattr(request, name, getattr(params, name))
    request = parser.adjust_request(request) or request
    changed = {name: getattr(request, name) for name in _HEEDED if getattr(request, name) != getattr(params, name)}
    return params.clone(**changed) if changed else params


@dataclass
class Written:
    """The response so far."""

    text: str = ""
    ids: list[int] = field(default_factory=list)

    def more(self, text: str, token_ids: Sequence[int]) -> tuple[Any, ...]:
        """Take more, and return texts and ids before, after and new, as the methods for streams take them."""
        before, ids_before = self.text, list(self.ids)
        self.text += text
        self.ids += token_ids
        return before, self.text, text, ids_before, list(self.ids), list(token_ids)


def rest_of(whole: str | None, reported: str) -> str:
    """Return what of `whole` was not reported; nothing where the two contradict each other."""
    whole = whole or ""
    return whole[len(reported) :] if whole.startswith(reported) else ""
