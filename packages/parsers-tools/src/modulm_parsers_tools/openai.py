"""Harmony: `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>`, OpenAI's gpt-oss.

Source: OpenAI's harmony response format, and the chat template of gpt-oss, which names the function before the channel.
Answers are in the channel `final`, what is said before calls in `commentary`, thinking in `analysis`.
"""

from modulm.interfaces.parsers import Content
from modulm.interfaces.reading import GrowingText, Reading
from modulm_parsers_tools.channels import MESSAGE, START, ChannelParser

_CHANNEL, _CONSTRAIN, _FUNCTIONS = "<|channel|>", "<|constrain|>", "functions."


class OpenAIToolParser(ChannelParser):
    """Calls are messages to functions, in whatever channel."""

    openings = (_CHANNEL, f"to={_FUNCTIONS}")
    header_marks = (_CHANNEL, _CONSTRAIN)
    ends = ("<|end|>", "<|call|>", "<|return|>")
    frames = (
        *(
            f"{before}{_CHANNEL}{name}{constraint}{MESSAGE}"
            for before in ("", START + "assistant")
            for name in ("final", "commentary")
            for constraint in ("", f" {_CONSTRAIN}json")
        ),
        *(START + "assistant" + MESSAGE, MESSAGE, *ends),
    )
    special_tokens = (START, MESSAGE, _CHANNEL, _CONSTRAIN, *ends)
    signs = (_CHANNEL, MESSAGE)

    def kind(self, header: str, recipient: str) -> str:
        """See `ChannelParser`. Built-in tools are nobody's here, so messages to them are content."""
        role, _, rest = header.partition(_CHANNEL)
        if role.startswith(START) and not role.removeprefix(START).startswith("assistant"):
            return ""
        if recipient:
            is_function = recipient.startswith(_FUNCTIONS) or (self.context.tools and self.is_known(recipient))
            return "call" if is_function else ""
        channel = rest.split()[0] if rest.split() else ""
        return {"": "answer", "final": "answer", "commentary": "answer", "analysis": "thinking"}.get(
            channel.partition(_CONSTRAIN)[0], ""
        )

    def copy_calls(self, text: GrowingText, read: str, recipient: str) -> Reading[None]:
        """See `ChannelParser`."""
        text.record()
        yield from text.skip_space()
        if (yield from text.peek()) != "{":
            yield Content(read + text.recorded())
            return
        text.recorded()
        yield self.begin(recipient.removeprefix(_FUNCTIONS))
        yield from self.copy_arguments(text)
