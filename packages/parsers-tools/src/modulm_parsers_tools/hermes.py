"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes 2 Pro and 3, Qwen 2.5 and 3, Granite 4.

Source: NousResearch's Hermes function-calling format, and the chat templates of Qwen 2.5, Qwen 3 and Granite 4.
"""

from modulm_parsers_tools.json_calls import MarkedParser


class HermesToolParser(MarkedParser):
    """One call between two tags, by rights; models also write several."""

    starts, ends = ("<tool_call>",), ("</tool_call>",)
    foreign_signs = ("<function=", "<arg_key>", "<parameter", "<tool_calls>", "]<]minimax[>[")
    around = ("<tool_call>\n", "\n</tool_call>")
