"""What the engine is told of thinking: where the prompt, the request and the parser leave it open, and its marks."""

import pytest

from modulm.errors import RequestError
from modulm.frontend.parse import Parse
from modulm.interfaces.parsers import Reasoning, ReasoningParser
from modulm.interfaces.reading import TextParser
from modulm.plugins.registry import registry
from modulm.sampling_params import SamplingParams
from modulm.structured_outputs import StructuredOutputsParams
from modulm.types import ThinkingMark

FORM = StructuredOutputsParams(choice=["yes"])
FAMILY = "modulm.reasoning_parsers"


class Think(TextParser, ReasoningParser):
    """Thinks behind `<s>` in the response, or behind one at the prompt's end; `enable_thinking` switches it off."""

    start_marker, end_marker, other_end_markers = "<s>", "</think>", ("Done:",)

    def read(self, text):
        off = self.context.template_kwargs.get("enable_thinking") is False
        open_before = self.context.prompt.endswith("<s>")
        if not off and (open_before or (yield from text.accept("<s>"))):
            yield from text.copy(Reasoning, *self.end_markers())


class Always(Think):
    def read(self, text):
        yield from text.copy(Reasoning, *self.end_markers())


class Markless(Think):
    end_marker = None


class Asked(Think):
    """The request has a say in the end mark."""

    def marks(self):
        return self.start_marker, (self.context.template_kwargs.get("end", "</think>"),)


class Broken(Think):
    def read(self, text):
        raise ZeroDivisionError
        yield


@pytest.fixture
def told(make_frontend, engine):
    """Submit, and return what the engine is told of thinking."""
    parsers = {"think": Think, "always": Always, "markless": Markless, "asked": Asked, "broken": Broken}
    for name, parser in parsers.items():
        registry(FAMILY).register(name, parser)

    def submit(parser, prompt="a", parse=None, **params):
        make_frontend(reasoning_parser=parser).submit(prompt, SamplingParams(**params), parse=parse)
        return engine.submitted[-1].thinking

    yield submit
    for name in parsers:
        registry(FAMILY).restore(name, None)


CHAT = Parse()
OFF = Parse(template_kwargs={"enable_thinking": False})


@pytest.mark.parametrize(
    ("parser", "prompt", "parse", "begun"),
    [
        ("think", "a", CHAT, False),
        ("think", "a<s>", CHAT, True),
        ("think", "a", OFF, None),
        ("always", "a", CHAT, True),
        ("markless", "a", CHAT, None),
        ("broken", "a", CHAT, None),
        (None, "a", CHAT, None),
        ("think", "a", None, None),  # nobody parses it, so the form is the whole text's
        ("always", "a", None, None),
        ("think", "a<s>", None, True),
    ],
)
def test_a_form_waits_for_thinking_that_comes_or_may_come(told, parser, prompt, parse, begun):
    thinking = told(parser, prompt, parse, structured_outputs=FORM)
    assert (thinking and thinking.begun) == begun
    assert told(parser, prompt, parse) is None  # there is nothing that waits


def test_marks_are_texts_and_their_ids(told, bpe):
    thinking = told("think", parse=CHAT, structured_outputs=FORM, thinking_token_budget=7)
    special = bpe.encode("<s>", add_special_tokens=False)
    assert len(special) == 1 and thinking.start == ThinkingMark(text=b"<s>", token_ids=special)
    assert [mark.text for mark in thinking.ends] == [b"</think>", b"Done:"]
    assert [bpe.decode(mark.token_ids, False) for mark in thinking.ends] == ["</think>", "Done:"]
    assert (thinking.shown, thinking.budget) == ({special[0]: b"<s>"}, 7)


def test_marks_may_depend_on_the_request(told):
    thinking = told("asked", parse=Parse(template_kwargs={"end": "</low>"}), structured_outputs=FORM)
    assert [mark.text for mark in thinking.ends] == [b"</low>"]


def test_a_budget_is_for_texts_that_nobody_parses_too(told, bpe):
    assert told("think", thinking_token_budget=0).budget == 0
    ids = bpe.encode("a" * 50 + "<s>", add_special_tokens=False)
    assert told("think", {"prompt_token_ids": ids}, thinking_token_budget=3).begun
    assert told("think", parse=OFF, thinking_token_budget=3) is None
    assert told(None, thinking_token_budget=-1) is None


@pytest.mark.parametrize(("parser", "why"), [(None, "no --reasoning-parser"), ("markless", "Markless names no marks")])
@pytest.mark.parametrize("parse", [None, CHAT])
def test_a_budget_of_what_cannot_be_told_is_refused(told, parser, why, parse):
    with pytest.raises(RequestError, match=rf"thinking_token_budget=5 is refused.*{why}") as caught:
        told(parser, parse=parse, thinking_token_budget=5)
    assert caught.value.parameter == "thinking_token_budget"
