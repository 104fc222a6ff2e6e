"""`function call<|role_sep|>` and `{"name": ..., "arguments": {...}}`: Sber's GigaChat 3.

Source: the chat templates of GigaChat3-10B-A1.8B, where a call is a message of a role of its own behind the
assistant's, and of later ones, which write `<|function_call|>`. `<|message_sep|>` ends a message.
"""

from modulm.interfaces.parsers import TokenizerView
from modulm.interfaces.support import Accepted, Support
from modulm_parsers_tools.json_calls import MarkedParser


class GigaChat3ToolParser(MarkedParser):
    """One object behind the role's name."""

    starts = ("function call<|role_sep|>", "<|function_call|>")
    frames = ("<|message_sep|>",)
    special_tokens = ("<|role_sep|>", "<|function_call|>", "<|message_sep|>")
    signs = ("<|role_sep|>", "'function call'")

    @classmethod
    def matches(cls, tokenizer: TokenizerView, chat_template: str) -> Support:
        """See `ResponseParser`; earlier templates put the mark together."""
        later = "<|function_call|>"
        if later in chat_template:
            return Accepted(f"the chat template has {later}")
        return super().matches(tokenizer, chat_template)
