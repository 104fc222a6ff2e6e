"""`<think:0123abcd>...</think:0123abcd>`: Hunyuan 3 and 4, whose tags carry a suffix of the checkpoint's own.

Source: their tokenizers and chat templates. `reasoning_effort` is "no_think" where version 3 is not told, and "high"
where version 4 is not.
"""

import re

from modulm.interfaces.parsers import ResponseContext
from modulm_parsers_reasoning.tagged import TaggedReasoningParser

_START = re.compile(r"<(?:think|tool_calls?|arg_key|arg_value)(:[^\s>]+)>")


class HunyuanV3ReasoningParser(TaggedReasoningParser):
    """No thinking unless prompt or request ask for it."""

    start_marker, end_marker = "<think>", "</think>"
    special_tokens = (start_marker, end_marker)
    starts_open = True
    usual_effort = "no_think"
    signs = ("no_think", "reasoning_effort")

    def __init__(self, context: ResponseContext) -> None:
        super().__init__(context)
        added = context.tokenizer.added_tokens.values() if context.tokenizer else ()
        suffix = next((found.group(1) for token in added if (found := _START.fullmatch(token))), "")
        self._pairs = {f"<think{suffix}>": f"</think{suffix}>"}

    def pairs(self) -> dict[str, str]:
        """See `TaggedReasoningParser`."""
        return self._pairs

    def is_off(self) -> bool:
        """See `TaggedReasoningParser`."""
        return (self.context.template_kwargs.get("reasoning_effort") or self.usual_effort) == "no_think"


class HunyuanV4ReasoningParser(HunyuanV3ReasoningParser):
    """Thinking unless prompt or request are against it."""

    usual_effort = "high"
