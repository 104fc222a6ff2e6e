import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modulm.interfaces.parsers import (
    CallArguments,
    CallStart,
    Content,
    Parsed,
    ParsedCall,
    Reasoning,
    ResponseContext,
    ToolParser,
    collect,
)
from modulm.interfaces.reading import TextParser, joined

WORDS = st.lists(st.text("ab<", min_size=1, max_size=4), min_size=1, max_size=4)
PIECES = st.lists(st.text("ab< ", max_size=5), max_size=12)


class Bare(TextParser, ToolParser):
    """The example in reading.py's docstring."""

    def read(self, text):
        index = 0
        while (yield from text.copy(Content, "<call>")):
            yield CallStart(index, (yield from text.take_until("</call>")))
            yield CallArguments(index, "{}")
            index += 1


def reader(read):
    class Reader(TextParser):
        def read(self, text):
            yield from read(text)

    return Reader


def streamed(parser_class, pieces):
    parser = parser_class(ResponseContext())
    events = [event for piece in pieces for event in parser.push(piece)]
    return collect([*events, *parser.finish("stop")])


def test_the_example_finds_calls_between_text():
    found = Bare.parse("a <call>now</call> b<call>then</call>")
    assert found == Parsed("a  b", "", [ParsedCall("now", "{}"), ParsedCall("then", "{}")])
    assert streamed(Bare, "a <call>now</call> b<call>then</call>") == found


@given(PIECES, WORDS)
def test_copy_stops_where_a_regular_expression_finds_the_first_word_in_the_whole_text(pieces, words):
    seen = []

    def read(text):
        seen.append((yield from text.copy(Content, *words)))
        yield from text.copy(Reasoning)

    whole = "".join(pieces)
    found = streamed(reader(read), pieces)
    match = re.search("|".join(re.escape(word) for word in sorted(words, key=len, reverse=True)), whole)
    word = match.group() if match else ""
    assert seen == [word] and found.content == (whole[: match.start()] if match else whole)
    assert found.content + word + found.reasoning == whole


@given(PIECES, WORDS)
def test_accept_reads_the_longest_word_that_the_whole_text_begins_with(pieces, words):
    seen = []

    def read(text):
        seen.append((yield from text.accept(*words)))

    whole = "".join(pieces)
    rest = streamed(reader(read), pieces).content
    assert seen == [max((word for word in words if whole.startswith(word)), key=len, default="")]
    assert seen[0] + rest == whole


@given(PIECES, st.integers(0, 6))
def test_the_other_questions_have_the_answers_of_the_whole_text(pieces, length):
    seen = []

    def read(text):
        text.record()
        seen.append((yield from text.peek(length)))
        seen.append((yield from text.take(length)))
        seen.append((yield from text.take_while(re.compile("[ab]+"))))
        seen.append((yield from text.skip_space()))
        seen.append((yield from text.take_until("<")))
        seen.append(text.recorded())

    whole = "".join(pieces)
    rest = streamed(reader(read), pieces).content
    run = re.match("[ab]*", whole[length:]).group()
    after = whole[length + len(run) :]
    space = after[: len(after) - len(after.lstrip())]
    after = after[len(space) :]
    assert seen == [
        whole[:length],
        whole[:length],
        run,
        space,
        after.partition("<")[0],
        whole[: len(whole) - len(rest)],
    ]


def test_text_is_passed_on_as_soon_as_it_is_certain():
    parser = Bare(ResponseContext())
    assert parser.push("hello <cal") == [Content("hello ")]
    assert parser.push("m, <call>no") == [Content("<calm, ")]
    assert parser.push("w</call>") == [CallStart(0, "now"), CallArguments(0, "{}")]
    assert parser.push("") == [] and parser.finish("stop") == []


def test_neighbours_are_joined_and_empty_events_dropped():
    events = [Content("a"), Content(""), Content("b"), CallStart(0, "f"), CallArguments(0, "{"), CallArguments(0, "}")]
    more = [CallStart(1, "g"), CallArguments(1, "{}"), CallArguments(0, " "), Reasoning("x"), Reasoning("y")]
    assert joined(events + more) == [
        *(Content("ab"), CallStart(0, "f"), CallArguments(0, "{}"), CallStart(1, "g"), CallArguments(1, "{}")),
        *(CallArguments(0, " "), Reasoning("xy")),
    ]


@pytest.mark.parametrize(
    "events", [[CallStart(1, "f")], [CallArguments(0, "{}")], [CallStart(0, "f"), CallArguments(1, "{}")]]
)
def test_indices_that_skip_are_refused(events):
    with pytest.raises(ValueError, match="and . "):
        collect(events)
