"""Tool parsers that are wrong in one way each: `<call>{"name": ..., "arguments": {...}}</call>`."""

import json

import parser_faults
from contract import Contract

from modulm.interfaces.parsers import CallArguments, CallStart, Content, Parsed, ParsedCall, Reasoning, ToolParser
from modulm.interfaces.reading import TextParser
from modulm_testkit.parsers import ToolParserConformance

START, END = "<call>", "</call>"
SAMPLES = [
    (
        'I look: <call>{"name": "add", "arguments": {"a": 1, "b": "x\\"<é"}}</call> done',
        Parsed("I look:  done", "", [ParsedCall("add", '{"a": 1, "b": "x\\"<é"}')]),
    ),
    (
        '<call>{"name": "now"}</call><call>{"name": "now", "arguments": {}}</call>',
        Parsed("", "", [ParsedCall("now", "{}"), ParsedCall("now", "{}")]),
    ),
    ("Nothing at all is called here.", Parsed("Nothing at all is called here.")),
]


class Calls(TextParser, ToolParser):
    """What is no call stays content, mark for mark."""

    special_tokens = (START, END)

    def read(self, text):
        index = 0
        while (yield from text.copy(Content, START)):
            text.record()
            call = _call((yield from text.take_until(END)))
            written = text.recorded()
            if call is None:
                yield self.refused(START + written)
                continue
            yield CallStart(index, self.name(call[0]))
            yield CallArguments(index, self.arguments(call[1]))
            index += 1

    def name(self, name):
        return name

    def refused(self, written):
        return Content(written)

    def arguments(self, arguments):
        return json.dumps(arguments, ensure_ascii=False)


def _call(body):
    try:
        call = json.loads(body)
        name, arguments = call["name"], call.get("arguments", {})
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return (name, arguments) if isinstance(name, str) and isinstance(arguments, dict) else None


tool_parsers = Contract("tool_parsers", ToolParserConformance, "parser_class", Calls, samples=SAMPLES)
parser_faults.add_to(tool_parsers, Calls, ("test_reports_what_tool_parsers_may", Reasoning("")))


@tool_parsers.mutant("test_reads_its_samples")
class ShoutsNames(Calls):
    """Names of functions come in capitals."""

    def name(self, name):
        return name.upper()


@tool_parsers.mutant("test_no_character_is_lost")
class DropsWhatIsNoCall(Calls):
    """A call that cannot be read is dropped."""

    def refused(self, written):
        return Content("")


@tool_parsers.mutant(
    "test_arguments_are_json_objects",
    samples=[('<call>{"name": "now"}</call>', Parsed("", "", [ParsedCall("now", "")])), SAMPLES[2]],
)
class HasNoArguments(Calls):
    """A call without arguments has an empty text for them, and its author thinks that right."""

    def arguments(self, arguments):
        return super().arguments(arguments) if arguments else ""
