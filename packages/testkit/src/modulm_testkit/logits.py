"""Conformance of logits processors (`modulm.interfaces.logits`): each row is served by its own request's state.

What is right for a row is what the processor itself does where that request is alone, or what the author's `expected`
says. The batch's rows move as the contract has it: removed, then added, then moved.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from modulm.interfaces.logits import BatchUpdate, LogitsProcessor, MoveDirectionality
from modulm.sampling_params import SamplingParams
from modulm_testkit.suite import Conformance, ask_for

_VOCABULARY = 64
_ONE_WAY, _SWAP = MoveDirectionality.UNIDIRECTIONAL, MoveDirectionality.SWAP


@dataclass
class _Request:
    """A request; `output` is the live list that the engine appends to."""

    params: SamplingParams
    prompt: list[int] | None
    output: list[int] = field(default_factory=list)


class LogitsProcessorConformance(Conformance):
    """Give `processor_class`: the class that the entry point of `vllm.logits_processors` names.

    Attributes:
        params: Options of `SamplingParams` that wake the processor, one dictionary for each kind of request.
        bad_params: Options that it refuses.
        device: torch's device type of the logits.
    """

    params: ClassVar[Sequence[dict[str, Any]]] = ()
    bad_params: ClassVar[Sequence[dict[str, Any]]] = ()
    device: ClassVar[str] = "cpu"

    @pytest.fixture(name="processor_class")
    def _processor_class(self) -> Any:
        """Return the class."""
        ask_for("processor_class", "MyProcessor")

    def expected(
        self, row: np.ndarray, params: SamplingParams, prompt: list[int] | None, output: list[int]
    ) -> np.ndarray | None:
        """Return what a row of logits (float32 [vocabulary]) must become, or None: what it becomes alone."""
        return None

    @pytest.fixture
    def batch(self, processor_class: Any) -> "_Batch":
        """A batch with a processor, told of nothing yet."""
        return _Batch(self, processor_class)

    def test_follows_its_rows(self, batch: "_Batch") -> None:
        """Requests leave, come and move to other rows, in one update; the state of each goes with it.

        What breaks it: keeping state by row and not hearing of moves.
        """
        rng = np.random.default_rng(0)
        for _ in range(25):
            removed = [row for row in range(len(batch.rows)) if rng.random() < 0.3]
            added = [batch.request(rng) for _ in range(rng.integers(0, 4))]
            batch.update(removed, added)
            batch.check(rng)

    def test_follows_swaps(self, batch: "_Batch") -> None:
        """Two requests may change places."""
        rng = np.random.default_rng(1)
        batch.update([], [batch.request(rng) for _ in range(4)])
        batch.swap((0, 3), (1, 2), (0, 1))
        batch.check(rng)

    def test_a_new_request_replaces_the_old(self, batch: "_Batch") -> None:
        """A request may be added to a row that still has one: the old one is gone."""
        rng = np.random.default_rng(2)
        batch.update([], [batch.request(rng) for _ in range(3)])
        for kind in (*range(len(self.params)), None):
            batch.put(1, batch.request(rng, kind))
            batch.check(rng)

    def test_sees_new_tokens(self, batch: "_Batch") -> None:
        """The list of output tokens is live: it has grown when `apply` is called, and nothing else says so."""
        rng = np.random.default_rng(3)
        batch.update([], [batch.request(rng) for _ in range(3)])
        for _ in range(5):
            for request in batch.rows:
                request.output.append(int(rng.integers(_VOCABULARY)))
            batch.update(None, [])
            batch.check(rng)

    def test_prompts_may_be_unknown(self, batch: "_Batch") -> None:
        """A request may come without prompt tokens (None)."""
        rng = np.random.default_rng(4)
        requests = [batch.request(rng, kind) for kind in range(len(self.params))]
        for request in requests:
            request.prompt = None
        batch.update([], requests)
        batch.check(rng)

    def test_rows_are_independent(self, batch: "_Batch") -> None:
        """A row's result depends on that row's logits alone, so that batches change no answer."""
        rng = np.random.default_rng(5)
        batch.update([], [batch.request(rng) for _ in range(3)])
        logits = batch.logits(rng)
        first = batch.apply(logits)
        logits[1] *= 3
        second = batch.apply(logits)
        np.testing.assert_array_equal(first[[0, 2]], second[[0, 2]])

    def test_returns_logits(self, batch: "_Batch") -> None:
        """`apply` returns float32 logits of the shape it was given, whether it works in place or not."""
        rng = np.random.default_rng(6)
        batch.update([], [batch.request(rng) for _ in range(3)])
        found = batch.processor.apply(torch.from_numpy(batch.logits(rng)).to(self.device))
        assert isinstance(found, torch.Tensor), f"it returns {found!r}"
        assert (tuple(found.shape), found.dtype) == ((3, _VOCABULARY), torch.float32)

    def test_nothing_may_have_changed(self, batch: "_Batch") -> None:
        """`update_state` gets None where the batch is as it was, which may be the first thing it hears."""
        batch.processor.update_state(None)
        rng = np.random.default_rng(7)
        batch.update([], [batch.request(rng)])
        batch.processor.update_state(None)
        batch.check(rng)

    def test_says_whether_the_likeliest_stays(self, batch: "_Batch") -> None:
        """Where `is_argmax_invariant` is true, the likeliest token stays so: greedy rows are not even shown to it."""
        invariant = batch.processor.is_argmax_invariant()
        assert isinstance(invariant, bool)
        assert invariant is batch.processor.is_argmax_invariant()
        rng = np.random.default_rng(8)
        batch.update([], [batch.request(rng) for _ in range(6)])
        for _ in range(20 if invariant else 0):
            logits = batch.logits(rng)
            for row, request in enumerate(batch.rows):  # what is often dealt with is what was said already
                logits[row, rng.choice([*(request.prompt or [])[:1], *request.output[-1:]])] = 20.0
            np.testing.assert_array_equal(batch.apply(logits).argmax(-1), logits.argmax(-1))

    def test_validates_parameters(self, processor_class: Any) -> None:
        """`validate_params` lets its own and plain parameters pass, and raises `ValueError` for bad ones.

        It is asked in the front end: the client gets status 400, not a failed step.
        """
        for options in ({}, *self.params):
            processor_class.validate_params(SamplingParams(**options))
        for options in self.bad_params:
            with pytest.raises(ValueError, match=r".+"):
                processor_class.validate_params(SamplingParams(**options))


class _Batch:
    """The rows of a batch, and a processor that hears of every change."""

    def __init__(self, suite: LogitsProcessorConformance, processor_class: Any) -> None:
        if not suite.params:
            ask_for("params", "[{...}], a class attribute: options of SamplingParams that wake it")
        self.suite, self._class = suite, processor_class
        self.processor = self._made()
        self.rows: list[_Request] = []

    def request(self, rng: np.random.Generator, kind: int | None = -1) -> _Request:
        """Return a request of a kind of `params`, None being a plain one, -1 any."""
        kinds = [*self.suite.params, {}]
        options = kinds[rng.integers(len(kinds))] if kind == -1 else {} if kind is None else kinds[kind]
        prompt, output = (rng.integers(_VOCABULARY, size=rng.integers(1, 9)).tolist() for _ in range(2))
        return _Request(SamplingParams(**options), prompt, output)

    def update(self, removed: list[int] | None, added: list[_Request]) -> None:
        """Take rows out and bring requests in; what is last fills the holes. None: nothing changed."""
        if removed is None:
            return self.processor.update_state(None)
        holes, rows = sorted(removed), list(self.rows)
        placed = []
        for request in added:
            row = holes.pop(0) if holes else len(rows)
            rows[row : row + 1] = [request]
            placed.append((row, request))
        moved = []
        for hole in holes:
            while len(rows) - 1 in holes and len(rows) - 1 > hole:
                rows.pop()
            last = len(rows) - 1
            if hole < last:
                moved.append((last, hole, _ONE_WAY))
                rows[hole] = rows[last]
            if hole <= last:
                rows.pop()
        self.rows = rows
        return self._tell(removed, placed, moved)

    def put(self, row: int, request: _Request) -> None:
        """Add a request to a row that has one."""
        self.rows[row] = request
        self._tell([], [(row, request)], [])

    def swap(self, *pairs: tuple[int, int]) -> None:
        """Let requests change places."""
        for one, other in pairs:
            self.rows[one], self.rows[other] = self.rows[other], self.rows[one]
        self._tell([], [], [(one, other, _SWAP) for one, other in pairs])

    def logits(self, rng: np.random.Generator) -> np.ndarray:
        """Return random logits of all rows."""
        return rng.normal(size=(len(self.rows), _VOCABULARY)).astype(np.float32) * 3

    def apply(self, logits: np.ndarray) -> np.ndarray:
        """Let the processor change a copy."""
        return self._applied(self.processor, logits)

    def check(self, rng: np.random.Generator) -> None:
        """Compare every row with what is right for its request."""
        if not self.rows:
            return
        logits = self.logits(rng)
        found = self.apply(logits)
        for index, request in enumerate(self.rows):
            wanted = self.suite.expected(logits[index].copy(), request.params, request.prompt, list(request.output))
            if wanted is None:
                wanted = self._alone(request, logits[index])
            np.testing.assert_allclose(found[index], wanted, rtol=1e-6, atol=1e-6, err_msg=f"row {index}: {request}")

    def _alone(self, request: _Request, row: np.ndarray) -> np.ndarray:
        """Return what a row becomes where its request is the only one, and comes with all its output."""
        one = self._made()
        added = [(0, request.params, request.prompt, list(request.output))]
        one.update_state(BatchUpdate(batch_size=1, removed=[], added=added, moved=[]))
        alone: np.ndarray = self._applied(one, row[None])[0]
        return alone

    def _made(self) -> LogitsProcessor:
        made: LogitsProcessor = self._class(None, torch.device(self.suite.device), False)
        return made

    def _applied(self, processor: LogitsProcessor, logits: np.ndarray) -> np.ndarray:
        found: np.ndarray = processor.apply(torch.from_numpy(logits.copy()).to(self.suite.device)).cpu().numpy()
        return found

    def _tell(
        self, removed: list[int], added: list[tuple[int, _Request]], moved: list[tuple[int, int, MoveDirectionality]]
    ) -> None:
        told = [(row, one.params, one.prompt, one.output) for row, one in added]
        self.processor.update_state(BatchUpdate(batch_size=len(self.rows), removed=removed, added=told, moved=moved))
