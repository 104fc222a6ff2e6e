"""`<|tool_call|>[{"name": ..., "arguments": {...}}, ...]`: Granite 3.

Source: the chat templates of Granite 3.0 (`<|tool_call|>`) and 3.1 to 3.3 (`<tool_call>` as well).
Nothing stands behind the list.
"""

from modulm_parsers_tools.json_calls import MarkedParser


class GraniteToolParser(MarkedParser):
    """A list behind a token, or behind a tag of the same name."""

    starts = ("<|tool_call|>", "<tool_call>")
    special_tokens = ("<|tool_call|>",)
