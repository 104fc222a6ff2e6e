"""As Qwen3-Coder's, in `<seed:tool_call>`: ByteDance's Seed OSS.

Source: the chat template of Seed-OSS-36B-Instruct.
"""

from modulm_parsers_tools.qwen3_coder import Qwen3CoderToolParser


class SeedOSSToolParser(Qwen3CoderToolParser):
    """Only the outer tags differ."""

    block = ("<seed:tool_call>", "</seed:tool_call>")
