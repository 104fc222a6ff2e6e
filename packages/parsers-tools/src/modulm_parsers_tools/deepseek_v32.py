"""`<｜DSML｜invoke name="NAME"><｜DSML｜parameter name="KEY" string="true">value</...>` in a block: DeepSeek V3.2.

Source: the encoding that comes with DeepSeek-V3.2. `string` says whether a value is a string or JSON.
"""

import re

from modulm.interfaces.parsers import TokenizerView
from modulm.interfaces.reading import GrowingText, Reading
from modulm.interfaces.support import Accepted, Rejected, Support
from modulm_parsers_tools.xml_calls import XMLParser

_DSML = "｜DSML｜"
_NAME = re.compile(r'[^"<>]+')


class DeepSeekV32ToolParser(XMLParser):
    """Names are attributes; later versions differ in their tags only."""

    block = ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>")
    function_start, function_end = '<｜DSML｜invoke name="', "</｜DSML｜invoke>"
    argument_start, argument_end = '<｜DSML｜parameter name="', "</｜DSML｜parameter>"
    name_end = '">'
    special_tokens = (_DSML,)

    @classmethod
    def matches(cls, tokenizer: TokenizerView, chat_template: str) -> Support:
        """See `ResponseParser`; templates put the tags together from a variable."""
        name = cls.block[0].removeprefix(f"<{_DSML}")
        if _DSML in chat_template and re.search(rf"(?:{_DSML}|}}}}|['\"]){name}", chat_template):
            return Accepted(f"the chat template has {_DSML} and {name}")
        return Rejected(f"the chat template has no {cls.block[0]}")

    def argument(self, text: GrowingText) -> Reading[tuple[str, bool | None]]:
        """See `XMLParser`."""
        key = yield from text.take_while(_NAME)
        yield from text.accept('"')
        yield from text.skip_space()
        found = yield from text.accept('string="true"', 'string="false"')
        yield from text.skip_space()
        yield from text.accept(">")
        return key, found == 'string="true"' if found else None
