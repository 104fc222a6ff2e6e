"""Blocks of a kind, `<|content_thinking|>...<|end_message|>` and so on: Inkling.

Source: its chat template, which ends in `<|message_model|>`. A function's name may stand before the mark of its call.
"""

import re

from modulm.interfaces.parsers import Content, Reasoning
from modulm.interfaces.reading import Make
from modulm_parsers_reasoning.blocks import BlockReasoningParser

_TEXT, _THINKING = "<|content_text|>", "<|content_thinking|>"
_CALLS = ("<|content_invoke_tool_json|>", "<|content_invoke_tool_text|>", "<|content_tool_error|>")


class InklingReasoningParser(BlockReasoningParser):
    """Any mark of a kind begins a block, with or without an end of the last."""

    start_marker, end_marker = _THINKING, _TEXT
    turn = "<|message_model|>"
    opens = (_TEXT, _THINKING, *_CALLS)
    leads = (turn, *opens)
    bare_leads = ("",)
    header = re.compile(r"[\w.-]+", re.ASCII)
    closes = ("<|end_message|>", "<|content_model_end_sampling|>")
    special_tokens = (*leads, *closes)
    sign = _THINKING

    def kind(self, header: str) -> Make | None:
        """See `BlockReasoningParser`."""
        if header.endswith(_CALLS[0]):
            return None
        return Reasoning if header.endswith(_THINKING) else Content
