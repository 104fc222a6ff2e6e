"""`<tool_calls>[{"name": ..., "arguments": {...}}, ...]</tool_calls>`: Jamba 1.5 and later, Hunyuan A13B.

Source: the chat templates of AI21's Jamba and of Hunyuan-A13B-Instruct.
"""

from modulm_parsers_tools.json_calls import MarkedParser


class JambaToolParser(MarkedParser):
    """A list between two tags."""

    starts, ends = ("<tool_calls>",), ("</tool_calls>",)
    around = ("<tool_calls>[", "]</tool_calls>")
