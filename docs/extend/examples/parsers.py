"""Reads `<call>NAME {"city": "Paris"}</call>`, and `<think>...</think>` before the answer."""

from modulm.interfaces.parsers import (
    CallArguments,
    CallStart,
    Content,
    Reasoning,
    ReasoningParser,
    TextParser,
    ToolParser,
)


class Marked(TextParser, ToolParser):
    """Reports arguments while they are written."""

    def read(self, text):
        index = 0
        while (yield from text.copy(Content, "<call>")):
            name = yield from text.take_until(" ", "</call>")
            yield CallStart(index, name)
            yield from text.copy(lambda piece, index=index: CallArguments(index, piece), "</call>")
            index += 1


class Tagged(TextParser, ReasoningParser):
    """What is not between the marks is the answer."""

    start_marker, end_marker = "<think>", "</think>"

    def read(self, text):
        if (yield from text.accept(self.start_marker)):
            yield from text.copy(Reasoning, self.end_marker)
        yield from text.copy(Content)
