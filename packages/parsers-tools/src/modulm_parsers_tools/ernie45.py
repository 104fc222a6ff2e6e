"""As Hermes, and answers in `<response>`: Baidu's ERNIE 4.5 with thinking.

Source: the chat template of ERNIE-4.5-21B-A3B-Thinking. The tags around an answer stand on lines of their own.
"""

from modulm.interfaces.parsers import TokenizerView
from modulm.interfaces.support import Support
from modulm_parsers_tools.hermes import HermesToolParser
from modulm_parsers_tools.json_calls import match_mark


class Ernie45ToolParser(HermesToolParser):
    """Leaves out the tags around answers, and the line breaks that go with them."""

    frames = ("<response>\n", "<response>", "\n</response>", "</response>")

    @classmethod
    def matches(cls, tokenizer: TokenizerView, chat_template: str) -> Support:
        """See `ResponseParser`."""
        return super().matches(tokenizer, chat_template) and match_mark(chat_template, "<response>")
