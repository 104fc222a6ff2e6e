"""What a client may ask of the form of an output, in vLLM's words, checked the moment it is built.

Whether a schema, an expression or a grammar can be enforced is for backends to say (`interfaces/structured.py`); here
only what is plainly wrong is refused.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from modulm.errors import RequestError

Kind = Literal["json", "json_object", "regex", "choice", "grammar", "structural_tag"]
KINDS: tuple[Kind, ...] = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
MAX_CHARACTERS = 1 << 20
"""Longest schema, expression or grammar."""


@dataclass(kw_only=True)
class StructuredOutputsParams:
    """The form that an output must have: exactly one of the first six is set. Raises `RequestError` on bad values.

    Attributes:
        json: A JSON Schema, as an object or as text; kept as text.
        regex: A regular expression that the whole output matches.
        choice: The output is one of these texts.
        grammar: A grammar in Lark's or GBNF's notation (EBNF).
        json_object: Any JSON object.
        structural_tag: JSON text: free text in which tags begin parts that have a form.
        disable_any_whitespace: No white space between the parts of JSON.
        whitespace_pattern: Regular expression of the white space that JSON may have.
        disable_additional_properties: Objects have no members that a schema does not name.
    """

    json: str | dict[str, Any] | bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool = False
    whitespace_pattern: str | None = None
    disable_additional_properties: bool = False

    def __post_init__(self) -> None:
        asked = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(asked) != 1:
            there = " and ".join(asked) or "none of them"
            raise _refused(f"exactly one of {', '.join(KINDS)} is to be set, and there is {there}")
        for name in ("disable_any_whitespace", "disable_additional_properties"):
            if not isinstance(getattr(self, name), bool):
                raise _refused(f"{name}={getattr(self, name)!r:.100}: it must be true or false")
        self.json = _as_text("json", self.json)
        self.structural_tag = _as_text("structural_tag", self.structural_tag)
        self._check_texts()
        if self.json_object is not None and self.json_object is not True:
            raise _refused(f"json_object={self.json_object!r:.100}: true asks for an object; leave it out for none")
        if self.choice is not None:
            _check_choice(self.choice)

    @property
    def kind(self) -> Kind:
        """Which of the six is set."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def text(self) -> str:
        """What it is set to; JSON text for `json`, `structural_tag` and `choice`, empty for `json_object`."""
        kind = self.kind
        value = getattr(self, kind)
        return json.dumps(value) if kind == "choice" else "" if kind == "json_object" else str(value)

    def _check_texts(self) -> None:
        for name in ("regex", "grammar", "json", "structural_tag", "whitespace_pattern"):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, str):
                raise _refused(f"{name}={value!r:.100}: it must be a text")
            if not (value if name == "whitespace_pattern" else value.strip()) and name != "regex":
                raise _refused(f"{name} is empty")
            if len(value) > MAX_CHARACTERS:
                raise _refused(f"{name} has {len(value):,} characters, and at most {MAX_CHARACTERS:,} are read")
            if "\0" in value:
                raise _refused(f"{name} holds the character NUL, which no token has")


def _as_text(name: str, value: Any) -> str | None:
    """Return JSON as text; a text must be JSON."""
    if value is None:
        return None
    try:
        if isinstance(value, str):
            json.loads(value)
            return value
        if isinstance(value, Mapping | bool):
            return json.dumps(value)
    except RecursionError as error:
        raise _refused(f"{name} is nested too deeply to be read") from error
    except (TypeError, ValueError) as error:
        raise _refused(f"{name} is no JSON: {error}") from error
    raise _refused(f"{name}={value!r:.100}: it must be a JSON object, or its text")


def _check_choice(choice: Any) -> None:
    if not isinstance(choice, list) or not choice or any(not isinstance(text, str) or not text for text in choice):
        raise _refused(f"choice={choice!r:.100}: it must be a list of texts, none of them empty")


def _refused(why: str) -> RequestError:
    return RequestError(f"structured_outputs is refused: {why}.", parameter="structured_outputs")
