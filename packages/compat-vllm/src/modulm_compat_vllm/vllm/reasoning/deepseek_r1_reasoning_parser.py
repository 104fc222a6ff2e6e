"""DeepSeek R1's format: <think> and </think>, the first of which the prompt may hold already."""

from vllm.reasoning.basic_parsers import BaseThinkingReasoningParser


class DeepSeekR1ReasoningParser(BaseThinkingReasoningParser):
    """A response is thinking from its first character."""

    starts_with_reasoning = True

    @property
    def start_token(self) -> str:
        """See base class."""
        return "<think>"

    @property
    def end_token(self) -> str:
        """See base class."""
        return "</think>"
