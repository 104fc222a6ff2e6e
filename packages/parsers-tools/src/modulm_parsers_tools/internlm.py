"""`<|action_start|><|plugin|>{"name": ..., "parameters": {...}}<|action_end|>`: InternLM 2.5 and later.

Source: InternLM's chat format, "function call".
"""

from modulm_parsers_tools.json_calls import MarkedParser


class InternLMToolParser(MarkedParser):
    """An object between tokens."""

    starts, ends = ("<|action_start|><|plugin|>",), ("<|action_end|>",)
    special_tokens = ("<|action_start|>", "<|plugin|>", "<|action_end|>")
