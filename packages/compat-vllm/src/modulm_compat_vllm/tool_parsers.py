"""Tool parsers written for vLLM as modulm's: pieces are read by the method for streams, what it left out by the other.

vLLM has two methods where modulm has one result. While the text comes, `extract_tool_calls_streaming` is asked; at its
end `extract_tool_calls` is asked for the whole, and calls or arguments that the first had not reported are reported
then. So a parser that has only one of the two serves streams and whole answers alike.
"""

import inspect
import json
from collections.abc import Sequence
from typing import Any, ClassVar

from vllm.entrypoints.openai.engine.protocol import DeltaMessage, ExtractedToolCallInformation
from vllm.tool_parsers.abstract_tool_parser import ToolParser

from modulm.interfaces import parsers
from modulm.interfaces.parsers import CallArguments, CallStart, Content, Event, ResponseContext
from modulm.sampling_params import SamplingParams
from modulm_compat_vllm.responses import Written, adjusted, request_of, rest_of
from modulm_compat_vllm.tokenizer import ParserTokenizer


class ToolParserAdapter(parsers.ToolParser):
    """Reads one response with a plugin's parser."""

    plugin_class: ClassVar[type[ToolParser]]

    def __init__(self, context: ResponseContext) -> None:
        super().__init__(context)
        self._request = request_of(context)
        self._parser = self._make(ParserTokenizer.of(context.tokenizer))
        self._written = Written()
        self._content = ""
        self._arguments: list[str] = []
        """What was reported, by call."""
        self._streams = True

    def _make(self, tokenizer: Any) -> Any:
        if "tools" in inspect.signature(self.plugin_class).parameters:
            return self.plugin_class(tokenizer, self._request.tools)
        return self.plugin_class(tokenizer)  # older ones read the request's

    @classmethod
    def adjust(cls, params: SamplingParams, context: ResponseContext) -> SamplingParams:
        """See base class."""
        return adjusted(cls.plugin_class, params, context)

    def push(self, text: str, token_ids: Sequence[int] = ()) -> list[Event]:
        """See base class."""
        pieces = self._written.more(text, token_ids)
        if not self._streams:
            return []
        try:
            message = self._parser.extract_tool_calls_streaming(*pieces, self._request)
        except NotImplementedError:
            self._streams = False
            return []
        return [] if message is None else self._events(message)

    def _events(self, message: DeltaMessage) -> list[Event]:
        events: list[Event] = []
        if message.content:
            self._content += message.content
            events.append(Content(message.content))
        for call in message.tool_calls:
            function = call.function
            if function is None:
                continue
            if call.index >= len(self._arguments) and function.name:
                self._arguments.append("")
                events.append(CallStart(call.index, function.name, call.id))
            if function.arguments:
                events += self._more_arguments(call.index, function.arguments)
        return events

    def _more_arguments(self, index: int, text: str) -> list[Event]:
        if index < len(self._arguments):
            self._arguments[index] += text
        return [CallArguments(index, text)]

    def finish(self, finish_reason: str) -> list[Event]:
        """See base class."""
        events = self._held_back()
        try:
            whole = self._parser_for_whole().extract_tool_calls(self._written.text, self._request)
        except NotImplementedError:
            return events
        return events + self._left_out(whole)

    def _parser_for_whole(self) -> Any:
        return self._make(self._parser.model_tokenizer)

    def _held_back(self) -> list[Event]:
        """As vLLM does at the end of a stream: of the last call, what the parser knows and has not streamed."""
        known, streamed = self._parser.prev_tool_call_arr, self._parser.streamed_args_for_tool
        last = len(self._arguments) - 1
        if not 0 <= last < min(len(known), len(streamed)):
            return []
        wanted = known[last].get("arguments") or ""
        if not isinstance(wanted, str):
            wanted = json.dumps(wanted, ensure_ascii=False)
        rest = rest_of(wanted, streamed[last])
        return self._more_arguments(last, rest) if rest else []

    def _left_out(self, whole: ExtractedToolCallInformation) -> list[Event]:
        """What the whole text holds beyond what was reported; what contradicts it is left as it was."""
        events: list[Event] = []
        content = (whole.content or "") if whole.tools_called else self._written.text
        if (whole.tools_called or not self._arguments) and (rest := rest_of(content, self._content)):
            events.append(Content(rest))
        for index, call in enumerate(whole.tool_calls if whole.tools_called else ()):
            if index == len(self._arguments):
                self._arguments.append("")
                events.append(CallStart(index, call.function.name, call.id))
            if rest := rest_of(call.function.arguments, self._arguments[index]):
                events += self._more_arguments(index, rest)
        return events
