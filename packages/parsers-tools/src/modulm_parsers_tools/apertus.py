"""`<|tools_prefix|>[{"NAME": {...}}, ...]<|tools_suffix|>`: the Swiss AI initiative's Apertus.

Source: the chat template of Apertus-8B-Instruct-2509. An object has one key, the function's name.
"""

from modulm.interfaces.reading import GrowingText, Reading
from modulm_parsers_tools.json_calls import BETWEEN, MarkedParser
from modulm_parsers_tools.json_text import take_string


class ApertusToolParser(MarkedParser):
    """A list between two tokens."""

    starts, ends = ("<|tools_prefix|>",), ("<|tools_suffix|>",)
    special_tokens = (*starts, *ends)

    def copy_call(self, text: GrowingText, *, is_marked: bool) -> Reading[bool]:
        """See `CallParser`."""
        yield from text.take_while(BETWEEN)
        if (yield from text.peek()) != '"':
            return False
        name = yield from take_string(text)
        yield from text.skip_space()
        if not name or not (yield from text.accept(":")):
            return False
        yield from text.skip_space()
        yield self.begin(name)
        yield from self.copy_arguments(text)
        yield from text.take_while(BETWEEN)
        yield from text.accept("}")
        return True
