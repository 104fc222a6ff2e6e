"""`<seed:think>...</seed:think>`: ByteDance's Seed OSS.

Source: the chat template of Seed-OSS-36B-Instruct. What its budgets write into the thinking is left there.
"""

from modulm_parsers_reasoning.tagged import TaggedReasoningParser


class SeedOSSReasoningParser(TaggedReasoningParser):
    """Everything is thinking until the end tag."""

    start_marker, end_marker = "<seed:think>", "</seed:think>"
    special_tokens = (start_marker, end_marker)
    starts_open = True
