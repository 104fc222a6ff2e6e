"""Conformance of tool and reasoning parsers (`modulm.interfaces.parsers`): no result depends on how text is cut.

Texts are the author's samples, with what is in them, and others made of the format's own marks: malformed ones too.
Time is counted in functions called and characters gone through, not in seconds. Knows no format.
"""

import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pytest

from modulm.interfaces.parsers import (
    CallArguments,
    CallStart,
    Content,
    Event,
    Parsed,
    Reasoning,
    ResponseContext,
    collect,
)
from modulm_testkit.suite import Conformance, ask_for

_WORDS = (
    "Let me think. ", "The answer is 42.", "\n", "  ", "", "<", "</", "[", "]", "{", "}", '{"name": "add", ', "é😊",
    '"arguments": {"a": 1, "b": "x\\"y"}}', '"', "\\", "add(a=1)", '[{"name": "add", "arguments": {}}]', "`", "|",
)  # fmt: skip
_FILLER = "so it goes on and on and on, at every hour of the "
_TOKEN = re.compile(r" ?[^\W\d_]+|\d| ?[^\s\w<]+|<[^\s<>]*>|\s+|.", re.DOTALL)
CUTS: Counter[Any] = Counter()
"""How many ways to cut a text were tried in this process, by the parser's class."""
_ENDS = ("stop", "length", "abort", "error")
_TOOLS = (
    {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}},
    },
    {"name": "now"},
)


class _ParserConformance(Conformance):
    """What both kinds promise.

    Attributes:
        samples: Responses in the format, with what is in them.
        tools: Functions that may be called, as in `ResponseContext`.
        prompt: What the response goes on with, where the format looks at it.
        marks: Texts of the format besides those that the class itself names in `special_tokens` and its markers.
    """

    samples: ClassVar[Sequence[tuple[str, Parsed]]] = ()
    tools: ClassVar[Sequence[dict[str, Any]]] = _TOOLS
    prompt: ClassVar[str] = ""
    marks: ClassVar[Sequence[str]] = ()

    @pytest.fixture(name="parser_class")
    def _parser_class(self) -> Any:
        """Return the class that the entry point names."""
        ask_for("parser_class", "MyParser")

    @pytest.fixture
    def reader(self, parser_class: Any) -> "_Reader":
        """The parser in a context."""
        return _Reader(parser_class, ResponseContext(tools=self.tools, prompt=self.prompt), self.samples, self.marks)

    def test_reads_its_samples(self, reader: "_Reader") -> None:
        """A whole response in one piece gives what the author says is in it; ids that it brings itself count."""
        for text, wanted in self.samples:
            assert reader.whole(text) == wanted, f"of {text!r}"

    def test_every_character_may_be_a_piece(self, reader: "_Reader") -> None:
        """Text that comes a character at a time gives what it gives in one piece."""
        for text in reader.texts():
            reader.check(text, [1])

    def test_may_be_cut_anywhere_once(self, reader: "_Reader") -> None:
        """Text in two pieces gives what it gives in one, wherever the cut is: in a mark, in a string, in an escape."""
        for text in reader.texts():
            for at in range(1, len(text)):
                reader.check(text, [at, len(text)])

    def test_may_be_cut_in_small_pieces(self, reader: "_Reader") -> None:
        """Pieces of two to eight characters, as tokens are, give what the whole gives."""
        for text in reader.texts():
            for size in range(2, 9):
                reader.check(text, [size])

    def test_may_be_cut_as_tokens_are(self, reader: "_Reader") -> None:
        """Words with the space before them, digits, signs and marks, each a piece as tokenizers make them."""
        for text in reader.texts():
            reader.check(text, [len(token) for token in _TOKEN.findall(text)])

    def test_may_be_cut_at_random(self, reader: "_Reader") -> None:
        """Pieces of any length give what the whole gives, with empty ones between them."""
        draw = random.Random(1)
        for text in reader.texts():
            for _ in range(8):
                reader.check(text, [draw.choice((0, 1, 3, 7, 20)) for _ in range(len(text))] + [len(text)])

    def test_plain_text_is_passed_on_at_once(self, reader: "_Reader") -> None:
        """Text without any sign of the format comes out as it is, without waiting for the end."""
        text = "The quick brown fox jumps over the lazy dog and runs away "
        parser = reader.made()
        lengths = [sum(len(event.text) for event in parser.push(text[at : at + 9])) for at in range(0, len(text), 9)]
        assert sum(lengths[:3]) > 0, "after 27 characters nothing has been reported"
        whole = reader.whole(text)
        assert (whole.reasoning + whole.content).strip() == text.strip()
        assert not whole.calls

    @pytest.mark.parametrize("finish_reason", _ENDS)
    def test_malformed_text_never_raises(self, reader: "_Reader", finish_reason: str) -> None:
        """Whatever a model writes, and wherever it is broken off, nothing is raised: it is somebody's stream."""
        draw = random.Random(2)
        for text in reader.texts():
            for _ in range(6):
                reader.whole(text[: draw.randrange(len(text) + 1)], finish_reason)

    def test_responses_do_not_mix(self, reader: "_Reader") -> None:
        """Two responses are read at once, each by a parser of its own: nothing is kept in the class."""
        texts = reader.texts(few=True)
        for one, other in zip(texts, texts[1:], strict=False):
            wanted = reader.whole(one), reader.whole(other)
            parsers = reader.made(), reader.made()
            events: tuple[list[Event], list[Event]] = [], []
            for first in range(0, max(len(one), len(other)), 9):
                for parser, text, kept in zip(parsers, (one, other), events, strict=True):
                    kept += parser.push(text[first : first + 9])
            for parser, kept in zip(parsers, events, strict=True):
                kept += parser.finish("stop")
            assert tuple(map(collect, events)) == wanted

    def test_time_is_linear(self, reader: "_Reader") -> None:
        """More text takes as much more work, be it in pieces of one character, or 100,000 characters in one string.

        One thread reads all streams. What breaks it: parsing again from the start with every piece.
        """
        for text in reader.texts(few=True)[:4]:
            if len(text) > 8:
                small, large = (reader.work(text * times) for times in (4, 16))
                assert large < 6 * small, f"of {text[:60]!r}: 4 times take {small} steps, 16 times {large}"
        for text, wanted in self.samples[:2]:
            if not (word := _word(text, wanted)):
                continue
            short, long = (text.replace(word, word + _FILLER * times) for times in (125, 2000))
            found = str(reader.whole(long)).count(_FILLER)
            assert found == 2000, f"of {text!r} with {word!r} continued 2000 times, {found} are reported"
            small, large = reader.work(short, 25), reader.work(long, 25)
            assert large < 24 * small, (
                f"of {text[:60]!r} continued: 6,000 characters take {small} steps, 100,000 {large}"
            )

    def test_keeps_its_marks(self, parser_class: Any) -> None:
        """`special_tokens` is a tuple of texts: those that must not be taken out of what the model says."""
        marks = parser_class.special_tokens
        assert isinstance(marks, tuple | list)
        assert all(isinstance(mark, str) and mark for mark in marks)


class ToolParserConformance(_ParserConformance):
    """Give `parser_class`: the class that the entry point of `modulm.tool_parsers` names.

    Attributes:
        frames: Marks around an answer that are no part of it: all that may be left out of a text without calls.
    """

    frames: ClassVar[Sequence[str]] = ()

    def test_reports_what_tool_parsers_may(self, reader: "_Reader") -> None:
        """It reports `Content`, `CallStart` and `CallArguments`; calls begin in the order of their indices."""
        for text in reader.texts():
            events = reader.events(text)
            assert all(isinstance(event, Content | CallStart | CallArguments) for event in events), f"{events}"

    def test_arguments_are_json_objects(self, reader: "_Reader") -> None:
        """The arguments of a call whose text is complete are the JSON text of an object; "{}" if there are none."""
        for text, wanted in self.samples:
            for call in reader.whole(text).calls if wanted.calls else ():
                assert isinstance(json.loads(call.arguments), dict), f"of {text!r}: {call}"

    def test_no_character_is_lost(self, reader: "_Reader") -> None:
        """A text in which no call begins comes out whole, marks and all: the user sees what the model wrote."""
        for text in reader.texts():
            parsed = reader.whole(text)
            if not parsed.calls and parsed.content != text:
                assert self.frames, f"{text!r} comes out as {parsed.content!r}"
                lost = _lost(text, parsed, self.frames)
                assert not lost, f"of {text!r}: {lost}"


class ReasoningParserConformance(_ParserConformance):
    """Give `parser_class`: the class that the entry point of `modulm.reasoning_parsers` names."""

    def test_reports_what_reasoning_parsers_may(self, reader: "_Reader") -> None:
        """It reports `Reasoning` and `Content` only."""
        for text in reader.texts():
            events = reader.events(text)
            assert all(isinstance(event, Content | Reasoning) for event in events), f"{events}"

    def test_no_character_is_lost(self, reader: "_Reader") -> None:
        """Thinking and answer together are the text without the marks around the thinking, in order."""
        for text in reader.texts():
            parsed = reader.whole(text)
            lost = _lost(text, parsed, reader.marks)
            assert not lost, f"of {text!r}: {lost}"

    def test_names_its_marks(self, parser_class: Any, reader: "_Reader") -> None:
        """Marks are texts, or none; behind the start mark it thinks, behind any end mark it answers.

        Grammars wait for an end mark, and thinking budgets write the first.
        """
        for start, end in ((parser_class.start_marker, parser_class.end_marker), reader.made().marks()):
            assert start is None or (isinstance(start, str) and start)
            for each in end if isinstance(end, tuple) else [end]:
                assert each is None or (isinstance(each, str) and each and each != start)
        start, ends = reader.made().marks()
        for end in ends if start else ():
            parsed = reader.whole(f"{start}I think of it.{end}I answer.")
            assert "I think of it." in parsed.reasoning and "I answer." not in parsed.reasoning, f"{end!r}: {parsed}"
            assert "I answer." in parsed.content and "I think" not in parsed.content, f"{end!r}: {parsed}"


class _Reader:
    """Parsers of one class, and texts for them."""

    def __init__(
        self, parser_class: Any, context: ResponseContext, samples: Sequence[tuple[str, Parsed]], marks: Sequence[str]
    ) -> None:
        self._class, self._context = parser_class, context
        self._samples = [text for text, _ in samples]
        self._wholes: dict[str, Parsed] = {}
        named = [getattr(parser_class, name, None) for name in ("start_marker", "end_marker")]
        self.marks = [*dict.fromkeys([*parser_class.special_tokens, *filter(None, named), *marks])]

    def made(self) -> Any:
        """Return a parser for one response."""
        return self._class(self._context)

    def texts(self, *, few: bool = False) -> list[str]:
        """Return the samples, and texts of the format's marks and other things in any order."""
        draw = random.Random(0)
        words = [*_WORDS, *self.marks * 4]
        made = ["".join(draw.choices(words, k=draw.randrange(2, 9))) for _ in range(14)]
        pieces = [text[: draw.randrange(len(text) + 1)] + draw.choice(words) for text in self._samples]
        found = [text for text in [*self._samples, *pieces, *made] if text]
        return found[:6] if few else found

    def events(self, text: str, finish_reason: str = "stop") -> list[Event]:
        """Return what a whole text gives."""
        parser = self.made()
        return [*parser.push(text), *parser.finish(finish_reason)]

    def whole(self, text: str, finish_reason: str = "stop") -> Parsed:
        """Return what is in a text that comes in one piece."""
        return collect(self.events(text, finish_reason))

    def check(self, text: str, sizes: Sequence[int]) -> None:
        """Compare a text in pieces of these sizes, again and again, with the same in one piece."""
        parser, events = self.made(), []
        for piece in _pieces(text, sizes):
            events += parser.push(piece)
        if text not in self._wholes:
            self._wholes[text] = self.whole(text)
        found, wanted = collect([*events, *parser.finish("stop")]), self._wholes[text]
        CUTS[self._class] += 1
        assert found == wanted, f"{text!r} in pieces of {sizes[:12]} gives {found}, whole {wanted}"

    def work(self, text: str, size: int = 1) -> int:
        """Return the work of reading a text in pieces: functions that are called, and characters gone through."""
        parser, calls = self.made(), 0

        def count(frame: Any, event: str, argument: Any) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        before, _Counted.steps = sys.getprofile(), 0
        sys.setprofile(count)
        try:
            for start in range(0, len(text), size):
                parser.push(_Counted(text[start : start + size]))
            parser.finish("stop")
        finally:
            sys.setprofile(before)
        return calls + _Counted.steps


def _word(text: str, parsed: Parsed) -> str:
    """Return a word that stands once in the text, in a string of a call if there is one; "" if there is none."""
    said = " ".join(call.arguments for call in parsed.calls) or f"{parsed.reasoning} {parsed.content}"
    return max((word for word in re.findall(r"[a-zA-Z]+", said) if text.count(word) == 1), key=len, default="")


def _pieces(text: str, sizes: Sequence[int]) -> Iterator[str]:
    at, number = 0, 0
    while at < len(text):
        size = sizes[number % len(sizes)]
        yield text[at : at + size]
        at, number = at + size, number + 1


def _lost(text: str, parsed: Parsed, marks: Sequence[str]) -> str:
    """Return where the text and what was found in it part, white space and whole marks of the text apart."""
    reasoning, content = ("".join(part.split()) + "\0" for part in (parsed.reasoning, parsed.content))
    reached = [{(0, 0)}] + [set[tuple[int, int]]() for _ in text]
    last = 0
    for at, told in enumerate(reached[:-1]):
        last = at if told else last
        ends = [at + len(mark) for mark in marks if told and text.startswith(mark, at)]
        for end in [*ends, *([at + 1] if text[at].isspace() else [])]:
            reached[end] |= told
        reached[at + 1] |= {(r + 1, c) for r, c in told if reasoning[r] == text[at]}
        reached[at + 1] |= {(r, c + 1) for r, c in told if content[c] == text[at]}
    if (len(reasoning) - 1, len(content) - 1) in reached[-1]:
        return ""
    return f"after {text[:last]!r} something is lost or comes twice"


class _Counted(str):
    """A text that counts the characters which are copied or looked through, in `steps` of its class."""

    __slots__ = ()
    steps = 0

    def __add__(self, other: str) -> "_Counted":
        _Counted.steps += len(self) + len(other)
        return _Counted(str(self) + str(other))

    def __radd__(self, other: str) -> "_Counted":
        _Counted.steps += len(self) + len(other)
        return _Counted(str(other) + str(self))

    def __getitem__(self, key: Any) -> "_Counted":
        found = _Counted(str.__getitem__(self, key))
        _Counted.steps += len(found)
        return found

    def __contains__(self, part: object) -> bool:
        _Counted.steps += len(self)
        return str.__contains__(self, part)  # type: ignore[operator]

    def find(self, *args: Any) -> int:
        """See `str`."""
        _Counted.steps += len(self)
        return str.find(self, *args)

    def partition(self, sep: str) -> tuple[str, str, str]:
        """See `str`."""
        _Counted.steps += len(self)
        before, mark, after = str.partition(self, sep)
        return _Counted(before), mark, _Counted(after)
