"""As `pythonic`, between `<|tool_call_start|>` and `<|tool_call_end|>`: Liquid's LFM 2.

Source: the model cards of LFM2 and LFM2-1.2B-Tool.
"""

from modulm.interfaces.parsers import Content
from modulm.interfaces.reading import GrowingText, Reading
from modulm_parsers_tools.pythonic import PythonicToolParser

_START, _END = "<|tool_call_start|>", "<|tool_call_end|>"


class LFM2ToolParser(PythonicToolParser):
    """The mark says that a list of calls follows, so any name is good."""

    special_tokens = (_START, _END)
    signs = (_START,)

    def is_known(self, name: str) -> bool:
        """Any is."""
        return True

    def read(self, text: GrowingText) -> Reading[None]:
        """See `TextParser`."""
        while (yield from text.copy(Content, _START)):
            read = _START + (yield from text.skip_space())
            if not (yield from text.accept("[")):
                yield Content(read)
                continue
            before = self.num_calls
            yield from self.copy_list(text, read + "[")
            text.record()
            yield from text.skip_space()
            if self.num_calls == before or not (yield from text.accept(_END)):
                yield Content(text.recorded())
