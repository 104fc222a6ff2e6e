"""The format that a checkpoint describes itself, by `response_template` in its tokenizer's configuration.

Source: transformers' documentation of response templates. Only the end of a call says what it was, so calls are told
whole. Marks around `content` are left out; those of `thinking` are the reasoning parser's.
"""

import json
from collections.abc import Mapping
from typing import Any

from modulm.interfaces.parsers import Content, Event, ResponseContext, SamplingParams, TokenizerView
from modulm.interfaces.reading import NOTHING, GrowingText, Reading
from modulm.interfaces.support import Rejected, Support
from modulm_parsers_tools.json_calls import CallParser
from modulm_parsers_tools.response_template import Anchor, CallField, refused
from modulm_parsers_tools.schemas import as_value, types_of


class ResponseTemplateToolParser(CallParser):
    """Looks for the field `tool_calls`. Raises `ConfigError` where the tokenizer's template has none to read."""

    def __init__(self, context: ResponseContext) -> None:
        super().__init__(context)
        template = getattr(context.tokenizer, "response_template", None) or {}
        fields: Mapping[str, Any] = template.get("fields", {})
        self._field: CallField | None = None
        if "tool_calls" in fields:
            self._field = CallField(fields["tool_calls"])
        elif context.tokenizer is not None:
            raise refused("that has no field 'tool_calls'" if template else "there is none")
        content = fields.get("content", {})
        self._frames = tuple(
            word for key in ("open", "close") if f"{key}_pattern" not in content for word in Anchor(content, key).words
        )

    @classmethod
    def matches(cls, tokenizer: TokenizerView, chat_template: str) -> Support:
        """See `ResponseParser`; formats that tell calls as they come are better."""
        return Rejected("it is for those who name it")

    @classmethod
    def adjust(cls, params: SamplingParams, context: ResponseContext) -> SamplingParams:
        """Any mark of the template may be a special token."""
        return params.clone(skip_special_tokens=False)

    def read(self, text: GrowingText) -> Reading[None]:
        """See `TextParser`."""
        field = self._field
        while field is not None and (found := (yield from text.copy(Content, *field.open.words, *self._frames))):
            if found in field.open.words:
                yield from self._region(text, field, found)

    def _region(self, text: GrowingText, field: CallField, opening: str) -> Reading[None]:
        """Report the calls behind an opening; all of it is content if there are none."""
        opened = yield from field.open.rest(text, opening)
        if opened is None:
            yield Content(opening)
            return
        body: list[str] = []

        def keep(piece: str) -> Event:
            body.append(piece)
            return NOTHING

        while word := (yield from text.copy(keep, *field.close.words)):
            closed = yield from field.close.rest(text, word)
            if closed is not None:
                word += closed[0]
                break
            body.append(word)
        try:
            calls = field.calls("".join(body), opened[1])
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            yield Content("".join([opening, opened[0], *body, word]))
            return
        for name, arguments in calls:
            yield self.begin(name)
            yield self.arguments(self._as_json(name, arguments))

    def _as_json(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return arguments as JSON; a text that cannot be a string is what its schema says."""
        schema = self.context.parameters(name) or {}
        properties = schema.get("properties")
        members = []
        for key, value in arguments.items():
            types = types_of(properties.get(key), schema) if isinstance(properties, Mapping) else frozenset[str]()
            written = json.dumps(value, ensure_ascii=False)
            if isinstance(value, str) and types and "string" not in types:
                written = as_value(value, types)
            members.append(f"{json.dumps(key, ensure_ascii=False)}: {written}")
        return "{" + ", ".join(members) + "}"
