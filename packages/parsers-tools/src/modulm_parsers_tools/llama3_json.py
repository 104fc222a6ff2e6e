"""`{"name": ..., "parameters": {...}}` with nothing around it: Llama 3.1 to 3.3.

Source: Meta's model cards, "JSON based tool calling". `<|python_tag|>` may stand before it; several calls are separated
by semicolons. Nothing says that an object is a call, so only one that names a tool of the request is taken for it.
"""

from modulm.interfaces.parsers import Content
from modulm.interfaces.reading import GrowingText, Reading
from modulm_parsers_tools.json_calls import CallParser

_TAG = "<|python_tag|>"


class Llama3JsonToolParser(CallParser):
    """Tries each object in the text."""

    special_tokens = (_TAG,)
    signs = ('{"name": function name, "parameters": dictionary',)
    around = ("", "")
    argument_keys = ("parameters", "arguments")

    def read(self, text: GrowingText) -> Reading[None]:
        """See `TextParser`."""
        while found := (yield from text.copy(Content, _TAG, "{")):
            text.record()
            if found == _TAG:
                yield from text.skip_space()
            is_object = found == "{" or (yield from text.accept("{"))
            if not (is_object and (yield from self.copy_call(text, is_marked=False))):
                yield Content(found + text.recorded())
                continue
            text.record()
            yield from text.skip_space()
            is_separated = yield from text.accept(";")
            read = text.recorded()
            if not is_separated:
                yield Content(read)
