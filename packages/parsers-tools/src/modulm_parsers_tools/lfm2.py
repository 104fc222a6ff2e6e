"""As `pythonic`, between `<|tool_call_start|>` and `<|tool_call_end|>`: Liquid's LFM 2.

Source: the model cards of LFM2 and LFM2-1.2B-Tool.
"""

from modulm.interfaces.parsers import Content, TokenizerView
from modulm.interfaces.reading import GrowingText, Reading
from modulm.interfaces.support import Accepted, Rejected, Support
from modulm_parsers_tools.pythonic import PythonicToolParser

_START, _END = "<|tool_call_start|>", "<|tool_call_end|>"


class LFM2ToolParser(PythonicToolParser):
    """The mark says that a list of calls follows, so any name is good."""

    special_tokens = (_START, _END)

    @classmethod
    def matches(cls, tokenizer: TokenizerView, chat_template: str) -> Support:
        """See `ResponseParser`; not all templates of the family write calls."""
        for sign in (_START, "<|tool_list_start|>"):
            if sign in chat_template or sign in tokenizer.added_tokens.values():
                return Accepted(f"the model has {sign}")
        return Rejected(f"neither chat template nor tokenizer has {_START}")

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
