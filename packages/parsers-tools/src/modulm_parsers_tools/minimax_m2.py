"""`<invoke name="NAME"><parameter name="KEY">value</parameter></invoke>` in `<minimax:tool_call>`: MiniMax M2.

Source: MiniMax's tool calling guides for M2 and M2.5.
"""

from modulm_parsers_tools.xml_calls import XMLParser


class MiniMaxM2ToolParser(XMLParser):
    """Names are attributes."""

    block = ("<minimax:tool_call>", "</minimax:tool_call>")
    function_start, function_end = '<invoke name="', "</invoke>"
    argument_start, argument_end = '<parameter name="', "</parameter>"
    name_end = '">'
