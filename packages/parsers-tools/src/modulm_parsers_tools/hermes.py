"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes 2 Pro and 3, Qwen 2.5 and 3, Granite 4.

Source: NousResearch's Hermes function-calling format, and the chat templates of Qwen 2.5, Qwen 3 and Granite 4.
"""

from modulm.interfaces.parsers import TokenizerView
from modulm.interfaces.support import Support
from modulm_parsers_tools.json_calls import MarkedParser, match_mark


class HermesToolParser(MarkedParser):
    """One call between two tags, by rights; models also write several."""

    starts, ends = ("<tool_call>",), ("</tool_call>",)

    @classmethod
    def matches(cls, tokenizer: TokenizerView, chat_template: str) -> Support:
        """See `ResponseParser`; other formats have other things than JSON between the same tags."""
        return match_mark(chat_template, "<tool_call>", "<function=", "<arg_key>", "<parameter")
