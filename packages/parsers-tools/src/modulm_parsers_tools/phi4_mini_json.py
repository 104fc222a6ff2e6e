"""`functools[{"name": ..., "arguments": {...}}, ...]`: Phi 4 mini.

Source: Microsoft's Phi cookbook, function calling with Phi-4-mini.
"""

from modulm_parsers_tools.json_calls import MarkedParser


class Phi4MiniJsonToolParser(MarkedParser):
    """A list behind a word."""

    starts = ("functools",)
    around = ("functools[", "]")
