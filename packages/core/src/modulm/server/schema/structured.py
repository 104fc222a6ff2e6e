"""The form that an answer must have, in OpenAI's words (`response_format`) and in vLLM's.

`guided_*` are vLLM's older names. What forms there are is in `structured_outputs.py`.
"""

from typing import TYPE_CHECKING, Any

from modulm.errors import RequestError, did_you_mean
from modulm.structured_outputs import StructuredOutputsParams

if TYPE_CHECKING:
    from modulm.server.schema.sampling import GenerationRequest

FIELDS = ("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")
_TYPES = ("text", "json_object", "json_schema", "structural_tag")


def asked_form(body: "GenerationRequest") -> tuple[str, Any]:
    """Return the field that asks for a form, and its value; ("structured_outputs", None) when none does.

    Raises `RequestError` when several do.
    """
    asked = [(name, value) for name in FIELDS if (value := getattr(body, name)) is not None]
    if len(asked) > 1 and asked[0] == ("response_format", {"type": "text"}):
        asked = asked[1:]
    if len(asked) > 1:
        names = " and ".join(name for name, _ in asked)
        raise RequestError(f"{names} each ask for a form. Leave all out but one.", parameter=asked[1][0])
    return asked[0] if asked else ("structured_outputs", None)


def form_of(body: "GenerationRequest") -> StructuredOutputsParams | None:
    """Return the form that a request asks for, or None. Raises `RequestError` naming the field."""
    name, value = asked_form(body)
    if value is None:
        return None
    try:
        if name == "response_format":
            return _response_format(value)
        if name == "structured_outputs":
            return _made(name, value)
        return StructuredOutputsParams(**{name.removeprefix("guided_"): value})
    except RequestError as error:
        raise RequestError(str(error).replace("structured_outputs", name, 1), parameter=name) from error


def _response_format(value: dict[str, Any]) -> StructuredOutputsParams | None:
    kind = value.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputsParams(json_object=True)
    if kind == "structural_tag":
        return StructuredOutputsParams(structural_tag=value)
    if kind != "json_schema":
        hint = did_you_mean(str(kind), _TYPES)
        raise _refused(f"type {kind!r:.100} is unknown. There are: {', '.join(_TYPES)}.{hint}")
    described = value.get("json_schema")
    schema = described.get("schema") if isinstance(described, dict) else None
    if not isinstance(schema, dict):
        raise _refused("json_schema.schema must be a JSON Schema, as an object.")
    if described is not None and not isinstance(described.get("strict"), bool | None):
        raise _refused("json_schema.strict must be true or false; the schema is enforced in either case.")
    return StructuredOutputsParams(json=schema)


def _made(field: str, value: dict[str, Any]) -> StructuredOutputsParams:
    known = StructuredOutputsParams.__dataclass_fields__
    for name in value:
        if name not in known:
            raise _refused(f"{name!r:.100} is unknown.{did_you_mean(name, known)} Known: {', '.join(known)}.", field)
    return StructuredOutputsParams(**value)


def _refused(why: str, field: str = "response_format") -> RequestError:
    return RequestError(f"{field} is refused: {why}", parameter=field)
