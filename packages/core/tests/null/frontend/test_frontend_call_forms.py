"""Which form calls must have, by what the request asks, the parser can say and the backend can do."""

import json

import jsonschema
import pytest

from modulm.errors import RequestError
from modulm.frontend.call_forms import FAMILY, CallForms
from modulm.frontend.forced_calls import NamedCall, RequiredCalls
from modulm.frontend.parse import Parse
from modulm.interfaces.parsers import CallText, ToolParser
from modulm.interfaces.reading import TextParser
from modulm.interfaces.structured import StructuredOutputBackend
from modulm.interfaces.support import Accepted, Rejected
from modulm.plugins.registry import registry
from modulm.sampling_params import SamplingParams
from modulm.structured_outputs import StructuredOutputsParams

PLACE = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
STRICT = {"name": "weather", "parameters": PLACE, "strict": True}
LOOSE = {"name": "now", "parameters": {"type": "object", "properties": {"a": {"uniqueItems": True}}}}


class Tagged(TextParser, ToolParser):
    def read(self, text): ...

    @classmethod
    def call_text(cls, name):
        return CallText(trigger="<c>", begin=f"<c>{name} ", end="</c>", separator=";")


class Special(Tagged):
    @classmethod
    def call_text(cls, name):
        return CallText(trigger="<s>", begin=f"<s>{name} ", end="</s>")


class Silent(Tagged):
    @classmethod
    def call_text(cls, name):
        return None


class Backend(StructuredOutputBackend):
    name, kinds = "able", ("json", "structural_tag")

    def __init__(self, vocabulary): ...

    def compile(self, params): ...

    @classmethod
    def supports(cls, params):
        if params.kind not in cls.kinds:
            return Rejected(f"{params.kind} is not enforced")
        return Rejected("uniqueItems is not enforced") if "uniqueItems" in params.text else Accepted()


class Simple(Backend):
    kinds = ("json",)


@pytest.fixture
def asked(bpe):
    """Return the reader and the form for a request."""
    registry(FAMILY).register("able", Backend)
    registry(FAMILY).register("simple", Simple)

    def ask(tool, *functions, backend="able", form=None, **options):
        params = SamplingParams(structured_outputs=form)
        reader, params = CallForms(tool, bpe, backend).of(Parse(tools=functions, **options), params)
        found = params.structured_outputs
        return reader, found and (json.loads(found.text)["format"] if found.kind == "structural_tag" else found)

    yield ask
    for name in ("able", "simple"):
        registry(FAMILY).restore(name, None)


def test_forced_calls_are_in_the_models_own_format_where_that_can_be_enforced(asked):
    reader, form = asked(Tagged, STRICT, LOOSE, forced="required", parallel=False)
    assert reader is Tagged
    assert (form["type"], form["separator"], form["at_least_one"], form["stop_after_first"]) == (
        "tags_with_separator", ";", True, True,
    )  # fmt: skip
    assert [tag["begin"] for tag in form["tags"]] == ["<c>weather ", "<c>now "]
    assert form["tags"][0]["content"] == {"type": "json_schema", "json_schema": PLACE}
    assert not asked(Tagged, STRICT, forced="required")[1]["stop_after_first"]
    assert asked(Tagged, STRICT, forced="named")[1]["stop_after_first"]


@pytest.mark.parametrize(("tool", "backend"), [(None, "able"), (Silent, "able"), (Special, "able"), (Tagged, "simple")])
def test_else_they_are_json(asked, tool, backend):
    reader, form = asked(tool, STRICT, backend=backend, forced="required")
    assert reader is RequiredCalls and form.kind == "json"
    jsonschema.validate([{"name": "weather", "parameters": {"city": "Bern"}}], json.loads(form.text))
    reader, form = asked(tool, STRICT, backend=backend, forced="named")
    assert reader is NamedCall and json.loads(form.text) == PLACE


def test_strict_tools_are_strict_where_the_model_may_also_answer(asked):
    reader, form = asked(Tagged, STRICT, LOOSE)
    assert reader is Tagged and (form["type"], form["triggers"]) == ("triggered_tags", ["<c>"])
    assert [tag["content"]["json_schema"] for tag in form["tags"]] == [PLACE, {"type": "object"}]
    answer = StructuredOutputsParams(json={"type": "integer"}, disable_any_whitespace=True)
    _, form = asked(Tagged, STRICT, form=answer)
    assert [each["type"] for each in form["elements"]] == ["tags_with_separator", "json_schema"]
    assert form["elements"][1]["json_schema"] == {"type": "integer"}


def test_what_is_not_strict_is_the_models_own(asked):
    assert asked(Tagged, LOOSE) == (Tagged, None)
    assert asked(None) == (None, None)


@pytest.mark.parametrize(
    ("tool", "backend", "form", "why"),
    [
        (Silent, "able", None, "the format of Silent cannot be enforced"),
        (Special, "able", None, "the format of Special cannot be enforced"),
        (Tagged, "simple", None, "the format of Tagged cannot be enforced"),
        (Tagged, "able", StructuredOutputsParams(regex="a"), "only have the form of a JSON schema"),
    ],
)
def test_strict_tools_that_cannot_be_are_refused(asked, tool, backend, form, why):
    with pytest.raises(RequestError, match=f"Tool 'weather' is refused: it is strict, and .*{why}") as caught:
        asked(tool, LOOSE, STRICT, backend=backend, form=form)
    assert caught.value.parameter == "tools"


def test_the_tool_at_fault_is_named(asked, bpe):
    error = RequestError("structured_outputs is refused: no.", parameter="structured_outputs")
    forms = CallForms(Tagged, bpe, "able")
    told = forms.blamed(Parse(tools=[STRICT, LOOSE], forced="required"), error)
    assert told.parameter == "tools" and "Tool 'now'" in str(told) and "uniqueItems" in str(told)
    assert forms.blamed(Parse(tools=[STRICT, LOOSE]), error) is error
    assert forms.blamed(Parse(tools=[STRICT], forced="named"), error).parameter == "tool_choice"
