"""The format that a checkpoint describes itself, by `response_template` in its tokenizer's configuration.

Source: transformers' documentation of response templates. A template names fields, and texts that open and close
them; those of `thinking` and `content` are told here, others are left as they are for the tool parser. Openings and
closings that are patterns are refused: how much of a stream belongs to them is not known before its end.
"""

from collections.abc import Mapping
from typing import Any

from modulm.errors import ConfigError
from modulm.interfaces.parsers import (
    Content,
    Reasoning,
    ReasoningParser,
    ResponseContext,
    SamplingParams,
    TokenizerView,
)
from modulm.interfaces.reading import GrowingText, Make, Reading, TextParser
from modulm.interfaces.support import Rejected, Support

_MAKERS: dict[str, Make] = {"thinking": Reasoning, "content": Content}


class ResponseTemplateReasoningParser(TextParser, ReasoningParser):
    """Reads region after region. A text in no region is content."""

    def __init__(self, context: ResponseContext) -> None:
        super().__init__(context)
        template = getattr(context.tokenizer, "response_template", None) or {}
        if context.tokenizer is not None and "thinking" not in template.get("fields", {}):
            lack = "has no field 'thinking'" if template else "is not there"
            raise _refused(f"it reads what the tokenizer's response_template describes, which {lack}")
        fields: Mapping[str, Any] = template.get("fields", {})
        self._closes = {name: _literals(name, field, "close") for name, field in fields.items()}
        self._opens = {word: name for name, field in fields.items() for word in _literals(name, field, "open")}
        explicit = set(self._opens.values())
        self._thinking = _literals("thinking", fields.get("thinking", {}), "open")
        self._implicit = next((name for name in fields if name not in explicit), None)
        self._anchors = _literals("start_anchor", template, "start_anchor")

    @classmethod
    def matches(cls, tokenizer: TokenizerView, chat_template: str) -> Support:
        """See `ResponseParser`: `Parsers` has built one, so the template can be read where there is one."""
        return Rejected("it is for those who name it")

    @classmethod
    def adjust(cls, params: SamplingParams, context: ResponseContext) -> SamplingParams:
        """Any mark of the template may be a special token."""
        return params.clone(skip_special_tokens=False)

    def marks(self) -> tuple[str | None, tuple[str, ...]]:
        """See `ReasoningParser`."""
        return next(iter(self._thinking), None), self._closes.get("thinking", ())

    def read(self, text: GrowingText) -> Reading[None]:
        """See `TextParser`."""
        region = self._after_prompt()
        while True:
            make = Content if region is None else _MAKERS.get(region, Content)
            found = yield from text.copy(make, *self._ends(region))
            if not found:
                return
            before, region = region, self._next(region, found)
            if any(name not in (None, *_MAKERS) for name in (before, region)):
                yield Content(found)

    def _ends(self, region: str | None) -> tuple[str, ...]:
        if region is not None and region != self._implicit:
            return self._closes[region]
        return (*self._opens, *(self._closes[region] if region else ()))

    def _next(self, region: str | None, found: str) -> str | None:
        is_explicit = region is not None and region != self._implicit
        return self._implicit if is_explicit else self._opens.get(found, self._implicit)

    def _after_prompt(self) -> str | None:
        """Return the region that is open where the response begins."""
        prompt, region = self.context.prompt, self._implicit
        at = max((prompt.rfind(anchor) + len(anchor) for anchor in self._anchors if anchor in prompt), default=None)
        if at is None:
            return region
        while found := [
            (prompt.find(word, at), -len(word), word) for word in self._ends(region) if word in prompt[at:]
        ]:
            begin, _, word = min(found)
            at, region = begin + len(word), self._next(region, word)
        return region


def _literals(name: str, field: Mapping[str, Any], key: str) -> tuple[str, ...]:
    if f"{key}_pattern" in field:
        raise _refused(f"the response_template's {name} has {key}_pattern, and patterns cannot be followed in a stream")
    said = field.get(key, ())
    return (said,) if isinstance(said, str) else tuple(said)


def _refused(why: str) -> ConfigError:
    return ConfigError(f"Reasoning parser 'hf' is refused: {why}. Name the model's own format, or 'auto'.")
