"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes 2 Pro and 3, Qwen 2.5 and 3.

Source: NousResearch's Hermes function-calling format, and the chat templates of Qwen2.5-Instruct and Qwen3.
"""

from modulm.interfaces.parsers import Content, TokenizerView
from modulm.interfaces.reading import GrowingText, Reading
from modulm.interfaces.support import Accepted, Rejected, Support
from modulm_parsers_tools.json_calls import CallParser

_START, _END = "<tool_call>", "</tool_call>"
_OTHERS = ("<function=", "<arg_key>", "<parameter")
"""Marks of formats that have other things than JSON between the same tags."""


class HermesToolParser(CallParser):
    """Between tags, objects one after the other; what else is there is content."""

    @classmethod
    def matches(cls, tokenizer: TokenizerView, chat_template: str) -> Support:
        """See `ResponseParser`."""
        if _START not in chat_template or any(mark in chat_template for mark in _OTHERS):
            return Rejected(f"the chat template writes no JSON between {_START} and {_END}")
        return Accepted(f"the chat template writes {_START}")

    def read(self, text: GrowingText) -> Reading[None]:
        """See `TextParser`."""
        found = yield from text.copy(Content, _START)
        while found:
            found = yield from self._tagged(text)
            if found != _START:
                found = yield from text.copy(Content, _START)

    def _tagged(self, text: GrowingText) -> Reading[str]:
        """Read what stands between tags; returns the tag that was read last."""
        before = self.num_calls
        while True:
            text.record()
            yield from text.skip_space()
            if (yield from text.accept(_END)) and self.num_calls > before:
                return _END
            if not ((yield from text.accept("{")) and (yield from self.copy_call(text, is_marked=True))):
                break
        read = text.recorded()
        if self.num_calls == before:
            yield Content(_START + read)
            return ""
        if read.strip():
            yield Content(read)
        return (yield from text.copy(Content, _END, _START))
