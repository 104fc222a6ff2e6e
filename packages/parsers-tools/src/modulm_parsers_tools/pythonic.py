"""`[name(argument=value, ...), ...]`, a list of calls as Python writes it: Llama 3.2 and 4, ToolACE.

Source: Meta's model cards for Llama 3.2, "zero-shot function calling", and ToolACE's. Arguments are reported one by
one, as each is complete. Nothing but the bracket marks the list, so calls must be of tools of the request.
"""

import json
import re

from modulm.interfaces.parsers import Content
from modulm.interfaces.reading import GrowingText, Reading
from modulm_parsers_tools.json_calls import BETWEEN, CallParser
from modulm_parsers_tools.python_text import as_json, take_argument

_NAME = re.compile(r"[\w.]+")


class PythonicToolParser(CallParser):
    """Tries each list in the text."""

    signs = ("[func_name1(",)

    def read(self, text: GrowingText) -> Reading[None]:
        """See `TextParser`."""
        while (yield from text.copy(Content, "[")):
            yield from self.copy_list(text, "[")

    def copy_list(self, text: GrowingText, read: str, end: str = "]") -> Reading[None]:
        """Report calls up to the end of the list; `read` is what to give back if it begins with none."""
        while True:
            text.record()
            yield from text.take_while(BETWEEN)
            if not read and (yield from text.accept(end)):
                return
            if not (yield from self._call(text)):
                yield Content(read + text.recorded())
                return
            read = ""

    def _call(self, text: GrowingText) -> Reading[bool]:
        """Report a call; returns whether there was one."""
        name = yield from text.take_while(_NAME)
        yield from text.skip_space()
        if not name or not self.is_known(name) or not (yield from text.accept("(")):
            return False
        has_begun = False
        while True:
            yield from text.take_while(BETWEEN)
            if (yield from text.accept(")")):
                if not has_begun:
                    yield self.begin(name)
                yield self.arguments("}" if has_begun else "{}")
                return True
            key = yield from text.take_while(_NAME)
            space = yield from text.skip_space()
            if not key or not (yield from text.accept("=")):
                if has_begun and (yield from text.peek()):
                    yield self.arguments("}")
                    yield Content(key + space)
                return has_begun
            source = yield from take_argument(text)
            if not (yield from text.peek()):  # it may go on where the text was cut
                return has_begun
            if not has_begun:
                yield self.begin(name)
            yield self.arguments((", " if has_begun else "{") + f"{json.dumps(key)}: {as_json(source)}")
            has_begun = True
