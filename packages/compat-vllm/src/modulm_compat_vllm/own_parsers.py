"""modulm's own parsers as classes of vLLM's kind: what plugins get that ask vLLM's managers for a parser by its name.

A class has the name and text of the parser that it stands for. A response is read once as it grows; asked about a text
that does not go on from the last one, a parser reads that from its beginning. What a parser still holds back when a
stream ends is in the result of the whole text, as with vLLM's own.
"""

import functools
from collections.abc import Sequence
from typing import Any, ClassVar

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.engine.protocol import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    ExtractedToolCallInformation,
    FunctionCall,
    ToolCall,
)
from vllm.reasoning.abs_reasoning_parsers import ReasoningParser
from vllm.tool_parsers.abstract_tool_parser import ToolParser

from modulm.interfaces import parsers
from modulm.interfaces.parsers import CallArguments, CallStart, Content, Event, Reasoning, ResponseContext
from modulm_compat_vllm.stand_in import stand_in


def own_class(found: type) -> type:
    """Return what stands for a parser of modulm, the same class each time."""
    base = OwnToolParser if issubclass(found, parsers.ToolParser) else OwnReasoningParser
    return _own_class(base, found)


@functools.cache
def _own_class(base: type, found: type) -> type:
    made: type = stand_in(base, found, own=found)
    return made


class _Reader:
    """One parser of modulm and the text that it has read."""

    def __init__(self, made_for: type[parsers.ResponseParser]) -> None:
        self._made_for = made_for
        self._parser: parsers.ResponseParser | None = None
        self._read = ""

    def more(self, before: str, new: str, new_ids: Sequence[int], context: ResponseContext) -> DeltaMessage | None:
        """Return what is certain now and was not before."""
        if self._parser is None or before != self._read:
            self._parser = self._made_for(context)
            self._parser.push(before)
        self._read = before + new
        return _message(self._parser.push(new, new_ids))


def _message(events: Sequence[Event]) -> DeltaMessage | None:
    content = "".join(event.text for event in events if isinstance(event, Content))
    reasoning = "".join(event.text for event in events if isinstance(event, Reasoning))
    calls: dict[int, DeltaToolCall] = {}
    for event in events:
        if isinstance(event, CallStart):
            function = DeltaFunctionCall(name=event.name, arguments="")
            calls[event.index] = DeltaToolCall(index=event.index, id=event.id, type="function", function=function)
        elif isinstance(event, CallArguments):
            call = calls.setdefault(event.index, DeltaToolCall(index=event.index, function=DeltaFunctionCall()))
            assert call.function is not None
            call.function.arguments = (call.function.arguments or "") + event.text
    if not (content or reasoning or calls):
        return None
    return DeltaMessage(content=content or None, reasoning=reasoning or None, tool_calls=list(calls.values()))


class _Own:
    """What both kinds do with the parser that they stand for; comes before vLLM's class."""

    own: ClassVar[type[parsers.ResponseParser]]

    @classmethod
    def modulm_class(cls) -> type:
        """Return the parser itself; of a class that derives from this one, what stands for it."""
        return cls.own if "own" in vars(cls) else super().modulm_class()  # type: ignore[misc]

    def adjust_request(self, request: ChatCompletionRequest) -> ChatCompletionRequest:
        """Keep the format's marks in the text."""
        if self.own.special_tokens:
            request.skip_special_tokens = False
        return request


class OwnToolParser(_Own, ToolParser):
    """Reads calls with a parser of modulm."""

    own: ClassVar[type[parsers.ToolParser]]

    def __init__(self, tokenizer: Any, tools: Any = None) -> None:
        super().__init__(tokenizer, tools)
        self._reader = _Reader(self.own)

    def _context(self, request: ChatCompletionRequest | None) -> ResponseContext:
        tools = self.tools or (request.tools if request is not None else None) or []
        return ResponseContext(tools=[tool.function.model_dump(exclude_none=True) for tool in tools])

    def extract_tool_calls(self, model_output: str, request: ChatCompletionRequest) -> ExtractedToolCallInformation:
        """See base class."""
        context = self._context(request)
        found, parser = self.own.parse(model_output, context), self.own(context)
        calls = [
            ToolCall(
                id=call.id or parser.call_id(index, call.name),
                function=FunctionCall(name=call.name, arguments=call.arguments),
            )
            for index, call in enumerate(found.calls)
        ]
        return ExtractedToolCallInformation(tools_called=bool(calls), tool_calls=calls, content=found.content or None)

    def extract_tool_calls_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
        request: ChatCompletionRequest,
    ) -> DeltaMessage | None:
        """See base class."""
        message = self._reader.more(previous_text, delta_text, delta_token_ids, self._context(request))
        for call in message.tool_calls if message is not None else ():
            if call.function is not None and call.function.name:
                call.id = call.id or self.own(ResponseContext()).call_id(call.index, call.function.name)
        return message


class OwnReasoningParser(_Own, ReasoningParser):
    """Tells thinking from answer with a parser of modulm."""

    own: ClassVar[type[parsers.ReasoningParser]]

    def __init__(self, tokenizer: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(tokenizer, *args, **kwargs)
        self._context = ResponseContext(template_kwargs=kwargs.get("chat_template_kwargs") or {})
        self._reader = _Reader(self.own)
        self._start, self._ends = self.own(self._context).marks()

    def _answer_at(self, input_ids: Sequence[int]) -> int | None:
        """Return how many ids there are up to the end of the thinking; None where it goes on, or has not begun."""
        text, found = "", None
        for number, token_id in enumerate(input_ids, 1):
            text += self.model_tokenizer.decode([token_id], skip_special_tokens=False)
            if any(text.endswith(end) for end in self._ends):
                found = number
            elif self._start is not None and text.endswith(self._start):
                found = None
        return found

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """See base class."""
        return self._answer_at(input_ids) is not None

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        """See base class."""
        at = self._answer_at(input_ids)
        return [] if at is None else input_ids[at:]

    def extract_reasoning(self, model_output: str, request: ChatCompletionRequest) -> tuple[str | None, str | None]:
        """See base class."""
        found = self.own.parse(model_output, self._context)
        return found.reasoning or None, found.content or None

    def extract_reasoning_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
    ) -> DeltaMessage | None:
        """See base class."""
        return self._reader.more(previous_text, delta_text, delta_token_ids, self._context)
