"""As DeepSeek V3.2's, with other tags: DeepSeek V4 and V4.1.

Source: the encodings that come with DeepSeek-V4 and V4.1.
"""

from modulm_parsers_tools.deepseek_v32 import DeepSeekV32ToolParser


class DeepSeekV4ToolParser(DeepSeekV32ToolParser):
    """The block has another name, and models write two more that nothing closes."""

    block = ("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>")
    frames = ("<｜DSML｜toolcalls>", "<｜DSML｜tool>")


class DeepSeekV41ToolParser(DeepSeekV32ToolParser):
    """Each tag has a space in it."""

    block = ("<｜DSML｜ calls>", "</｜DSML｜ calls>")
    function_start, function_end = '<｜DSML｜ invoke name="', "</｜DSML｜ invoke>"
    argument_start, argument_end = '<｜DSML｜ parameter name="', "</｜DSML｜ parameter>"
