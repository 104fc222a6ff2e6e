"""The engine's side of one sequence: its tokens, what is computed of them, and when it must stop.

Knows no other sequence. `scheduler.py` moves sequences between the states below; blocks are accounted for in `kv/`.
"""

from enum import IntEnum

import msgspec

from modulm.engine.grammar import SequenceGrammar
from modulm.engine.kv.groups import BlockTables
from modulm.engine.kv.prefix import HashChain
from modulm.types import FinishReason, Request, SampledTokens, TokenLogprobs

Order = tuple[int, float, int]
"""Priority, arrival time, number: what sorts both queues. The number alone tells any two apart."""


class State(IntEnum):
    """WAITING holds no blocks and is unknown to the worker, whether it has run before (PREEMPTED) or not."""

    WAITING = 0
    PREEMPTED = 1
    RUNNING = 2
    FINISHED = 3


class Times(msgspec.Struct):
    """Monotonic seconds at which things happened to a sequence; 0 when not yet. `arrived` is at the front end."""

    arrived: float = 0.0
    queued: float = 0.0
    scheduled: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0


class Sequence:
    """One request on its way through the engine.

    Attributes:
        token_ids: Prompt and output so far.
        num_computed: Tokens, from the first, whose K/V is in the blocks (or will be after the step in flight).
        tables: Its blocks while it runs.
        grammar: How far it has come in the form that its output must have; None where it may have any.
        chain: Names for its blocks; None when no other sequence may share them.
        num_cached_tokens: Prompt tokens that came from the prefix cache at its first start.
        num_prompt_counted: Prompt tokens that statistics have heard of.
        num_prompt_logprobs: Prompt positions reported on so far, which a recomputation must not report again.
        drafts: What is expected to follow `token_ids`.
        jumps: Whether the drafts of the step in flight are what the grammar says must come.
        may_jump: Whether the grammar is asked for that.
    """

    __slots__ = (
        "_max_total",
        "_min_total",
        "_stop_ids",
        "chain",
        "drafts",
        "grammar",
        "jumps",
        "may_jump",
        "num_cached_tokens",
        "num_computed",
        "num_preemptions",
        "num_prompt",
        "num_prompt_counted",
        "num_prompt_logprobs",
        "order",
        "request",
        "request_id",
        "state",
        "tables",
        "times",
        "token_ids",
    )

    def __init__(
        self, request: Request, order: Order, chain: HashChain | None, grammar: SequenceGrammar | None = None
    ) -> None:
        self.request = request
        self.grammar = grammar
        self.request_id = request.request_id
        self.order = order
        self.chain = chain
        self.state = State.WAITING
        self.token_ids = list(request.prompt_token_ids)
        self.num_prompt = len(request.prompt_token_ids)
        self.num_computed = 0
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.num_prompt_counted = 0
        self.num_prompt_logprobs = 0
        self.drafts: list[int] = []
        self.jumps = False
        self.may_jump = grammar is not None
        self.tables: BlockTables | None = None
        self.times = Times()
        self._stop_ids = frozenset(request.stop_token_ids)
        self._min_total = self.num_prompt + request.params.min_tokens
        self._max_total = self.num_prompt + request.max_tokens

    @property
    def may_read_cache(self) -> bool:
        """Whether its prompt's K/V may come from the cache: not while the prompt's log-probabilities are owed."""
        owed = self.request.params.prompt_logprobs is not None and self.num_prompt_logprobs < self.num_prompt - 1
        return self.chain is not None and not owed

    @property
    def most_drafts(self) -> int:
        """How many tokens may come before the last one that it may have."""
        return self._max_total - len(self.token_ids) - 1

    def append(self, token_ids: list[int]) -> tuple[int, FinishReason | None, int | None]:
        """Append sampled tokens up to the one that ends the output.

        Returns how many were taken, the reason to finish ("error": its form does not allow the last), the stop token.
        """
        for count, token in enumerate(token_ids, 1):
            self.token_ids.append(token)
            total = len(self.token_ids)
            if token in self._stop_ids and total >= self._min_total:
                return count, "stop", token
            if self.grammar is not None:
                if not self.grammar.accept([token]) or self.grammar.error is not None:
                    return count, "error", None
                if self.grammar.is_terminated:
                    return count, "stop", None
            if total >= self._max_total:
                return count, "length", None
        return len(token_ids), None, None

    def new_prompt_logprobs(self, start: int, sampled: SampledTokens) -> list[TokenLogprobs] | None:
        """Return those of a step's prompt log-probabilities that have not been reported; the step began at `start`."""
        if not sampled.prompt_logprobs:
            return None
        entries = sampled.prompt_logprobs[max(0, self.num_prompt_logprobs - start) :]
        self.num_prompt_logprobs += len(entries)
        return entries or None
