"""`<|message_model|>NAME<|content_invoke_tool_json|>{"name": ..., "args": {...}}<|end_message|>`: Inkling.

Source: the chat template of Thinking Machines' Inkling. A response is messages of one kind each: the kind's token
stands behind `<|message_model|>`, with the function's name between them in calls; the prompt ends with the first such
token.
"""

import re

from modulm.interfaces.parsers import Content
from modulm.interfaces.reading import GrowingText, Reading
from modulm_parsers_tools.json_calls import CallParser

_MODEL, _CALL, _TEXT = "<|message_model|>", "<|content_invoke_tool_json|>", "<|content_text|>"
_ENDS = ("<|end_message|>", "<|content_model_end_sampling|>")
_NAME = re.compile(r"[\w.:-]+")


class InklingToolParser(CallParser):
    """Leaves out the tokens around text, and reads calls."""

    frames = (_MODEL, _TEXT, *_ENDS)
    special_tokens = (*frames, _CALL)
    argument_keys = ("args", "arguments", "parameters")
    signs = (_CALL,)

    def read(self, text: GrowingText) -> Reading[None]:
        """See `TextParser`."""
        found = _MODEL
        while found:
            following, name = "", ""
            if found == _MODEL:
                name = yield from text.take_while(_NAME)
                found = yield from text.accept(_CALL, _TEXT)
            if found == _CALL:
                following = yield from self.copy_marked(text, name + _CALL, _ENDS, (_MODEL,))
            else:
                yield Content(name)
            found = following or (yield from text.copy(Content, _CALL, *self.frames))
