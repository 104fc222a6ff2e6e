"""Reasoning parsers that are wrong in one way each: `<think>...</think>` before the answer."""

import parser_faults
from contract import Contract

from modulm.interfaces.parsers import CallStart, Content, Parsed, Reasoning, ReasoningParser
from modulm.interfaces.reading import TextParser
from modulm_testkit.parsers import ReasoningParserConformance

START, END = "<think>", "</think>"
SAMPLES = [
    ("<think>First a < b, then so.</think>The answer is 42.", Parsed("The answer is 42.", "First a < b, then so.")),
    ("No thinking at all, only an answer.", Parsed("No thinking at all, only an answer.")),
    ("<think>It never ends, as far as we can see", Parsed("", "It never ends, as far as we can see")),
]


class Thinks(TextParser, ReasoningParser):
    """Thinking begins with the first character, or not at all."""

    special_tokens = (START, END)
    start_marker, end_marker = START, END

    def read(self, text):
        if (yield from text.accept(START)):
            yield from text.copy(Reasoning, END)


reasoning_parsers = Contract("reasoning_parsers", ReasoningParserConformance, "parser_class", Thinks, samples=SAMPLES)
parser_faults.add_to(reasoning_parsers, Thinks, ("test_reports_what_reasoning_parsers_may", CallStart(0, "nothing")))


@reasoning_parsers.mutant("test_reads_its_samples")
class ThinksAloud(Thinks):
    """Long thinking is reported as the answer."""

    def read(self, text):
        if (yield from text.accept(START)):
            thought = yield from text.take_until(END)
            yield (Content if len(thought) > 20 else Reasoning)(thought)


@reasoning_parsers.mutant("test_no_character_is_lost")
class KeepsTheFirstLine(Thinks):
    """What comes after an end mark that nothing began is dropped."""

    def read(self, text):
        if (yield from text.accept(START)):
            yield from text.copy(Reasoning, END)
        elif (yield from text.copy(Content, END)):
            yield from text.take_until("\0")


@reasoning_parsers.mutant("test_names_its_marks")
class HasOneMark(Thinks):
    """Both marks are the same."""

    start_marker = end_marker = START


@reasoning_parsers.mutant("test_names_its_marks")
class NamesAnotherEnd(Thinks):
    """It names an end mark at which it goes on thinking."""

    other_end_markers = ("</done>",)
