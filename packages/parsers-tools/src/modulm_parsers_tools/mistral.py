"""`[TOOL_CALLS]` and then a JSON list of calls, or `name[ARGS]{...}` for each: Mistral and Magistral.

Source: mistral-common's tokenizers: a list up to version 7; later each call behind a mark of its own, as
`[TOOL_CALLS]name[CALL_ID]id[ARGS]{...}` (11) or `[TOOL_CALLS]name[ARGS]{...}` (13), some models without `[ARGS]`.
"""

import re
import secrets
import string

from modulm.interfaces.parsers import Content, TokenizerView
from modulm.interfaces.reading import GrowingText, Reading
from modulm.interfaces.support import Accepted, Rejected, Support
from modulm_parsers_tools.json_calls import CallParser

_START, _ARGS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_NAME = re.compile(r"[\w.-]+")


class MistralToolParser(CallParser):
    """Reads what is behind each mark."""

    special_tokens = (_START, _ARGS, _ID)

    @classmethod
    def matches(cls, tokenizer: TokenizerView, chat_template: str) -> Support:
        """See `ResponseParser`."""
        if _START not in chat_template and _START not in tokenizer.added_tokens.values():
            return Rejected(f"neither chat template nor tokenizer has {_START}")
        return Accepted(f"the model has {_START}")

    def call_id(self, index: int, name: str) -> str:
        """Mistral's templates take ids of nine letters and digits only."""
        return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))

    def read(self, text: GrowingText) -> Reading[None]:
        """See `TextParser`."""
        while (yield from text.copy(Content, _START)):
            read = _START + (yield from text.skip_space())
            if (yield from text.peek()) == "[":
                yield from self.copy_marked(text, read, (), ())
            else:
                yield from self._named(text, read)

    def _named(self, text: GrowingText, read: str) -> Reading[None]:
        text.record()
        name = yield from text.take_while(_NAME)
        found = yield from text.accept(_ID, _ARGS)
        call_id = (yield from text.take_until(_ARGS)) if found == _ID else None
        yield from text.skip_space()
        if not name or (yield from text.peek()) != "{":
            yield Content(read + text.recorded())
            return
        yield self.begin(name, call_id)
        yield from self.copy_arguments(text)
