"""`<atem:invoke name="NAME"><atem:parameter name="KEY">value</atem:parameter></atem:invoke>` in messages: Muse Glimmer.

Source: the chat template of Muse Glimmer. Calls are in messages to a function, ` to=NAME<|message|>`, answers in
those to `user`, thinking in those to `self`; what looks like a call in the latter two is none.
"""

from modulm.interfaces.parsers import Content
from modulm.interfaces.reading import GrowingText, Reading
from modulm_parsers_tools.channels import MESSAGE, START, ChannelParser
from modulm_parsers_tools.xml_calls import XMLParser


class MuseGlimmerToolParser(ChannelParser, XMLParser):
    """Reads calls in messages, and where there are none."""

    block = ("<atem:function_calls>", "</atem:function_calls>")
    function_start, function_end = '<atem:invoke name="', "</atem:invoke>"
    argument_start, argument_end = '<atem:parameter name="', "</atem:parameter>"
    name_end = '">'
    openings = ("to=", MESSAGE)
    ends = ("<|eom|>", "<|eot|>")
    starts = (block[0], function_start)
    frames = (
        *(f"{before}{to}{MESSAGE}" for before in ("", START + "assistant") for to in (" to=user", "to=user", "")),
        *ends,
    )
    special_tokens = (START, MESSAGE, *ends)
    signs = block[:1]

    def kind(self, header: str, recipient: str) -> str:
        """See `ChannelParser`."""
        role = header.partition("to=")[0].removesuffix(MESSAGE).removeprefix(START).strip()
        if role not in ("", "assistant"):
            return ""
        return {"": "answer", "user": "answer", "self": "thinking"}.get(recipient, "call")

    def function(self, text: GrowingText) -> Reading[str]:
        """See `XMLParser`; models double a name that has no namespace."""
        name = yield from super().function(text)
        first, _, second = name.partition(".")
        is_doubled = first == second and not (self.context.tools and self.is_known(name))
        return first if is_doubled else name

    def copy_calls(self, text: GrowingText, read: str, recipient: str) -> Reading[None]:
        """See `ChannelParser`."""
        text.record()
        if read not in self.starts:
            yield from text.skip_space()
            yield from text.accept(*self.starts)
        read += text.recorded()
        if found := next(filter(read.endswith, self.starts), ""):
            yield from self.copy_block(text, found, read.removesuffix(found))
        else:
            yield Content(read)
