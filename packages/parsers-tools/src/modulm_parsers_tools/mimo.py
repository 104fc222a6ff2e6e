"""As Qwen3-Coder's, with values next to their tags: Xiaomi's MiMo V2.

Source: the chat template of MiMo-V2-Flash. A line break beside a tag is part of the value.
"""

from modulm.interfaces.parsers import TokenizerView
from modulm.interfaces.support import Support
from modulm_parsers_tools.json_calls import match_mark
from modulm_parsers_tools.qwen3_coder import Qwen3CoderToolParser


class MiMoToolParser(Qwen3CoderToolParser):
    """Takes values to the letter."""

    on_own_lines = False

    @classmethod
    def matches(cls, tokenizer: TokenizerView, chat_template: str) -> Support:
        """See `ResponseParser`; only the model's name in the template tells it from Qwen's."""
        return super().matches(tokenizer, chat_template) and match_mark(chat_template, "MiMo")
