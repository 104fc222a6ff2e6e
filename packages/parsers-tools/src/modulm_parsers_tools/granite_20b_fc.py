"""`<function_call> {"name": ..., "arguments": {...}}`, the mark before each call: Granite 20B Functioncalling.

Source: the model card and chat template of granite-20b-functioncalling.
"""

from modulm_parsers_tools.json_calls import MarkedParser


class Granite20bFCToolParser(MarkedParser):
    """One object behind each mark, and nothing behind it."""

    starts = ("<function_call>",)
    around = ("<function_call> ", "")
