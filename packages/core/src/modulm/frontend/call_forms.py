"""Which form a request's calls must have: forced ones, and those of strict tools where the model may also answer.

The parser's own format where a grammar can write it, JSON otherwise (`forced_calls.py`). Whether a backend takes on a
form is known when the engine has compiled it; `blamed` then finds the tool at fault.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from modulm.errors import ConfigError, PluginError, RequestError
from modulm.frontend.forced_calls import (
    NamedCall,
    RequiredCalls,
    arguments_schema,
    forced_tags,
    schema_of,
    strict_tags,
)
from modulm.frontend.tokenizer import Tokenizer
from modulm.interfaces.parsers import CallText, ToolParser
from modulm.plugins.choose import choose
from modulm.plugins.registry import registry
from modulm.sampling_params import SamplingParams
from modulm.structured_outputs import StructuredOutputsParams

if TYPE_CHECKING:
    from modulm.frontend.parse import Parse

FAMILY = "modulm.structured_output"


class CallForms:
    """Forms of calls at one server.

    Args:
        tool: The parser that reads calls in the model's own format, if one is on.
        backend: The configured structured-output backend.
    """

    def __init__(self, tool: type[ToolParser] | None, tokenizer: Tokenizer, backend: str) -> None:
        self._tool = tool
        self._tokenizer = tokenizer
        self._backend = backend

    def of(self, parse: "Parse", params: SamplingParams) -> tuple[type[ToolParser] | None, SamplingParams]:
        """Return what reads the calls, and the parameters with the form that they must have."""
        if not parse.tools or not (parse.forced or parse.is_strict):
            return (self._tool if parse.tools else None), params
        texts, asked = self._call_texts(parse.tools), params.structured_outputs
        named, parallel = parse.forced == "named", parse.parallel and parse.forced != "named"
        if texts is None and parse.forced:
            schema = schema_of(parse.tools, named=named, parallel=parallel)
            reader = NamedCall if named else RequiredCalls
            return reader, params.clone(structured_outputs=StructuredOutputsParams(json=schema))
        if texts is None:
            raise self._not_strict(parse, "the format of {parser} cannot be enforced where the model may also answer")
        form = forced_tags(texts, parse.tools, parallel=parallel)
        if not parse.forced and asked is None:
            form = strict_tags(texts, parse.tools, parallel=parallel)
        elif not parse.forced and asked is not None and asked.kind == "json":
            answer = {"type": "json_schema", "json_schema": json.loads(asked.text)}
            form = {"type": "or", "elements": [form, answer]}
        elif not parse.forced:
            raise self._not_strict(parse, "beside calls an answer can only have the form of a JSON schema")
        whole = StructuredOutputsParams(structural_tag={"type": "structural_tag", "format": form})
        if asked is not None and not parse.forced:
            whole = dataclasses.replace(asked, json=None, structural_tag=whole.structural_tag)
        return self._tool, params.clone(structured_outputs=whole)

    def _call_texts(self, functions: Sequence[Mapping[str, Any]]) -> list[CallText] | None:
        """Return how the model writes calls of these functions; None where no grammar can write it.

        A special token has no text that grammars could write.
        """
        texts = [None if self._tool is None else self._tool.call_text(function["name"]) for function in functions]
        special = [self._tokenizer.added_tokens[token] for token in self._tokenizer.special_ids]
        found = [text for text in texts if text is not None and not any(s in text.begin + text.end for s in special)]
        return found if len(found) == len(texts) and self._can_tag else None

    @cached_property
    def _can_tag(self) -> bool:
        """Whether there is a backend that reads structural tags."""
        tag = {"type": "tag", "begin": "<a>", "content": {"type": "json_schema", "json_schema": {}}, "end": "</a>"}
        form = {"type": "tags_with_separator", "tags": [tag], "separator": ",", "at_least_one": True}
        try:
            self._choose_backend(StructuredOutputsParams(structural_tag={"type": "structural_tag", "format": form}))
        except (PluginError, ConfigError):
            return False
        return True

    def _choose_backend(self, form: StructuredOutputsParams) -> None:
        choose(FAMILY, self._backend, registry(FAMILY).names(), lambda cls: cls.supports(form))

    def _not_strict(self, parse: "Parse", why: str) -> RequestError:
        name = next(function["name"] for function in parse.tools if function.get("strict"))
        why = why.format(parser=self._tool.__name__ if self._tool is not None else "no parser")
        return RequestError(
            f"Tool {name!r} is refused: it is strict, and {why}. Leave 'strict' out, or force a call by tool_choice.",
            parameter="tools",
        )

    def blamed(self, parse: "Parse", error: RequestError) -> RequestError:
        """Return why the form of calls was refused, by the tool at fault where it is one's."""
        for function in parse.tools if registry(FAMILY).names() else []:
            try:
                if parse.forced or function.get("strict"):
                    self._choose_backend(StructuredOutputsParams(json=arguments_schema(function)))
            except (PluginError, ConfigError) as reason:
                why = f"Tool {function['name']!r} is refused: its parameters cannot be enforced. {reason}"
                return RequestError(why, parameter="tools")
        if not parse.forced:
            return error
        return RequestError(f"tool_choice cannot be honoured: {error}", parameter="tool_choice")
