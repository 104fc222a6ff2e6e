"""Conformance of IO processors (`modulm.interfaces.io_processor`): data -> prompts, outputs -> an answer.

The author says which data it takes and which it refuses. Outputs are made up: the text of each is its prompt.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from modulm.interfaces.io_processor import IOProcessor
from modulm_testkit.fakes import request_output
from modulm_testkit.suite import Conformance, ask_for


class IOProcessorConformance(Conformance):
    """Give `processor_class`: the class whose path the entry point's function returns.

    Attributes:
        data: Some of what it takes: values of a request's `data`.
        bad_data: Some of what it refuses.
    """

    data: ClassVar[Sequence[Any]] = ()
    bad_data: ClassVar[Sequence[Any]] = ()

    @pytest.fixture(name="processor_class")
    def _processor_class(self) -> Any:
        """Return the class."""
        ask_for("processor_class", "MyProcessor")

    @pytest.fixture
    def processor(self, processor_class: Any) -> "_Processor":
        """A processor, made as the front end makes it."""
        if not self.data:
            ask_for("data", "[...], a class attribute: what it takes")
        return _Processor(processor_class(None, None))

    def test_refuses_bad_data(self, processor: "_Processor") -> None:
        """`parse_data` raises `ValueError` for what it cannot take: the client gets status 400, not 500."""
        for data in self.bad_data:
            with pytest.raises(ValueError, match=r".+"):
                processor.inner.parse_data(data)

    def test_takes_its_data(self, processor: "_Processor") -> None:
        """`parse_data` takes every kind of data that it says it does."""
        for data in self.data:
            processor.inner.parse_data(data)

    def test_makes_prompts(self, processor: "_Processor") -> None:
        """`pre_process` returns a prompt or a sequence of them: text, token ids, or a dictionary with either."""
        for data in self.data:
            made = processor.inner.pre_process(processor.inner.parse_data(data))
            prompts = _prompts(made)
            assert prompts, f"no prompt is made of {data!r}"
            assert all(_is_prompt(prompt) for prompt in prompts), f"{made!r} is no prompt"

    def test_takes_what_comes_later(self, processor: "_Processor") -> None:
        """Both ways take a request id, and keywords that they have never heard of."""
        parsed = processor.inner.parse_data(self.data[0])
        prompts = _prompts(processor.inner.pre_process(parsed, request_id="r1", of_next_year=True))
        processor.inner.post_process(_outputs(prompts), request_id="r1", of_next_year=True)

    def test_answers(self, processor: "_Processor") -> None:
        """`post_process` makes an answer of all prompts' outputs."""
        for data in self.data:
            assert processor.answer(data, "r1") is not None, f"no answer to {data!r}"

    def test_requests_do_not_mix(self, processor: "_Processor") -> None:
        """Several requests are under way at once: each gets its own answer."""
        first, last = self.data[0], self.data[-1]
        alone = [repr(processor.answer(data, request_id)) for data, request_id in ((first, "a"), (last, "b"))]
        inner = processor.inner
        prompts = [
            _prompts(inner.pre_process(inner.parse_data(data), request_id=request_id))
            for data, request_id in ((first, "a"), (last, "b"))
        ]
        together = [
            repr(inner.post_process(_outputs(each), request_id=request_id))
            for each, request_id in zip(prompts, ("a", "b"), strict=True)
        ]
        assert together == alone


class _Processor:
    def __init__(self, inner: IOProcessor) -> None:
        self.inner = inner

    def answer(self, data: Any, request_id: str) -> Any:
        """Take a request all the way."""
        prompts = _prompts(self.inner.pre_process(self.inner.parse_data(data), request_id=request_id))
        return self.inner.post_process(_outputs(prompts), request_id=request_id)


def _prompts(made: Any) -> list[Any]:
    if isinstance(made, str | dict) or (isinstance(made, list) and made and all(isinstance(one, int) for one in made)):
        return [made]
    return list(made) if isinstance(made, Sequence) else [made]


def _is_prompt(prompt: Any) -> bool:
    if isinstance(prompt, dict):
        return "prompt" in prompt or "prompt_token_ids" in prompt
    return isinstance(prompt, str) or (isinstance(prompt, list) and all(isinstance(one, int) for one in prompt))


def _outputs(prompts: Sequence[Any]) -> list[Any]:
    return [request_output(str(prompt), str(prompt)) for prompt in prompts]
