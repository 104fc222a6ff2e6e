"""`<tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>`: Qwen3-Coder.

Source: the chat template of Qwen3-Coder. Each tag stands on a line of its own.
"""

from modulm_parsers_tools.xml_calls import XMLParser


class Qwen3CoderToolParser(XMLParser):
    """Names stand behind an equals sign."""

    block = ("<tool_call>", "</tool_call>")
    function_start, function_end = "<function=", "</function>"
    argument_start, argument_end = "<parameter=", "</parameter>"
    on_own_lines = True
