"""As Hermes, and answers in `<response>`: Baidu's ERNIE 4.5 with thinking.

Source: the chat template of ERNIE-4.5-21B-A3B-Thinking. The tags around an answer stand on lines of their own.
"""

from modulm_parsers_tools.hermes import HermesToolParser


class Ernie45ToolParser(HermesToolParser):
    """Leaves out the tags around answers, and the line breaks that go with them."""

    frames = ("<response>\n", "<response>", "\n</response>", "</response>")
    signs = ("<tool_call>", "<response>")
