"""Where older parser files look for `vllm.tool_parsers`."""

from vllm.tool_parsers import ToolParser, ToolParserManager

__all__ = ["ToolParser", "ToolParserManager"]
