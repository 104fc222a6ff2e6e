"""Reasoning parsers written for vLLM as modulm's. As in vLLM, the parser is not asked about text after the thinking.

`extract_reasoning_streaming` is asked while the text comes; at its end `extract_reasoning` is asked for the whole, and
what the first had not reported is reported then: a parser that has only one of the two serves all responses.
"""

from collections.abc import Sequence
from typing import ClassVar

from vllm.reasoning.abs_reasoning_parsers import ReasoningParser

from modulm.interfaces import parsers
from modulm.interfaces.parsers import Content, Event, Reasoning, ResponseContext
from modulm.sampling_params import SamplingParams
from modulm_compat_vllm.responses import Written, adjusted, request_of, rest_of
from modulm_compat_vllm.tokenizer import ParserTokenizer


class ReasoningParserAdapter(parsers.ReasoningParser):
    """Reads one response with a plugin's parser."""

    plugin_class: ClassVar[type[ReasoningParser]]

    def __init__(self, context: ResponseContext) -> None:
        super().__init__(context)
        self._request = request_of(context)
        names = {"chat_template_kwargs": dict(context.template_kwargs)}
        self._parser = self.plugin_class(ParserTokenizer.of(context.tokenizer), **names)
        self._written = Written()
        self._reasoning = self._content = ""
        prompt = list(context.prompt_token_ids)
        self._is_over = bool(prompt) and self._parser.is_reasoning_end(prompt)
        self._streams = True

    @classmethod
    def adjust(cls, params: SamplingParams, context: ResponseContext) -> SamplingParams:
        """See base class."""
        return adjusted(cls.plugin_class, params, context)

    def push(self, text: str, token_ids: Sequence[int] = ()) -> list[Event]:
        """See base class."""
        if self._is_over:
            return [Content(text)] if text else []
        pieces = self._written.more(text, token_ids)
        if not self._streams:
            return []
        try:
            message = self._parser.extract_reasoning_streaming(*pieces)
        except NotImplementedError:
            self._streams = False
            return []
        self._is_over = bool(self._parser.is_reasoning_end_streaming(list(self._written.ids), list(token_ids)))
        return [] if message is None else self._events(message.reasoning or "", message.content or "")

    def _events(self, reasoning: str, content: str) -> list[Event]:
        self._reasoning += reasoning
        self._content += content
        thought: list[Event] = [Reasoning(reasoning)] if reasoning else []
        return thought + ([Content(content)] if content else [])

    def finish(self, finish_reason: str) -> list[Event]:
        """See base class."""
        if self._is_over and self._streams:
            return []
        try:
            reasoning, content = self._parser.extract_reasoning(self._written.text, self._request)
        except NotImplementedError:
            return []
        if not ((reasoning or "").startswith(self._reasoning) and (content or "").startswith(self._content)):
            return []  # the two methods contradict each other, and what was streamed is not taken back
        return self._events(rest_of(reasoning, self._reasoning), rest_of(content, self._content))
