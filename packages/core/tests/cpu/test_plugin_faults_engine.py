"""The cells of tools/failures.toml that need an engine that computes: logits processors and attention, in use.

The rest of the table is in tests/null/test_plugin_faults.py.
"""

import tomllib
from pathlib import Path

import pytest

from modulm import SamplingParams
from modulm.errors import Broken
from modulm.interfaces.logits import LogitsProcessor
from modulm.plugins.registry import registry
from modulm.reference.attention_torch import TorchAttention

TABLE = tomllib.loads((Path(__file__).parents[4] / "tools/failures.toml").read_text())
PROMPT = {"prompt_token_ids": list(range(10, 40))}


def outcome(fault, group):
    return TABLE["table"][fault][list(TABLE["groups"]).index(group)]


def answer(llm):
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    return llm.generate(PROMPT, params)[0]


def tokens(llm):
    return answer(llm).outputs[0].token_ids


class Good(LogitsProcessor):
    """Wants token 7 first."""

    def __init__(self, config, device, is_pin_memory): ...

    def apply(self, logits):
        logits[:, 7] += 1e4
        return logits

    def is_argmax_invariant(self):
        return False

    def update_state(self, batch_update): ...


def failing(error):
    def fail(self, *args):
        raise error

    return fail


@pytest.mark.parametrize(
    ("fault", "error"), [("call-raises", RuntimeError("boom")), ("call-exits", SystemExit(3))], ids=str
)
def test_a_logits_processor_that_cannot_be_made(tiny_llm, fault, error):
    assert outcome(fault, "logits") == "stops"
    bad = type("Bad", (Good,), {"__init__": failing(error)})
    raised = f"Bad' is installed but broken: making it raised {type(error).__name__}: {error}"
    with pytest.raises(Broken, match=f"Logits processor .*:{raised}"):
        tiny_llm(logits_processors=[Good, bad])


class Switched(Good):
    """Fails while `fault` is set, by the next step's `apply`."""

    fault = None

    def apply(self, logits):
        if isinstance(Switched.fault, BaseException):
            raise Switched.fault
        return super().apply(logits) if Switched.fault is None else Switched.fault


@pytest.mark.parametrize(
    ("kind", "fault", "says"),
    [
        ("use-raises", RuntimeError("boom"), "RuntimeError: boom"),
        ("use-raises", SystemExit(3), "SystemExit: 3"),
        ("wrong-answer", 3, "int"),
    ],
)
def test_a_logits_processor_that_fails_in_use(tiny_llm, monkeypatch, kind, fault, says):
    assert outcome(kind, "logits") == "requests"
    llm = tiny_llm(logits_processors=[Switched])
    assert tokens(llm) == [7] * 5
    monkeypatch.setattr(Switched, "fault", fault)
    ended = answer(llm)
    assert ended.outputs[0].finish_reason == "error" and says in ended.error
    monkeypatch.setattr(Switched, "fault", None)
    assert tokens(llm) == [7] * 5, "the engine goes on"


class Tripping(TorchAttention):
    """Core's attention, which fails while `fault` is set."""

    name = "tripping"
    fault = None

    def forward(self, *args, **options):
        if Tripping.fault:
            raise Tripping.fault
        return super().forward(*args, **options)


@pytest.mark.parametrize("fault", [RuntimeError("boom"), SystemExit(3)], ids=str)
def test_attention_that_fails_in_use(tiny_llm, monkeypatch, fault):
    assert outcome("use-raises", "family") == "requests"
    want = tokens(tiny_llm())
    registry("modulm.attention").register("tripping", Tripping, override=True)
    try:
        llm = tiny_llm(attention_backend="tripping")
        monkeypatch.setattr(Tripping, "fault", fault)
        ended = answer(llm)
        assert ended.outputs[0].finish_reason == "error" and f"{type(fault).__name__}: {fault}" in ended.error
        monkeypatch.setattr(Tripping, "fault", None)
        assert tokens(llm) == want
    finally:
        registry("modulm.attention").restore("tripping", None)
