"""Thinking before a form, and its budget: what may come is judged on the whole text, by `str.partition`.

The tokens cut the marks in many ways, and run them together with what follows.
"""

import random

import numpy as np
import pytest

from modulm.engine.thinking import Marks, Phase, ThinkingGrammar
from modulm.interfaces.structured import Grammar, Vocabulary
from modulm.types import Thinking, ThinkingMark

LETTERS = [bytes([code]) for code in b"\n abcenosytkhid<>/{}"]
TOKENS = [*LETTERS, b"</", b"</t", b"think", b"hink>", b">\n\n", b">yes", b"</think>", b"</think>no", b"yes", b"<t"]
START, END, EOS = len(TOKENS), len(TOKENS) + 1, len(TOKENS) + 2
VOCABULARY = Vocabulary(
    tokens=[*TOKENS, b"", b"", b""], size=64, special_ids=[START, END, EOS], eos_token_ids=[EOS], encode=list
)
FORMS = ["yes", "no", "nose"]


def ids(text):
    """The text in single letters."""
    return [LETTERS.index(bytes([code])) for code in text.encode()]


def mark(text, token_ids):
    return ThinkingMark(text=text.encode(), token_ids=token_ids)


SPECIAL = {
    "start": mark("<think>", [START]),
    "ends": [mark("</think>", [END])],
    "shown": {START: b"<think>", END: b"</think>"},
}
LONG = {
    "start": mark("<think>", [TOKENS.index(b"<t"), TOKENS.index(b"hink>")]),
    "ends": [
        mark("</think>", [TOKENS.index(b"</"), TOKENS.index(b"think"), LETTERS.index(b">")]),
        mark("}{", ids("}{")),
    ],
}
MARKS = {"special": SPECIAL, "long": LONG}


class Choice(Grammar):
    def __init__(self):
        self.pieces = []

    @property
    def text(self):
        return b"".join(self.pieces)

    def allows(self, token):
        if token == EOS:
            return self.text.decode() in FORMS
        piece = VOCABULARY.tokens[token] if token < len(VOCABULARY.tokens) else b""
        return bool(piece) and any(form.encode().startswith(self.text + piece) for form in FORMS)

    def fill(self, mask):
        for token in range(64):
            mask[token // 32] |= np.uint32(self.allows(token) << token % 32)

    def accept(self, token_ids):
        for token in token_ids:
            assert self.allows(token), "it was not asked first"
            self.pieces.append(VOCABULARY.tokens[token])
        return True

    def rollback(self, num_tokens):
        assert num_tokens <= len(self.pieces)
        del self.pieces[len(self.pieces) - num_tokens :]

    @property
    def is_terminated(self):
        return self.text.decode() in ("yes", "nose")


def grammar(marks, *, begun, budget=None, form=True):
    thinking = Thinking(**MARKS[marks], begun=begun, budget=budget)
    return ThinkingGrammar(thinking, Marks(thinking, VOCABULARY), Choice if form else None)


def allowed(state):
    mask = np.zeros(2, dtype=np.uint32)
    state.fill(mask)
    return [token for token in range(64) if int(mask[token // 32]) >> token % 32 & 1]


def parts(marks, token_ids, *, begun):
    """Return what a parser of whole texts finds: (thinking or None, answer or None)."""
    pieces = dict(enumerate(TOKENS)) | MARKS[marks].get("shown", {})
    text = b"".join(pieces.get(token, b"") for token in token_ids).decode().lstrip()
    if not begun:
        if not text.startswith("<think>"):
            first = [end.text.decode() for end in MARKS[marks]["ends"] if text.startswith(end.text.decode())]
            return None, text[len(first[0]) :] if first else text
        text = text[len("<think>") :]
    found = [(text.find(end.text.decode()), end.text.decode()) for end in MARKS[marks]["ends"]]
    found = [each for each in found if each[0] >= 0]
    if not found:
        return text, None
    at, end = min(found)
    return text[:at], text[at + len(end) :]


def walk(state, seed, most=60):
    """Take random tokens that are allowed, marks and beginnings of marks more often than others."""
    draw = random.Random(seed)
    taken = []
    while not state.is_terminated and len(taken) < most:
        choices = allowed(state)
        likely = [token for token in choices if token in range(len(LETTERS), EOS)]
        token = draw.choice(likely if likely and draw.random() < 0.6 else choices)
        if token == EOS:
            break
        assert state.accept([token])
        taken.append(token)
    return taken


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("marks", MARKS)
def test_the_answer_has_its_form_wherever_the_thinking_ends(marks, begun):
    ends = {"thought": 0, "direct": 0, "thinking": 0}
    for seed in range(400):
        state = grammar(marks, begun=begun)
        taken = walk(state, seed)
        thinking, answer = parts(marks, taken, begun=begun)
        if answer is None:
            ends["thinking"] += 1
            assert EOS not in allowed(state) and not state.is_terminated
            continue
        ends["direct" if thinking is None else "thought"] += 1
        assert any(form.startswith(answer) for form in FORMS), (taken, thinking, answer)
        assert (EOS in allowed(state)) == (answer in FORMS)
        assert state.is_terminated == (answer in ("yes", "nose"))
    assert ends["thought"] > 20 and (begun or ends["direct"] > 20), ends


@pytest.mark.parametrize("form", [False, True])
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("marks", MARKS)
def test_a_state_after_rollback_is_the_state_before(marks, begun, form):
    for seed in range(120):
        state = grammar(marks, begun=begun, budget=seed % 9, form=form)
        taken = walk(state, seed, 24)
        count = random.Random(seed).randrange(len(taken) + 1)
        state.rollback(count)
        fresh = grammar(marks, begun=begun, budget=seed % 9, form=form)
        for token in taken[: len(taken) - count]:
            assert fresh.accept([token])
        assert allowed(state) == allowed(fresh) and state._place == fresh._place
        assert state.forced() == fresh.forced() and state.is_terminated == fresh.is_terminated
        for token in taken[len(taken) - count :]:
            assert token in allowed(state) and state.accept([token])
    with pytest.raises(ValueError, match="cannot be taken back"):
        state.rollback(len(taken) + 1)


@pytest.mark.parametrize("form", [False, True])
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("marks", MARKS)
def test_a_budget_closes_the_thinking(marks, begun, form):
    for seed in range(150):
        budget = seed % 7
        state = grammar(marks, begun=begun, budget=budget, form=form)
        taken = walk(state, seed, 30)
        thinking, answer = parts(marks, taken, begun=begun)
        if thinking is None:
            continue
        num_thought = (
            len(taken)
            if answer is None
            else next(
                count for count in range(len(taken) + 1) if parts(marks, taken[:count], begun=begun)[1] is not None
            )
        )
        most = budget + (0 if begun else len(MARKS[marks]["start"].token_ids) + 7)
        assert num_thought <= most + len(MARKS[marks]["ends"][0].token_ids)


def test_at_the_budget_nothing_but_the_end_may_come():
    state = grammar("long", begun=True, budget=2)
    end = LONG["ends"][0].token_ids
    assert state.accept(ids("ab"))
    assert state.forced() == end
    for count, token in enumerate(end):
        assert allowed(state) == [token] and state.forced() == end[count:]
        assert state.accept([token])
    assert allowed(state) == [token for token in range(64) if Choice().allows(token)]
    assert grammar("special", begun=True, budget=0).forced() == [END]
    begun_later = grammar("special", begun=False, budget=0, form=False)
    assert begun_later.accept([START]) and allowed(begun_later) == [END]


def test_an_end_that_the_model_has_begun_is_gone_on_with():
    state = grammar("long", begun=True, budget=2)
    end = LONG["ends"][0].token_ids
    assert state.accept(end[:2])
    assert state.forced() == end[2:]
    cut_otherwise = grammar("long", begun=True, budget=2)
    assert cut_otherwise.accept([*ids("a"), TOKENS.index(b"</t")])
    assert cut_otherwise.forced() == end


def test_an_answer_without_thinking_has_its_form_from_the_first_token():
    state = grammar("special", begun=False)
    assert allowed(state) == sorted([START, END, *(t for t in range(64) if Choice().allows(t))])
    assert state.accept(ids("no"))
    assert EOS in allowed(state) and START not in allowed(state)
    assert state.accept(ids("se")) and state.is_terminated


def test_without_a_form_only_the_thinking_is_bounded():
    state = grammar("special", begun=False, budget=1, form=False)
    assert len(allowed(state)) == 64
    for token in [*ids("\n "), TOKENS.index(b"<t"), TOKENS.index(b"hink>")]:  # not as the tokenizer would write it
        assert state.accept([token])
    assert state._place.phase is Phase.THINKING
    assert state.accept(ids("a")) and allowed(state) == [END]
    assert state.accept([END]) and len(allowed(state)) == 64 and not state.is_terminated
    plain = grammar("special", begun=False, budget=0, form=False)
    assert plain.accept([*ids("a"), START]) and len(allowed(plain)) == 64


def test_what_a_mask_does_not_allow_is_not_taken():
    """A logits processor may force it."""
    assert not grammar("special", begun=True).accept([TOKENS.index(b"</think>no")])
    assert not grammar("special", begun=False).accept(ids("a"))
    assert not grammar("special", begun=True, budget=0).accept(ids("a"))
