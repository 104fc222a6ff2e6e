"""`<|open|>think<|sep|>...<|close|>think<|sep|>` and a channel for the answer: Kimi K3.

Source: its chat template, which opens one of the two channels at the end of the prompt. Calls have a third.
"""

from modulm_parsers_reasoning.tagged import TaggedReasoningParser

_CLOSE = "<|close|>think<|sep|>"
_RESPONSE, _END = "<|open|>response<|sep|>", "<|close|>response<|sep|>"


class KimiK3ReasoningParser(TaggedReasoningParser):
    """Tags are made of special tokens; those around the answer and the message are nobody's text."""

    start_marker, end_marker = "<|open|>think<|sep|>", f"{_CLOSE}{_RESPONSE}"
    special_tokens = ("<|open|>", "<|close|>", "<|sep|>")
    signs = ("<|open|>", "<|close|>", "<|sep|>")
    also_end = ("<|open|>tools<|sep|>",)
    dropped = (_RESPONSE, _END, "<|close|>message<|sep|>")

    def pairs(self) -> dict[str, str]:
        """See `TaggedReasoningParser`; a grammar waits for the answer's channel, too."""
        return {self.start_marker: _CLOSE}
