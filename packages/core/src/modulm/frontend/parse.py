"""A response, read by parsers as it comes: thinking, then answer, then tool calls (`interfaces/parsers.py`).

`Parsers` are those that this server was started with, `Parse` is what a request wants of them, and a `ResponseReader`
reads one completion. Runs where text is made, in the polling thread, so that a reply is parsed by the time it is asked
for, streamed or not. Knows events; not the words of any API.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from modulm.config import EngineConfig
from modulm.errors import ConfigError
from modulm.frontend.call_forms import CallForms
from modulm.frontend.prompt import Prompt
from modulm.frontend.thinking import tail, thinking_of
from modulm.frontend.tokenizer import Tokenizer
from modulm.interfaces.parsers import (
    CallArguments,
    CallStart,
    Content,
    Event,
    Reasoning,
    ReasoningParser,
    ResponseContext,
    ResponseParser,
    ToolParser,
)
from modulm.interfaces.support import Accepted, Support
from modulm.log import logger
from modulm.plugins import refs
from modulm.plugins.choose import Choice, choose
from modulm.plugins.families import NOUNS
from modulm.plugins.registry import registry
from modulm.sampling_params import SamplingParams
from modulm.types import Thinking

_log = logger("frontend")
TOOLS, REASONING = "modulm.tool_parsers", "modulm.reasoning_parsers"


@dataclass(frozen=True, kw_only=True)
class Parse:
    """What a request wants of its response.

    Attributes:
        tools: Functions that may be called (OpenAI's `tools[].function`); without any, no call is looked for.
        parallel: Whether more than one call may be reported.
        forced: Whether the answer must be calls: "required", of any of the tools, or "named", of the only one.
        template_kwargs: What the chat template was told.
    """

    tools: Sequence[Mapping[str, Any]] = ()
    parallel: bool = True
    forced: Literal["", "required", "named"] = ""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_strict(self) -> bool:
        """Whether the arguments of some tool must be valid by its schema."""
        return any(function.get("strict") for function in self.tools)


def check_parsers(config: EngineConfig) -> None:
    """Import the parsers that the configuration names. Raises `PluginError`: unknown, not installed, broken."""
    for family, name in ((TOOLS, config.tool_call_parser), (REASONING, config.reasoning_parser)):
        if name not in (None, "auto"):
            registry(family).get(name)


class Parsers:
    """What reads the responses of one server: those that the configuration names, for "auto" by the chat templates.

    Raises `PluginError`, or `ConfigError` for "auto" without a template.

    Attributes:
        tool, reasoning: Either may be None.
        call_forms: Forms of calls that are forced or strict.
        choices: How they were chosen.
    """

    def __init__(self, config: EngineConfig, tokenizer: Tokenizer, templates: Callable[[], Any]) -> None:
        self._tokenizer = tokenizer
        self.choices: list[Choice] = []
        self.tool: type[ToolParser] | None = self._chosen(TOOLS, config.tool_call_parser, templates)
        self.reasoning: type[ReasoningParser] | None = self._chosen(REASONING, config.reasoning_parser, templates)
        self.call_forms = CallForms(self.tool, tokenizer, config.structured_output_backend)

    def _chosen(self, family: str, name: str | None, templates: Callable[[], Any]) -> Any:
        if name is None:
            return None
        found = templates() if name == "auto" else None
        template = "\n".join(found.values()) if isinstance(found, dict) else found or ""
        if name == "auto" and not template:
            raise ConfigError(
                f"{NOUNS[family]} 'auto' is refused: the model has no chat template to tell by. Name one."
            )

        def ask(parser: type[ResponseParser]) -> Support:
            parser(ResponseContext(tokenizer=self._tokenizer))  # what cannot be built must not serve
            return parser.matches(self._tokenizer, template) if name == "auto" else Accepted()

        references = registry(family).references
        aliases_last = sorted(references, key=lambda each: (each not in str(references[each]), each))
        self.choices.append(choose(family, name, aliases_last, ask))
        return self.choices[-1].value

    def begin(
        self, parse: Parse | None, prompt: Prompt, params: SamplingParams
    ) -> tuple[SamplingParams, Thinking | None, "Callable[[], ResponseReader] | None"]:
        """Return the parameters as the formats need them, and what makes a reader for each completion, if any.

        Between them, what thinking a form waits for, or a budget is of. Raises `RequestError` for tools that cannot be
        called as the request insists on, and for a budget without a parser that tells the thinking.
        """
        if parse is None:
            return params, self._thinking_in(prompt, params), None
        tool, params = self.call_forms.of(parse, params)
        asked = [each for each in (self.reasoning, tool) if each is not None]
        context = ResponseContext(
            tokenizer=self._tokenizer,
            tools=parse.tools,
            prompt=prompt.text or "",
            prompt_token_ids=prompt.token_ids,
            template_kwargs=parse.template_kwargs,
        )
        for parser in asked:
            params = parser.adjust(params, context)
        thinking = thinking_of(self.reasoning, context, params, self._tokenizer)
        if not asked:
            return params, thinking, None
        kept = frozenset(token for parser in asked for token in parser.special_tokens)
        # A forced call comes behind the thinking, so a call in the model's own format does not end it.
        told = replace(context, tools=()) if parse.forced else context

        def make() -> ResponseReader:
            reasoning = None if self.reasoning is None else self.reasoning(told)
            return ResponseReader(reasoning, None if tool is None else tool(context), kept, parallel=parse.parallel)

        return params, thinking, make

    def _thinking_in(self, prompt: Prompt, params: SamplingParams) -> Thinking | None:
        """Return the thinking of a text that nobody parses: without a budget, a form waits only for what has begun."""
        if params.structured_outputs is None and params.thinking_token_budget is None:
            return None
        text = tail(prompt.token_ids, self._tokenizer) if prompt.text is None else prompt.text
        context = ResponseContext(tokenizer=self._tokenizer, prompt=text, prompt_token_ids=prompt.token_ids)
        thinking = thinking_of(self.reasoning, context, params, self._tokenizer)
        if thinking is None or params.thinking_token_budget is not None:
            return thinking
        return thinking if text.rstrip().endswith(thinking.start.text.decode()) else None


class ResponseReader:
    """Reads one completion. The answer passes `think`, then whoever looks for stop strings in it, then `answer`.

    So stop strings end the answer and never the thinking. A parser that fails is logged, and reads no more.

    Attributes:
        events: What was found since somebody took it.
        kept: Special tokens that must stay in the text.
    """

    def __init__(
        self, reasoning: ReasoningParser | None, tool: ToolParser | None, kept: frozenset[str], *, parallel: bool
    ) -> None:
        self.events: list[Event] = []
        self.kept = kept
        self._reasoning = reasoning
        self._tool = tool
        self._parallel = parallel
        self._num_calls = 0
        self._space: str | None = None if tool is None else ""
        """White space since a call or the beginning, not told yet; None once there is other content."""

    def think(self, text: str, token_ids: Sequence[int] = ()) -> str:
        """Take more of the text, and return what is certain to be answer."""
        parser = self._reasoning
        return text if parser is None else self._thought(parser, lambda: parser.push(text, token_ids), text)

    def end_thinking(self, finish_reason: str) -> str:
        """The text is over: return the rest of the answer."""
        parser = self._reasoning
        return "" if parser is None else self._thought(parser, lambda: parser.finish(finish_reason), "")

    def answer(self, text: str, token_ids: Sequence[int] = ()) -> None:
        """Take more of the answer."""
        parser = self._tool
        if parser is None:
            self._add_content(text)
        else:
            self._look_for_calls(parser, lambda: parser.push(text, token_ids), text)

    def finish(self, finish_reason: str) -> None:
        """The answer is over."""
        parser = self._tool
        if parser is not None:
            self._look_for_calls(parser, lambda: parser.finish(finish_reason), "")
        if self._space and not self._num_calls:
            self.events.append(Content(self._space))

    def _thought(self, parser: ReasoningParser, ask: Callable[[], list[Event]], text: str) -> str:
        try:
            events = ask()
            thought = "".join([event.text for event in events if isinstance(event, Reasoning)])
            answer = "".join([event.text for event in events if isinstance(event, Content)])
        except (Exception, SystemExit) as error:
            self._reasoning = None
            _log_failure("Reasoning", parser, error)
            return text
        if thought:
            self.events.append(Reasoning(thought))
        return answer

    def _look_for_calls(self, parser: ToolParser, ask: Callable[[], Sequence[Event]], text: str) -> None:
        try:
            events = _checked(ask(), self._num_calls)
            for event in events:
                self._add(parser, event)
        except (Exception, SystemExit) as error:
            self._tool = None
            _log_failure("Tool", parser, error)
            self._add_content(text)

    def _add(self, parser: ToolParser, event: Event) -> None:
        if isinstance(event, CallStart):
            self._num_calls += 1
            self._space = ""
            event = CallStart(event.index, event.name, event.id or parser.call_id(event.index, event.name))
        if not isinstance(event, CallStart | CallArguments):
            self._add_content(event.text)
        elif self._parallel or event.index == 0:
            self.events.append(event)

    def _add_content(self, text: str) -> None:
        """White space alone before, between and after calls is no content."""
        if self._space is not None:
            text = self._space + text
            self._space = text if self._tool is not None and not text.strip() else None
            if self._space is not None:
                return
        if text:
            self.events.append(Content(text))


def _checked(events: Sequence[Event], num_calls: int) -> Sequence[Event]:
    """Return what a tool parser reported after `num_calls` calls. Raises `ValueError` for what cannot be told."""
    for event in events:
        if isinstance(event, CallStart):
            if event.index != num_calls:
                raise ValueError(f"call {event.name!r} begins with index {event.index}, and {num_calls} is next")
            num_calls += 1
        elif isinstance(event, CallArguments) and not 0 <= event.index < num_calls:
            raise ValueError(f"arguments of call {event.index} are reported, and {num_calls} calls have begun")
        text = event.name if isinstance(event, CallStart) else getattr(event, "text", None)
        if isinstance(event, Reasoning) or not isinstance(text, str):
            raise ValueError(f"{event!r} is no event of a tool parser")
    return events


def _log_failure(kind: str, parser: ResponseParser, error: BaseException) -> None:
    name = f"{type(parser).__module__}.{type(parser).__qualname__}"
    _log.error(
        "%s parser %s failed; what is left of this response is passed on unread: %s",
        kind, name, refs.broken(f"{kind} parser {name}", "reading a response", error), exc_info=error,
    )  # fmt: skip
