"""`Here is my thought process: ... Here is my response: ...`: Granite 3.2 and 3.3 with `thinking`.

Source: the chat template of granite-3.2-8b-instruct. The sentences come with "Here is" and with "Here's".
"""

from modulm.interfaces.parsers import Content, Reasoning, ReasoningParser, TokenizerView
from modulm.interfaces.reading import GrowingText, Reading, TextParser
from modulm.interfaces.support import Accepted, Rejected, Support

_STARTS = ("Here is my thought process:", "Here's my thought process:")
_ENDS = ("Here is my response:", "Here's my response:")


class GraniteReasoningParser(TextParser, ReasoningParser):
    """Sentences in place of tags."""

    start_marker, end_marker, other_end_markers = _STARTS[0], _ENDS[0], _ENDS[1:]

    @classmethod
    def matches(cls, tokenizer: TokenizerView, chat_template: str) -> Support:
        """See `ResponseParser`."""
        if "Here is my thought process" in chat_template:
            return Accepted("the chat template asks for a thought process")
        return Rejected("the chat template asks for no thought process")

    def read(self, text: GrowingText) -> Reading[None]:
        """See `TextParser`."""
        space = yield from text.skip_space()
        if not (yield from text.accept(*_STARTS)):
            yield Content(space)
            return
        yield from text.copy(Reasoning, *_ENDS)
