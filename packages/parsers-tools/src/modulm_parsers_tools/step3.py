"""`<steptml:invoke name="NAME"><steptml:parameter name="KEY">value</...></...>` between tokens: StepFun's Step 3.

Source: the chat template of stepfun-ai/step3. Each call stands behind `function<｜tool_sep｜>` between tokens of its
own, and all in a section.
"""

from modulm.interfaces.reading import GrowingText, Reading
from modulm_parsers_tools.xml_calls import XMLParser

_SEPARATOR, _INVOKE, _END = "<｜tool_sep｜>", '<steptml:invoke name="', "<｜tool_call_end｜>"


class Step3ToolParser(XMLParser):
    """Reads the tags between the tokens."""

    block = ("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>")
    function_start, function_end = "<｜tool_call_begin｜>", "</steptml:invoke>"
    argument_start, argument_end = '<steptml:parameter name="', "</steptml:parameter>"
    name_end = '">'
    special_tokens = (*block, function_start, _END, _SEPARATOR)

    def function(self, text: GrowingText) -> Reading[str]:
        """See `XMLParser`."""
        yield from text.skip_space()
        yield from text.accept("function")
        yield from text.skip_space()
        yield from text.accept(_SEPARATOR)
        yield from text.skip_space()
        return (yield from super().function(text)) if (yield from text.accept(_INVOKE)) else ""

    def close(self, text: GrowingText) -> Reading[None]:
        """See `XMLParser`."""
        yield from text.skip_space()
        yield from text.accept(_END)
