"""Structured output in the engine: forms compiled beside its loop, masks in its plans, and what goes wrong with them.

The backend here allows texts of digits; what must come is the first of them in the order of a dictionary.
"""

import threading
import time

import numpy as np
import pytest

from modulm.config import EngineConfig
from modulm.engine.grammar import FAMILY, Grammars
from modulm.engine.loop import Engine
from modulm.errors import RequestError
from modulm.interfaces.executor import Executor
from modulm.interfaces.structured import CompiledGrammar, Grammar, StructuredOutputBackend, Vocabulary
from modulm.interfaces.support import Accepted, Rejected
from modulm.plugins.registry import registry
from modulm.sampling_params import SamplingParams
from modulm.structured_outputs import StructuredOutputsParams
from modulm.types import KVGroup, KVLayout, Request, SampledTokens, StepResult, Thinking, ThinkingMark

EOS = 10
VOCABULARY = Vocabulary(
    tokens=[*(b"%d" % i for i in range(10)), b""], size=40, special_ids=[EOS], eos_token_ids=[EOS], encode=list
)


class Choice(Grammar):
    def __init__(self, texts):
        self.texts, self.done = texts, ""

    def nexts(self):
        rest = [text[len(self.done) :] for text in self.texts if text.startswith(self.done)]
        return {int(text[0]) if text else EOS for text in rest}

    def fill(self, mask):
        for token in self.nexts():
            mask[token // 32] |= np.uint32(1 << token % 32)

    def accept(self, token_ids):
        for token in token_ids:
            if token not in self.nexts():
                return False
            self.done += "" if token == EOS else str(token)
        return True

    def rollback(self, num_tokens):
        self.done = self.done[: len(self.done) - num_tokens]

    @property
    def is_terminated(self):
        return self.nexts() == {EOS}


class Panic(BaseException):
    """As Rust's, in Python."""


def failing(method):
    """Return a grammar that fails there once it has come to a 7."""

    def fail(self, *args):
        if self.done.endswith("7"):
            raise Panic("at a seven")
        return getattr(super(faulty, self), method)(*args)

    def is_terminated(self):
        return fail(self) if self.done.endswith("7") else Choice.is_terminated.fget(self)

    faulty = type("Faulty", (Choice,), {method: property(is_terminated) if method == "is_terminated" else fail})
    return faulty


class Digits(StructuredOutputBackend):
    name = "digits"
    made, compiled, gate, grammar = 0, 0, threading.Event(), Choice

    @classmethod
    def supports(cls, params):
        return Accepted() if params.kind == "choice" else Rejected(f"{params.kind} is not enforced")

    def __init__(self, vocabulary):
        type(self).made += 1
        assert vocabulary is VOCABULARY

    def compile(self, params):
        type(self).compiled += 1
        if params.choice[0].startswith("slow"):
            self.gate.wait(30)
        if params.choice == ["broken"]:
            raise ZeroDivisionError("oh")
        if params.choice == ["panics"]:
            raise Panic("oh")
        if params.choice == ["wrong"]:
            raise RequestError("choice is wrong", parameter="structured_outputs")

        class Compiled(CompiledGrammar):
            def start(self):
                return Digits.grammar(params.choice)

        return Compiled()


class Least(Executor):
    """Samples the least token that a plan allows, drafts verified; `stubborn` does not look."""

    def __init__(self):
        self.plans, self.stubborn = [], False

    def kv_layout(self):
        return KVLayout(block_size=4, num_blocks=50, groups=(KVGroup(layer_names=("l",)),))

    def execute(self, plan):
        self.plans.append(plan)
        by_entry = {}
        if plan.masks is not None:
            rows = iter(plan.masks.wait())
            for entry in plan.masks.entries:
                by_entry[entry] = [next(rows) for _ in range(1 + len(plan.scheduled[entry].draft_token_ids))]
            assert next(rows, None) is None
        return StepResult(sampled=[self._sampled(entry, each, by_entry) for entry, each in enumerate(plan.scheduled)])

    def _sampled(self, entry, scheduled, by_entry):
        if not scheduled.samples:
            return SampledTokens(request_id=scheduled.request_id)
        if entry not in by_entry or self.stubborn:
            return SampledTokens(request_id=scheduled.request_id, token_ids=[9])
        token_ids = []
        for mask, draft in zip(by_entry[entry], [*scheduled.draft_token_ids, None], strict=True):
            token_ids += [t for t in range(40) if mask[t // 32] >> np.uint32(t % 32) & np.uint32(1)][:1]
            if not token_ids or token_ids[-1] != draft:
                break
        return SampledTokens(request_id=scheduled.request_id, token_ids=token_ids)

    def shutdown(self): ...


@pytest.fixture
def engine(monkeypatch):
    monkeypatch.setenv("MODULM_DISABLE_PLUGINS", "xgrammar,outlines,lm-format-enforcer")  # it brings torch
    Digits.made = Digits.compiled = 0
    Digits.gate.clear()
    registry(FAMILY).register("digits", Digits)
    grammars = Grammars(lambda: VOCABULARY, backend="digits", timeout_s=60)
    engine = Engine(EngineConfig(model="m", max_num_batched_tokens=6), Least(), max_model_len=100, grammars=grammars)
    yield engine
    Digits.gate.set()
    engine.shutdown()
    registry(FAMILY).restore("digits", None)


def request(request_id, *, choice=None, prompt=(1, 2, 3), max_tokens=8, thinking=None, **form):
    form = {"choice": choice} if choice else form
    params = SamplingParams(structured_outputs=StructuredOutputsParams(**form) if form else None)
    return Request(
        request_id=request_id,
        prompt_token_ids=list(prompt),
        params=params,
        max_tokens=max_tokens,
        stop_token_ids=[EOS],
        eos_token_ids=[EOS],
        thinking=thinking,
    )


def run(engine, *requests):
    for each in requests:
        engine.submit(each)
    outputs, end = {}, time.monotonic() + 20
    while engine.has_work() and time.monotonic() < end:
        for output in engine.step():
            kept = outputs.setdefault(output.request_id, ([], []))
            kept[0].extend(output.token_ids)
            kept[1].append(output)
    return {name: ("".join(map(str, tokens)), each[-1]) for name, (tokens, each) in outputs.items()}


def test_outputs_have_their_forms_beside_others_that_have_none(engine):
    got = run(engine, request("a", choice=["42", "417"]), request("b"), request("c", choice=["7"], prompt=range(9)))
    assert {name: (text, output.finish_reason) for name, (text, output) in got.items()} == {
        "a": ("417", "stop"),
        "b": ("99999999", "length"),
        "c": ("7", "stop"),
    }


def test_the_output_that_may_end_or_go_on_goes_on_until_the_end_is_chosen(engine):
    text, output = run(engine, request("a", choice=["4", "42"]))["a"]
    assert (text, output.finish_reason) == ("42", "stop")


def test_the_same_form_is_compiled_once_and_the_backend_made_once(engine):
    run(engine, request("a", choice=["4"]), request("b", choice=["4"]))
    run(engine, request("c", choice=["4"]), request("d", choice=["5"]))
    assert (Digits.made, Digits.compiled) == (1, 2)


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({"regex": "a"}, "regex is not enforced"),
        ({"choice": ["wrong"]}, "choice is wrong"),
        ({"choice": ["broken"]}, "the backend failed with ZeroDivisionError: oh"),
        ({"choice": ["panics"]}, "the backend failed with Panic: oh"),
    ],
)
def test_what_cannot_be_had_is_the_requests_fault_and_ends_nothing_else(engine, form, reason):
    got = run(engine, request("a", **form), request("b", choice=["1"]))
    assert got["a"][1].finish_reason == "error" and got["a"][1].refused == "structured_outputs"
    assert reason in got["a"][1].error
    assert got["b"][0] == "1"
    assert run(engine, request("a", choice=["2"]))["a"][0] == "2"


def test_a_form_that_takes_long_holds_up_nobody_and_is_given_up(engine):
    engine._grammars._timeout_s = 0.2
    got = run(engine, request("slow", choice=["slow"]), request("a", choice=["1"]))
    assert list(got) == ["a", "slow"] and got["a"][0] == "1"
    assert "not ready after 0.2 s" in got["slow"][1].error


def test_threads_that_take_too_long_are_given_up_and_their_places_filled(engine):
    """As many as there are hang, and the next is compiled; so it goes until too many hang, and again when they end."""
    engine._grammars._timeout_s = 0.1
    for first in ("1", "3"):
        slow = [request(f"slow{first}{n}", choice=[f"slow{first}{n}"]) for n in range(2)]
        assert all("not ready after 0.1 s" in output.error for _, output in run(engine, *slow).values())
        if first == "1":
            engine._grammars._timeout_s = 20
            assert run(engine, request("a", choice=["1"]))["a"][0] == "1"
            engine._grammars._timeout_s = 0.1
    engine._grammars._timeout_s = 20
    got = run(engine, request("a", choice=["1"]), request("b", choice=["2"]), request("c", max_tokens=1))
    assert got["a"][0] == "1", "a form that is ready is served"
    assert got["b"][1].refused == "structured_outputs" and got["c"][0] == "9"
    assert "4 forms of earlier requests, given up" in got["b"][1].error
    Digits.gate.set()
    threads = [thread for thread in threading.enumerate() if thread.name == "modulm-grammar"]
    for thread in threads:
        thread.join(20)
    assert run(engine, request("b", choice=["2"]))["b"][0] == "2"


def test_what_waits_behind_a_thread_that_is_given_up_is_compiled(engine):
    """Asked for while both hang, with a deadline of its own."""
    engine._grammars._timeout_s = 0.2
    for name in ("slow1", "slow2"):
        engine.submit(request(name, choice=[name]))
    engine.step()
    engine._grammars._timeout_s = 20
    assert run(engine, request("a", choice=["1"]))["a"][0] == "1"
    assert not Digits.gate.is_set()


def test_a_request_is_aborted_while_its_form_is_compiled(engine):
    engine.submit(request("slow", choice=["slow"]))
    engine.step()
    engine.abort(["slow"])
    assert [(o.request_id, o.finish_reason) for o in engine.step()] == [("slow", "abort")]
    assert not engine.has_work()
    engine.submit(request("slow", choice=["3"]))
    assert run(engine)["slow"][0] == "3"


def test_an_id_in_use_is_refused_while_its_form_is_compiled(engine):
    engine.submit(request("slow", choice=["slow"]))
    engine.step()
    engine.submit(request("slow"))
    assert "belongs to a request" in engine.step()[0].error
    Digits.gate.set()


def test_a_token_against_the_form_ends_its_sequence_only(engine):
    engine._executor.stubborn = True
    got = run(engine, request("a", choice=["1"]), request("b", max_tokens=2))
    assert got["a"][1].finish_reason == "error" and "does not allow" in got["a"][1].error
    assert got["a"][1].refused is None
    assert got["b"][0] == "99"


@pytest.mark.parametrize(
    ("method", "doing"),
    [("fill", "filling a mask"), ("accept", "taking a token"), ("is_terminated", "asking for its end")],
)
def test_a_backend_that_fails_ends_its_own_sequence_only(engine, monkeypatch, method, doing):
    monkeypatch.setattr(Digits, "grammar", failing(method))
    got = run(engine, request("a", choice=["171"]), request("b", choice=["12345"]), request("c", max_tokens=6))
    assert (got["a"][1].finish_reason, got["a"][1].refused) == ("error", None)
    assert got["a"][1].error.startswith(f"Structured output backend 'digits' failed: {doing} raised Panic: at a seven.")
    assert got["a"][0] == ("1" if method == "is_terminated" else "17")
    assert got["b"][0] == "12345" and got["c"][0] == "999999"
    assert run(engine, request("a", choice=["5"]))["a"][0] == "5"


def test_preempted_sequences_go_on_where_they_were(engine):
    small = KVLayout(block_size=4, num_blocks=9, groups=(KVGroup(layer_names=("l",)),))
    engine._executor.kv_layout = lambda: small
    tight = Engine(EngineConfig(model="m"), engine._executor, max_model_len=100, grammars=engine._grammars)
    digits = "31415926535897932384"
    got = run(tight, request("a", choice=[digits], max_tokens=20), request("b", choice=[digits], max_tokens=20))
    assert [got["a"][0], got["b"][0]] == [digits, digits]
    assert any(len(plan.forget) for plan in engine._executor.plans)


def thinking(budget, *, begun=True):
    start, end = (ThinkingMark(text=text.encode(), token_ids=[int(digit) for digit in text]) for text in ("88", "77"))
    return Thinking(start=start, ends=[end], begun=begun, budget=budget)


def test_thinking_is_closed_at_its_budget_and_the_answer_has_its_form(engine):
    got = run(
        engine,
        request("a", choice=["42"], thinking=thinking(3)),
        request("b", choice=["41"], thinking=thinking(0)),
        request("c", choice=["9", "95"], thinking=thinking(2, begun=False)),
        request("d", thinking=thinking(1)),
        request("e", choice=["3"], thinking=thinking(None), max_tokens=6),
    )
    assert {name: (text, output.finish_reason) for name, (text, output) in got.items()} == {
        "a": ("0007742", "stop"),
        "b": ("7741", "stop"),
        "c": ("7795", "stop"),
        "d": ("07700000", "length"),
        "e": ("000000", "length"),
    }


def test_a_preempted_sequence_goes_on_in_its_thinking(engine):
    small = KVLayout(block_size=4, num_blocks=9, groups=(KVGroup(layer_names=("l",)),))
    engine._executor.kv_layout = lambda: small
    tight = Engine(EngineConfig(model="m"), engine._executor, max_model_len=100, grammars=engine._grammars)
    asked = {"choice": ["123456"], "max_tokens": 20, "thinking": thinking(10)}
    got = run(tight, request("a", **asked), request("b", **asked))
    assert [got["a"][0], got["b"][0]] == ["0" * 10 + "77" + "123456"] * 2
    assert any(len(plan.forget) for plan in engine._executor.plans)


def test_shutdown_tells_those_whose_form_is_compiled(engine):
    engine.submit(request("slow", choice=["slow"]))
    engine.step()
    engine.shutdown()
    assert [(o.request_id, o.finish_reason) for o in engine.step()] == [("slow", "abort")]


def test_without_forms_an_engine_says_so():
    engine = Engine(EngineConfig(model="m"), Least(), max_model_len=100)
    assert "built without it" in run(engine, request("a", choice=["1"]))["a"][1].error


class Careless(Digits):
    """Takes on everything, and refuses it when it compiles; comes first in automatic choice."""

    name, rank, unmade = "careless", 1, None

    @classmethod
    def supports(cls, params):
        return Accepted()

    def __init__(self, vocabulary):
        if self.unmade is not None:
            raise self.unmade
        super().__init__(vocabulary)

    def compile(self, params):
        raise RequestError("it is beyond me", parameter="structured_outputs")


@pytest.fixture
def automatic(engine, monkeypatch):
    monkeypatch.setattr("modulm.plugins.registry.Registry.names", lambda self: ["digits", "careless"])
    engine._grammars._backend = "auto"
    registry(FAMILY).register("careless", Careless)
    yield engine
    registry(FAMILY).restore("careless", None)


def test_auto_goes_on_to_the_next_where_one_refuses_as_it_compiles(automatic):
    got = run(automatic, request("a", choice=["42"]), request("b", regex="a"))
    assert got["a"][0] == "42"
    error = got["b"][1].error
    assert got["b"][1].refused == "structured_outputs"
    assert "careless: it is beyond me" in error and "digits: regex is not enforced" in error


def test_auto_goes_on_to_the_next_where_one_cannot_be_made(automatic, monkeypatch):
    monkeypatch.setattr(Careless, "unmade", ModuleNotFoundError("No module named 'careless_library'"))
    monkeypatch.setenv("MODULM_STRICT_PLUGINS", "0")
    assert run(automatic, request("a", choice=["42"]))["a"][0] == "42"
    monkeypatch.setenv("MODULM_STRICT_PLUGINS", "1")
    error = run(automatic, request("a", choice=["43"]))["a"][1].error
    assert "'careless'" in error and "No module named 'careless_library'" in error


def test_no_backend_installed_names_the_packages(monkeypatch):
    monkeypatch.setattr("modulm.plugins.registry.Registry.names", lambda self: [])
    engine = Engine(EngineConfig(model="m"), Least(), max_model_len=100, grammars=Grammars(lambda: VOCABULARY))
    assert "pip install modulm-structured-guidance" in run(engine, request("a", choice=["1"]))["a"][1].error
    engine.shutdown()


class Jumping(Choice):
    """Says what must come, as far as all texts agree; `over` says more than that."""

    over = 0

    def forced(self):
        rest = [text[len(self.done) :] for text in self.texts if text.startswith(self.done)]
        common = [letters[0] for letters in zip(*rest, strict=False) if len(set(letters)) == 1]
        agreed = next((i for i, letters in enumerate(zip(*rest, strict=False)) if len(set(letters)) > 1), len(common))
        return [int(digit) for digit in min(rest)[: agreed + self.over]]


@pytest.mark.parametrize("over", [0, 1, 9])
def test_what_must_come_takes_one_step_and_a_guess_changes_nothing(engine, monkeypatch, over):
    """Choices that part in the middle; a backend that also says what may not come costs its own steps only."""
    monkeypatch.setattr(Digits, "grammar", type("Jumping", (Jumping,), {"over": over}))
    asked = {"a": ["123456"], "b": ["11185", "11179"], "c": ["5"], "d": ["98", "9"]}
    got = run(engine, *(request(name, choice=choice, prompt=(1,)) for name, choice in asked.items()))
    assert {name: text for name, (text, _) in got.items()} == {"a": "123456", "b": "11179", "c": "5", "d": "98"}
    assert all(output.finish_reason == "stop" for _, output in got.values())
    drafted = [(s.request_id, len(s.draft_token_ids)) for plan in engine._executor.plans for s in plan.scheduled]
    assert any(name == "a" and count > 1 for name, count in drafted), "as the budget leaves"
    assert engine.stats().scheduler.spec_decoding_stats is None, "no speculator was at work"


def test_without_jump_forward_nothing_is_drafted(engine, monkeypatch):
    monkeypatch.setattr(Digits, "grammar", Jumping)
    config = EngineConfig(model="m", enable_jump_forward=False)
    plain = Engine(config, engine._executor, max_model_len=100, grammars=engine._grammars)
    assert run(plain, request("a", choice=["123456"]))["a"][0] == "123456"
    assert not any(s.draft_token_ids for plan in engine._executor.plans for s in plan.scheduled)
