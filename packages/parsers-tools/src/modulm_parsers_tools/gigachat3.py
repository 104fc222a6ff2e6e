"""`function call<|role_sep|>` and `{"name": ..., "arguments": {...}}`: Sber's GigaChat 3.

Source: the chat templates of GigaChat3-10B-A1.8B, where a call is a message of a role of its own behind the
assistant's, and of later ones, which write `<|function_call|>`. `<|message_sep|>` ends a message.
"""

from modulm.interfaces.parsers import TokenizerView
from modulm.interfaces.support import Support
from modulm_parsers_tools.json_calls import MarkedParser, match_mark


class GigaChat3ToolParser(MarkedParser):
    """One object behind the role's name."""

    starts = ("function call<|role_sep|>", "<|function_call|>")
    frames = ("<|message_sep|>",)
    special_tokens = ("<|role_sep|>", "<|function_call|>", "<|message_sep|>")

    @classmethod
    def matches(cls, tokenizer: TokenizerView, chat_template: str) -> Support:
        """See `ResponseParser`; the template puts the mark together."""
        if found := match_mark(chat_template, "<|function_call|>"):
            return found
        return match_mark(chat_template, "<|role_sep|>") and match_mark(chat_template, "'function call'")
