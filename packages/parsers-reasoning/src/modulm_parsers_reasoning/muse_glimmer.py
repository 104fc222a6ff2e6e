"""Messages to recipients, ` to=self<|message|>...<|eom|>` and so on: Muse Glimmer.

Source: its chat template. The model now and then goes on to a tool without ending its thoughts first.
"""

import re

from modulm.interfaces.parsers import Content, Reasoning
from modulm.interfaces.reading import Make
from modulm_parsers_reasoning.blocks import BlockReasoningParser

_KINDS: dict[str, Make] = {"to=self<|message|>": Reasoning, "to=user<|message|>": Content}


class MuseGlimmerReasoningParser(BlockReasoningParser):
    """What is said to itself is thinking, to the user the answer, and to anybody else a call."""

    start_marker, end_marker = " to=self<|message|>", " to=user<|message|>"
    turn = "<|start|>assistant"
    leads = (f"{turn} to=", " to=")
    bare_leads = ("to=",)
    header = re.compile(r"[^\s<]+")
    opens = ("<|message|>",)
    closes = ("<|eom|>", "<|eot|>")
    special_tokens = ("<|start|>", *opens, *closes)
    sign = "<atem:"

    def kind(self, header: str) -> Make | None:
        """See `BlockReasoningParser`."""
        return _KINDS.get(header.removeprefix(self.turn).strip())
