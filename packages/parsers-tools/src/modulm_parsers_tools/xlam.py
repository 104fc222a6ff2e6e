"""`[{"name": ..., "arguments": {...}}, ...]`, a bare list, also fenced as code: Salesforce's xLAM 2.

Source: the model cards of Llama-xLAM-2 and xLAM-2. No mark says that a list is calls, so only the request's tools do.
"""

from modulm.interfaces.parsers import Content
from modulm.interfaces.reading import GrowingText, Reading
from modulm_parsers_tools.json_calls import BETWEEN, CallParser

_FENCES = ("```json", "```")


class XLAMToolParser(CallParser):
    """Tries each list in the text."""

    around = ("[", "]")

    def read(self, text: GrowingText) -> Reading[None]:
        """See `TextParser`."""
        while found := (yield from text.copy(Content, *_FENCES, "[")):
            text.record()
            if found in _FENCES:
                yield from text.skip_space()
            if found == "[" or (yield from text.accept("[")):
                yield from self._list(text, found + text.recorded(), is_fenced=found in _FENCES)
            else:
                yield Content(found + text.recorded())

    def _list(self, text: GrowingText, read: str, *, is_fenced: bool) -> Reading[None]:
        """Report calls up to the end of the list; `read` is what to give back if it begins with none."""
        while True:
            text.record()
            yield from text.take_while(BETWEEN)
            if not read and (yield from text.accept("]")):
                break
            if not ((yield from text.accept("{")) and (yield from self.copy_call(text, is_marked=False))):
                yield Content(read + text.recorded())
                return
            read = ""
        text.record()
        yield from text.skip_space()
        if not (is_fenced and (yield from text.accept("```"))):
            yield Content(text.recorded())
