"""As Qwen3-Coder's, with values next to their tags: Xiaomi's MiMo V2.

Source: the chat template of MiMo-V2-Flash. A line break beside a tag is part of the value.
"""

from modulm_parsers_tools.qwen3_coder import Qwen3CoderToolParser


class MiMoToolParser(Qwen3CoderToolParser):
    """Takes values to the letter."""

    on_own_lines = False
    signs = (*Qwen3CoderToolParser.signs, "MiMo")
