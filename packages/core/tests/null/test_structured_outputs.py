"""What may be asked of an output's form: exactly one, well formed, and the same after a journey between processes."""

import msgspec
import pytest

from modulm.errors import RequestError
from modulm.sampling_params import SamplingParams
from modulm.structured_outputs import MAX_CHARACTERS, StructuredOutputsParams


@pytest.mark.parametrize(
    ("form", "kind", "text"),
    [
        ({"json": {"type": "null"}}, "json", '{"type": "null"}'),
        ({"json": '{"type": "null"}'}, "json", '{"type": "null"}'),
        ({"json": True}, "json", "true"),
        ({"json_object": True}, "json_object", ""),
        ({"regex": ""}, "regex", ""),
        ({"json_object": True, "whitespace_pattern": " "}, "json_object", ""),
        ({"choice": ["a", 'b"']}, "choice", '["a", "b\\""]'),
        ({"grammar": "start: /a/"}, "grammar", "start: /a/"),
        ({"structural_tag": {"a": 1}}, "structural_tag", '{"a": 1}'),
    ],
)
def test_forms(form, kind, text):
    params = StructuredOutputsParams(**form)
    assert (params.kind, params.text) == (kind, text)
    sent = msgspec.msgpack.encode(SamplingParams(structured_outputs=params))
    assert msgspec.msgpack.decode(sent, type=SamplingParams).structured_outputs == params


DEEP = '{"items":' * 100_000 + "{}" + "}" * 100_000


@pytest.mark.parametrize(
    ("form", "why"),
    [
        ({}, "exactly one"),
        ({"regex": "a", "choice": ["b"]}, "regex and choice"),
        ({"json": "{"}, "no JSON"),
        ({"json": DEEP}, "nested too deeply"),
        ({"json": 3}, "must be a JSON object"),
        ({"json": {"a": {1}}}, "no JSON"),
        ({"json_object": False}, "leave it out"),
        ({"json_object": 1}, "leave it out"),
        ({"regex": 3}, "must be a text"),
        ({"regex": "a\0"}, "NUL"),
        ({"grammar": " "}, "empty"),
        ({"grammar": "a" * (MAX_CHARACTERS + 1)}, "characters"),
        ({"choice": []}, "list of texts"),
        ({"choice": "ab"}, "list of texts"),
        ({"choice": [""]}, "list of texts"),
        ({"json_object": True, "disable_any_whitespace": 1}, "true or false"),
        ({"json_object": True, "whitespace_pattern": ""}, "empty"),
    ],
)
def test_what_is_plainly_wrong_is_refused(form, why):
    with pytest.raises(RequestError, match=why) as caught:
        StructuredOutputsParams(**form)
    assert caught.value.parameter == "structured_outputs"


def test_sampling_parameters_take_nothing_else():
    with pytest.raises(RequestError, match="StructuredOutputsParams"):
        SamplingParams(structured_outputs={"regex": "a"})
