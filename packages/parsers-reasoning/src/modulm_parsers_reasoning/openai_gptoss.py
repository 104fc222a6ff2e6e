"""Harmony's channels, `<|channel|>analysis<|message|>...<|end|>` and so on: gpt-oss.

Source: OpenAI's description of the harmony format, and the chat template of gpt-oss.
"""

import re

from modulm.interfaces.parsers import Content, Reasoning
from modulm.interfaces.reading import Make
from modulm_parsers_reasoning.blocks import BlockReasoningParser

_HEADER = re.compile(
    r"(?:<\|start\|>assistant)?<\|channel\|>(analysis|commentary|final) ?(?:(?:<\|constrain\|>)?\w+)?<\|message\|>"
)


class HarmonyReasoningParser(BlockReasoningParser):
    """`analysis` is thinking, a message to a recipient is a call, and all else, preambles too, is the answer."""

    start_marker, end_marker = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
    other_end_markers = ("<|channel|>final <|constrain|>json<|message|>",)
    turn = "<|start|>assistant"
    leads = (turn, "<|channel|>")
    bare_leads = (" to=", "to=")
    within = ("<|channel|>", "<|constrain|>")
    header = re.compile(r"[\w .=:/-]+")
    opens = ("<|message|>",)
    closes = ("<|end|>", "<|return|>", "<|call|>")
    special_tokens = ("<|start|>", *within, *opens, *closes)
    sign = "<|channel|>"

    def kind(self, header: str) -> Make | None:
        """See `BlockReasoningParser`."""
        found = _HEADER.fullmatch(header)
        if found is None:
            return None
        return Reasoning if found.group(1) == "analysis" else Content
