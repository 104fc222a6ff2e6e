"""`name(argument=value, ...)`, a line for each call, in `<function_calls>`: Ai2's Olmo 3.

Source: the chat template of Olmo-3-7B-Instruct. Values are Python's or JSON's.
"""

from modulm.interfaces.reading import GrowingText, Reading
from modulm_parsers_tools.pythonic import PythonicToolParser

_START, _END = "<function_calls>", "</function_calls>"


class Olmo3ToolParser(PythonicToolParser):
    """The mark says that calls follow, so any name is good."""

    signs, foreign_signs = (_START,), ("<invoke",)

    def is_known(self, name: str) -> bool:
        """Any is."""
        return True

    def read(self, text: GrowingText) -> Reading[None]:
        """See `TextParser`."""
        while (yield from self.copy_content(text, _START)):
            yield from self.copy_list(text, _START, _END)
