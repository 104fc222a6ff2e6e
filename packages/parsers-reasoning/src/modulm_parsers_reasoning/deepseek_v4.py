"""`<think>...</think>` of DeepSeek V4 and V4.1, ended by calls in DSML too.

Source: DeepSeek's own encoding of conversations, which ends the prompt in either tag.
"""

from modulm_parsers_reasoning.tagged import TaggedReasoningParser

_DSML = "<｜DSML｜"


class DeepSeekV4ReasoningParser(TaggedReasoningParser):
    """Everything is thinking until the end tag, unless prompt or request say otherwise; it may begin anew."""

    start_marker, end_marker = "<think>", "</think>"
    special_tokens = (start_marker, end_marker)
    starts_open = True
    thinks_again = True
    also_end = (f"{_DSML}tool_calls>", f"{_DSML} calls>", f"{_DSML}toolcalls>", f"{_DSML}tool>")
    signs = (end_marker, "｜DSML｜")

    def is_off(self) -> bool:
        """See `TaggedReasoningParser`."""
        return super().is_off() or self.context.template_kwargs.get("reasoning_effort") == "none"
