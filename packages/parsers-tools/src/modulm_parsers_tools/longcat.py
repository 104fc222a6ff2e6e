"""`<longcat_tool_call>{"name": ..., "arguments": {...}}</longcat_tool_call>`: LongCat Flash.

Source: the chat template of LongCat-Flash-Chat.
"""

from modulm_parsers_tools.json_calls import MarkedParser


class LongCatToolParser(MarkedParser):
    """As Hermes, between tags of its own."""

    starts, ends = ("<longcat_tool_call>",), ("</longcat_tool_call>",)
    around = ("<longcat_tool_call>", "</longcat_tool_call>")
