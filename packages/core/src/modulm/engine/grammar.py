"""Grammars of sequences: compiled beside the engine's loop, asked for masks while the model computes.

Knows neither text nor tokenizers: the vocabulary comes from whoever built the engine. What a backend must do is in
`interfaces/structured.py`; where masks are applied, in `worker/sampler.py`.
"""

import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar, cast

import msgspec
import numpy as np

from modulm.engine.compiling import Compilers
from modulm.engine.thinking import Marks, ThinkingGrammar, is_allowed
from modulm.errors import ConfigError, NotInstalled, PluginError, RequestError
from modulm.interfaces.structured import CompiledGrammar, Grammar, StructuredOutputBackend, Vocabulary
from modulm.interfaces.support import Rejected, Support
from modulm.log import logger
from modulm.plugins.choose import choose, run
from modulm.plugins.known import KNOWN
from modulm.plugins.records import is_strict
from modulm.plugins.refs import PASSING
from modulm.plugins.registry import registry
from modulm.structured_outputs import StructuredOutputsParams
from modulm.types import Thinking

FAMILY = "modulm.structured_output"
_MOST_KEPT = 256
"""Compiled forms."""
_NUM_THREADS = 2
_log = logger("engine")
Answer = TypeVar("Answer")


@dataclass(kw_only=True)
class TokenMasks:
    """What a plan brings the sampler: a mask for some of its sequences, being filled.

    Attributes:
        entries: Which of `plan.scheduled`, ascending.
        bits: uint32 [rows, words], a row for each entry's newest token and one for each of its drafts; to be read after
            `wait`. What follows a draft that cannot come is not filled.
    """

    entries: list[int]
    bits: np.ndarray
    filling: "Future[None]"

    def wait(self) -> np.ndarray:
        """Return the masks once they are filled. Raises what the backend raised."""
        self.filling.result()
        return self.bits


class SequenceGrammar(Grammar):
    """A backend's grammar of one sequence. What the backend raises is kept here: it ends this sequence and no other.

    Attributes:
        error: Why the sequence cannot go on, once the backend has failed; everything is allowed from then on.
    """

    def __init__(self, grammar: Grammar, backend: str) -> None:
        self.error: str | None = None
        self._grammar = grammar
        self._backend = backend

    def fill(self, mask: np.ndarray) -> None:
        """See `Grammar`."""
        self._asked("filling a mask", lambda: self._grammar.fill(mask), None)
        if self.error is not None:
            mask.fill(0xFFFFFFFF)

    def accept(self, token_ids: Sequence[int]) -> bool:
        """See `Grammar`."""
        return self._asked("taking a token", lambda: self._grammar.accept(token_ids), True)

    def rollback(self, num_tokens: int) -> None:
        """See `Grammar`."""
        self._asked("taking tokens back", lambda: self._grammar.rollback(num_tokens), None)

    def forced(self) -> list[int]:
        """See `Grammar`."""
        return self._asked("asking for what must come", lambda: self._grammar.forced(), [])

    @property
    def is_terminated(self) -> bool:
        """See `Grammar`."""
        return self._asked("asking for its end", lambda: self._grammar.is_terminated, False)

    def _asked(self, doing: str, ask: Callable[[], Answer], otherwise: Answer) -> Answer:
        if self.error is None:
            try:
                return ask()
            except PASSING:
                raise
            except BaseException as error:  # native libraries panic with errors that are no Exception
                _log.exception("Structured output backend %r failed", self._backend)
                self.error = (
                    f"Structured output backend {self._backend!r} failed: {doing} raised {type(error).__name__}: "
                    f"{error}. Choose another backend, or mend it."
                )
        return otherwise


class _Compiled(NamedTuple):
    """What is kept of a form, of marks around thinking, or of both; with the backend's name."""

    backend: str
    form: CompiledGrammar | None
    marks: Marks | None


@dataclass(kw_only=True)
class Preparation:
    """A request's form on its way; `result` may be asked for any number of times."""

    compiling: Future[_Compiled]
    compilers: Compilers
    thinking: Thinking | None
    deadline: float
    timeout_s: float

    def is_over(self) -> bool:
        """Whether `result` has an answer."""
        self.compilers.go_on()
        return self.compiling.done() or time.monotonic() > self.deadline

    def wait(self, timeout_s: float) -> None:
        """Wait a moment, or until it is done."""
        try:
            self.compiling.exception(timeout_s)
        except FutureTimeoutError:
            return

    def result(self) -> SequenceGrammar:
        """Return the state at the beginning. Raises `RequestError` with the reason why there is none."""
        if not self.compiling.done():
            raise RequestError(
                f"structured_outputs is refused: it was not ready after {self.timeout_s:g} s. Simplify it.",
                parameter="structured_outputs",
            )
        try:
            backend, form, marks = self.compiling.result()
            start = None if form is None else form.start
            if self.thinking is not None and marks is not None:
                return SequenceGrammar(ThinkingGrammar(self.thinking, marks, start), backend)
            assert start is not None
            return SequenceGrammar(start(), backend)
        except (RequestError, *PASSING):
            raise
        except (PluginError, ConfigError) as error:
            raise RequestError(f"structured_outputs is refused: {error}", parameter="structured_outputs") from error
        except BaseException as error:  # native libraries panic with errors that are no Exception
            _log.exception("A structured-output backend failed")
            raise RequestError(
                f"structured_outputs cannot be served: the backend failed with {type(error).__name__}: {error}.",
                parameter="structured_outputs",
            ) from error


class Grammars:
    """The forms of one engine's requests.

    Args:
        vocabulary: Called once, at the first request that has a form, from a thread of the pool.
        backend: A name, or "auto": for each request the first by `rank` that enforces all it asks for.
        timeout_s: How long a form may take to be compiled.
    """

    def __init__(self, vocabulary: Callable[[], Vocabulary], *, backend: str = "auto", timeout_s: float = 30.0) -> None:
        self._make_vocabulary = vocabulary
        self._backend = backend
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._vocabulary: Vocabulary | None = None
        self._backends: dict[type[StructuredOutputBackend], StructuredOutputBackend] = {}
        self._kept: OrderedDict[tuple[object, ...], Future[_Compiled]] = OrderedDict()
        self._compilers = Compilers(_NUM_THREADS)
        self._filler: ThreadPoolExecutor | None = None

    def prepare(self, params: StructuredOutputsParams | None, thinking: Thinking | None = None) -> Preparation:
        """Begin to compile a form, unless it is kept from an earlier request; one of the two must be there."""
        key: tuple[object, ...] = ()
        if params is not None:
            key += (params.kind, params.text, params.disable_any_whitespace)
            key += (params.whitespace_pattern, params.disable_additional_properties)
        if thinking is not None:
            key += (msgspec.json.encode((thinking.start, thinking.ends)),)
        compiling = self._kept.get(key)
        if compiling is None or (compiling.done() and compiling.exception() is not None):
            work = partial(self._compile, params, thinking)
            compiling = self._kept[key] = self._compilers.submit(work, self._timeout_s)
        self._kept.move_to_end(key)
        while len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
        return Preparation(
            compiling=compiling,
            compilers=self._compilers,
            thinking=thinking,
            deadline=time.monotonic() + self._timeout_s,
            timeout_s=self._timeout_s,
        )

    def fill(
        self, entries: list[int], grammars: Sequence[Grammar], drafts: Sequence[Sequence[int]] | None = None
    ) -> TokenMasks:
        """Begin to fill masks for entries of a plan; `drafts` are what each of them verifies."""
        assert self._vocabulary is not None, "a grammar was made without a vocabulary"
        drafts = drafts or [()] * len(entries)
        bits = np.zeros((len(entries) + sum(map(len, drafts)), self._vocabulary.num_words), dtype=np.uint32)
        ends = frozenset(self._vocabulary.eos_token_ids)

        def fill_all() -> None:
            at = 0
            for grammar, drafted in zip(grammars, drafts, strict=True):
                _fill(grammar, drafted, bits[at : at + 1 + len(drafted)], ends)
                at += 1 + len(drafted)

        # A thread of its own: a form that takes long to compile must not hold up a step.
        self._filler = self._filler or ThreadPoolExecutor(1, "modulm-masks")
        return TokenMasks(entries=entries, bits=bits, filling=self._filler.submit(fill_all))

    def shutdown(self) -> None:
        """Let the threads go."""
        self._compilers.shutdown()
        if self._filler is not None:
            self._filler.shutdown(wait=False, cancel_futures=True)

    def _compile(self, params: StructuredOutputsParams | None, thinking: Thinking | None) -> _Compiled:
        marks = None if thinking is None else Marks(thinking, self._read_vocabulary())
        if params is None:
            return _Compiled("thinking", None, marks)
        names = registry(FAMILY).names()
        if not names and self._backend == "auto":
            packages = sorted(set(KNOWN.get(FAMILY, {}).values()))
            raise NotInstalled(
                "Structured output is asked for and no backend is installed. They come with packages: "
                f"{', '.join(packages)}; for example: pip install {packages[0]}."
            )
        if self._backend == "auto":  # else none but the one that is asked for need be imported
            names.sort(key=_rank)
        refused: dict[type[StructuredOutputBackend], Rejected] = {}

        def ask(cls: type[StructuredOutputBackend]) -> Support:
            return refused[cls] if cls in refused else cls.supports(params)

        while True:
            choice = choose(FAMILY, self._backend, names, ask)
            backend = cast(type[StructuredOutputBackend], choice.value)
            try:
                return _Compiled(backend.name, self._backend_of(choice.name, backend).compile(params), marks)
            except (RequestError, PluginError) as error:
                if self._backend != "auto" or (isinstance(error, PluginError) and is_strict()):
                    raise
                refused[backend] = Rejected(str(error))  # the next is asked

    def _backend_of(self, name: str, cls: type[StructuredOutputBackend]) -> StructuredOutputBackend:
        vocabulary = self._read_vocabulary()
        with self._lock:
            if cls not in self._backends:
                self._backends[cls] = run(FAMILY, name, "making it", cls, vocabulary)
            return self._backends[cls]

    def _read_vocabulary(self) -> Vocabulary:
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = self._make_vocabulary()
            return self._vocabulary


def _rank(name: str) -> int:
    """Return a backend's place in the order of automatic choice; what cannot be had comes last, and says why."""
    try:
        return int(registry(FAMILY).get(name).rank)
    except (PluginError, ConfigError):
        return sys.maxsize


def _fill(grammar: Grammar, drafted: Sequence[int], rows: np.ndarray, ends: frozenset[int]) -> None:
    """Fill a mask for what follows each draft, as far as they are allowed, and leave the grammar as it was."""
    num_taken = 0
    for row, token in zip(rows, drafted, strict=False):
        grammar.fill(row)
        if not is_allowed(row, token) or token in ends or not grammar.accept([token]):
            break
        num_taken += 1
        if grammar.is_terminated:
            break
    else:
        grammar.fill(rows[-1])
    if num_taken:
        grammar.rollback(num_taken)
