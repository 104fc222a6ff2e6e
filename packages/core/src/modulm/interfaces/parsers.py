"""Parsers (families `modulm.tool_parsers`, `modulm.reasoning_parsers`): what a model writes -> thinking, answer, calls.

A parser object reads one response, once, from its first character to its last. Text comes in pieces cut anywhere, and
what is reported must not depend on the cuts: parsing a whole text is defined as pushing it in one piece (`parse`).
Derive from `TextParser` (`reading.py`) as well, and that holds by construction; write `push` and `finish` yourself only
where the format forces you to. Everything that a parser needs can be imported from here.

Everything here runs in the front end's process. Class methods are called while the server starts; `adjust` and the
constructor for each completion, in the thread that submits the request; `push` and `finish` in the thread that polls
the engine, one call at a time for one object. That thread serves every stream: time must be linear in the text, and
nothing may wait for anything. A parser that raises is logged, and the rest of its response is passed on as content.

The reasoning parser sees the text first; the content that it reports is what the tool parser sees. A tool parser runs
only for requests with tools whose `tool_choice` is "auto", and for forced calls if it says how they are written
(`call_text`): otherwise they are JSON that the front end reads.
"""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import msgspec

from modulm.interfaces.support import Rejected, Support
from modulm.sampling_params import SamplingParams as SamplingParams

if TYPE_CHECKING:
    from modulm.interfaces.reading import GrowingText as GrowingText
    from modulm.interfaces.reading import TextParser as TextParser


class Content(msgspec.Struct, frozen=True):
    """More of the answer. White space alone around calls may be reported; the front end leaves it out."""

    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """More of the thinking, without the tags around it."""

    text: str


class CallStart(msgspec.Struct, frozen=True):
    """A tool call begins. Indices count from 0, in the order in which calls begin; `id` only where the text has one."""

    index: int
    name: str
    id: str | None = None


class CallArguments(msgspec.Struct, frozen=True):
    """More of a call's arguments, after its start. Together they are the JSON text of an object; "{}" if none."""

    index: int
    text: str


Event = Content | Reasoning | CallStart | CallArguments


@dataclass
class ParsedCall:
    """One tool call of a whole response."""

    name: str
    arguments: str = ""
    id: str | None = None


@dataclass
class Parsed:
    """A whole response."""

    content: str = ""
    reasoning: str = ""
    calls: list[ParsedCall] = field(default_factory=list)


def collect(events: Iterable[Event]) -> Parsed:
    """Put events together. Raises `ValueError` for those that break the rules on indices."""
    content, reasoning = [], []
    calls: list[tuple[CallStart, list[str]]] = []
    for event in events:
        if isinstance(event, Content):
            content.append(event.text)
        elif isinstance(event, Reasoning):
            reasoning.append(event.text)
        elif isinstance(event, CallStart):
            if event.index != len(calls):
                raise ValueError(f"Call {event.name!r} begins with index {event.index}, and {len(calls)} comes next.")
            calls.append((event, []))
        elif 0 <= event.index < len(calls):
            calls[event.index][1].append(event.text)
        else:
            raise ValueError(f"Arguments of call {event.index} are reported, and {len(calls)} calls have begun.")
    found = [ParsedCall(start.name, "".join(pieces), start.id) for start, pieces in calls]
    return Parsed("".join(content), "".join(reasoning), found)


class TokenizerView(Protocol):
    """What a parser may ask of the model's tokenizer."""

    @property
    def vocab_size(self) -> int:
        """One more than the highest id."""

    @property
    def added_tokens(self) -> Mapping[int, str]:
        """Text of every token added beside the model's vocabulary, special or not, by id."""

    @property
    def special_ids(self) -> Collection[int]:
        """Ids of those that are special."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text."""

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of ids."""

    def id_to_piece(self, token_id: int) -> str | None:
        """Return a token as the vocabulary spells it."""


@dataclass(frozen=True, kw_only=True)
class ResponseContext:
    """What the response answers.

    Attributes:
        tools: The functions that may be called, as OpenAI's `tools[].function` objects.
        prompt: The text that the model continues; its end tells whether a template has opened or closed the thinking.
            Empty when it is not known.
        template_kwargs: The request's own names for the chat template, such as `enable_thinking`.
    """

    tokenizer: TokenizerView | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    prompt: str = ""
    prompt_token_ids: Sequence[int] = ()
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def parameters(self, name: str) -> Mapping[str, Any] | None:
        """Return the JSON schema of a tool's arguments, an empty one if it says none; None for an unknown tool."""
        for tool in self.tools:
            if tool.get("name") == name:
                return tool.get("parameters") or {}
        return None


class ResponseParser(ABC):
    """What both kinds have in common.

    Attributes:
        special_tokens: Tokens that the text must keep although the tokenizer calls them special: the format's marks.
            All other special tokens are left out of the text, unless the request asks for them.
    """

    special_tokens: ClassVar[tuple[str, ...]] = ()

    def __init__(self, context: ResponseContext) -> None:
        self.context = context

    @abstractmethod
    def push(self, text: str, token_ids: Sequence[int] = ()) -> list[Event]:
        """Take the next piece, and return what is certain now.

        Args:
            text: May be empty.
            token_ids: Tokens since the last push; their text may be held back and come later. Most formats need none.
        """

    @abstractmethod
    def finish(self, finish_reason: str) -> list[Event]:
        """The text is over; return the rest. Called once, at the end, with "stop", "length", "abort" or "error"."""

    @classmethod
    def matches(cls, tokenizer: TokenizerView, chat_template: str) -> Support:
        """Whether this is the format of the model's template: asked for `--tool-call-parser auto` and the like."""
        return Rejected("it does not say which chat templates it reads")

    @classmethod
    def adjust(cls, params: SamplingParams, context: ResponseContext) -> SamplingParams:
        """Return the request's parameters, changed (`params.clone`) where the format needs it."""
        return params

    @classmethod
    def parse(cls, text: str, context: ResponseContext | None = None, finish_reason: str = "stop") -> Parsed:
        """Return what is in a whole text."""
        parser = cls(context or ResponseContext())
        return collect([*parser.push(text), *parser.finish(finish_reason)])


@dataclass(frozen=True, kw_only=True)
class CallText:
    """How a format writes a call of one function whose arguments are JSON: what stands around them.

    Attributes:
        trigger: What calls begin with whatever is called; text before it is the answer's.
        begin: All up to the arguments, the trigger first.
        end: All behind them.
        separator: What stands between two calls.
    """

    trigger: str
    begin: str
    end: str
    separator: str = "\n"


class ToolParser(ResponseParser):
    """Finds tool calls. Reports `Content`, `CallStart` and `CallArguments`.

    What is no call, malformed ones included, is reported as content, mark for mark, as long as no `CallStart` of it
    went out; after that, as arguments.
    """

    @classmethod
    def call_text(cls, name: str) -> CallText | None:
        """Return how a call of this function is written, so that grammars can: for forced calls and strict tools.

        None where arguments are no JSON, or calls are not to be written in this format by force.
        """
        return None

    def call_id(self, index: int, name: str) -> str:
        """Return the id of a call that brought none; templates of some models want theirs in a form of their own."""
        return f"call_{uuid.uuid4().hex[:24]}"


class ReasoningParser(ResponseParser):
    """Tells thinking from answer. Reports `Reasoning` and `Content`.

    Attributes:
        start_marker, end_marker: The texts around the thinking, where the format has such: a grammar waits for the end
            marker, and a thinking budget writes it. Without them forms hold from the first token, and budgets are
            refused. Whether a response begins with thinking is told by what the parser makes of a word, and of the
            start marker and a word.
        other_end_markers: Texts that end the thinking as well.
    """

    start_marker: ClassVar[str | None] = None
    end_marker: ClassVar[str | None] = None
    other_end_markers: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def end_markers(cls) -> tuple[str, ...]:
        """Return all texts that end the thinking, the one to write first."""
        return () if cls.end_marker is None else (cls.end_marker, *cls.other_end_markers)

    def marks(self) -> tuple[str | None, tuple[str, ...]]:
        """Return start marker and end markers of this response: tokenizer and request may have a say in them."""
        return self.start_marker, self.end_markers()


def __getattr__(name: str) -> Any:
    """`TextParser` and `GrowingText`, which need this module first: parser files import from one place, for good."""
    if name not in ("GrowingText", "TextParser"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from modulm.interfaces import reading

    return getattr(reading, name)
