"""lm-format-enforcer's parsers, made to write JSON and nothing else where it lets more through.

It lets through the numbers "1.e5", for integers "1e-1" and "-0.5", and the object {"a": 1,}. Parsers are immutable, but
for their lists, in which numbers and objects are replaced as soon as they are put there.
"""

import re
from collections.abc import Hashable
from typing import Any, cast

import interegular
from lmformatenforcer import (
    CharacterLevelParser,
    JsonSchemaParser,
    RegexParser,
    StringParser,
    UnionParser,
)
from lmformatenforcer.characterlevelparser import CharacterLevelParserConfig
from lmformatenforcer.consts import COMPLETE_ALPHABET
from lmformatenforcer.jsonschemaparser import NumberParsingState, ObjectParsingStage, ObjectParsingState

from modulm.interfaces.structured import StructuredOutputsParams
from modulm_structured_lmfe.expressions import read_expression
from modulm_structured_lmfe.schemas import read

_MOST_SPACES = 24
"""Enough for a line and its indentation."""


def parser_of(params: StructuredOutputsParams, alphabet: str | None = None) -> CharacterLevelParser:
    """Return a form that is supported as a parser. Raises `ValueError` with the reason why there is none."""
    kind, text, alphabet = params.kind, params.text, alphabet or COMPLETE_ALPHABET
    if kind == "regex":
        return _regex_parser(read_expression(text), CharacterLevelParserConfig(alphabet=alphabet))
    if kind == "choice":
        parser = UnionParser([StringParser(choice) for choice in params.choice or ()])
        parser.config = CharacterLevelParserConfig(alphabet=alphabet)
        return parser
    config = CharacterLevelParserConfig(
        alphabet="".join(character for character in alphabet if character >= " "),
        max_consecutive_whitespaces=0 if params.disable_any_whitespace else _MOST_SPACES,
    )
    return JsonParser.of({"type": "object"} if kind == "json_object" else read(text), config)


class JsonParser(CharacterLevelParser):
    """What `JsonSchemaParser` reads, with right numbers."""

    def __init__(self, parser: CharacterLevelParser, config: CharacterLevelParserConfig) -> None:
        super().__init__(config)
        self._parser = _corrected(parser)

    @classmethod
    def of(cls, schema: Any, config: CharacterLevelParserConfig) -> "JsonParser":
        """Return the parser of a schema. Raises `ValueError` with the reason why there is none."""
        try:
            return cls(JsonSchemaParser(schema, config), config)
        except Exception as error:  # it raises whatever comes, also plain `Exception`
            raise ValueError(f"lm-format-enforcer does not read it: {error}") from error

    def add_character(self, new_character: str) -> CharacterLevelParser:
        """See `CharacterLevelParser`."""
        return JsonParser(self._parser.add_character(new_character), self.config)

    def get_allowed_characters(self) -> str:
        """See `CharacterLevelParser`."""
        return str(self._parser.get_allowed_characters())

    def can_end(self) -> bool:
        """See `CharacterLevelParser`."""
        return bool(self._parser.can_end())

    def shortcut_key(self) -> Hashable | None:
        """See `CharacterLevelParser`."""
        return self._parser.shortcut_key()


class JsonNumber(NumberParsingState):
    """A number as JSON writes it; an integer without exponent."""

    def _clone(self) -> "JsonNumber":
        return cast("JsonNumber", _as(JsonNumber, self))

    def get_allowed_characters(self) -> str:
        """See `CharacterLevelParser`."""
        if self.parsed_string.endswith("."):
            return "0123456789"
        allowed = str(super().get_allowed_characters())
        return allowed if self.allow_floating_point else re.sub(r"[.eE]", "", allowed)


class JsonMembers(ObjectParsingState):
    """An object: after a comma it goes on."""

    def clone(self) -> "JsonMembers":
        """Return a copy."""
        return cast("JsonMembers", _as(JsonMembers, self, existing_keys=list(self.existing_keys)))

    def get_allowed_characters(self) -> str:
        """See `CharacterLevelParser`."""
        allowed = str(super().get_allowed_characters())
        is_after_comma = self.current_stage == ObjectParsingStage.PARSING_KEY_OR_END and self.existing_keys
        return allowed.replace("}", "") if is_after_comma else allowed


def _as(cls: type[Any], parser: Any, **changes: Any) -> Any:
    made = object.__new__(cls)
    made.__dict__.update(parser.__dict__, **changes)
    return made


_REPLACED = {NumberParsingState: JsonNumber, ObjectParsingState: JsonMembers}


def _corrected(parser: Any) -> Any:
    """Replace the numbers and objects in a parser."""
    if type(parser) in _REPLACED:
        return _as(_REPLACED[type(parser)], parser)
    held = parser.object_stack if isinstance(parser, JsonSchemaParser) else []
    held = parser.parsers if isinstance(parser, UnionParser) else held
    held[:] = map(_corrected, held)
    return parser


def _regex_parser(text: str, config: CharacterLevelParserConfig) -> RegexParser:
    try:
        return RegexParser(text, config)
    except (interegular.InvalidSyntax, interegular.Unsupported) as error:
        raise ValueError(f"the expression is not read: {str(error) or type(error).__name__}") from error
