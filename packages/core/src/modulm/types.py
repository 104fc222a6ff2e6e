"""The messages that cross the doors between rooms, in the order a request meets them.

`Request` (frontend -> engine), `Plan` (engine -> worker), `StepResult` (worker -> engine), `StepOutput` (engine ->
frontend), `Delta` (frontend -> whoever asked). Plain msgspec structs: no torch, no text in the middle, no methods that
decide anything. Token ids are `list[int]`; block ids index the KV cache's physical blocks.
"""

from typing import Any, Literal

import msgspec

from modulm.sampling_params import SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]


class Adapter(msgspec.Struct, frozen=True, kw_only=True):
    """A LoRA adapter that a request names. `key` identifies its content and salts the prefix cache."""

    name: str
    key: str
    path: str


class ThinkingMark(msgspec.Struct, frozen=True, kw_only=True):
    """A text around thinking, and how the tokenizer would write it."""

    text: bytes
    token_ids: list[int]


class Thinking(msgspec.Struct, frozen=True, kw_only=True):
    """What a response may begin with before its answer: forms wait for its end, and a budget writes that."""

    start: ThinkingMark
    ends: list[ThinkingMark]
    """Any of them ends it; the first is the one to write."""
    shown: dict[int, bytes] = {}
    """Special ids of the marks, and their text."""
    begun: bool
    """Whether it is under way before the response begins; otherwise the model begins it by `start`, or does not."""
    budget: int | None = None
    """Most tokens of it, its marks left out."""


class Request(msgspec.Struct, kw_only=True):
    """One sequence to generate, ready for the engine: ids only, everything resolved, everything checked.

    `request_id` is the engine's internal key, unique for the process's life; the client's own id never comes here.
    A client's request with n > 1 becomes n of these with one `fanout_salt`, so that they share the prompt's blocks
    even where prefix caching is off.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    max_tokens: int
    """Resolved limit: never None, never past the model's length."""
    stop_token_ids: list[int] = []
    """Every id that ends the output: the request's own plus the model's end-of-sequence ids unless `ignore_eos`."""
    eos_token_ids: list[int] = []
    """The model's end-of-sequence ids (a subset of `stop_token_ids` unless `ignore_eos`); masked until `min_tokens`."""
    thinking: Thinking | None = None
    """Thinking that a form waits for, or that has a budget; None: whatever the output is, it is the answer."""
    bad_words_token_ids: list[list[int]] = []
    """Token sequences that may not be completed: all tokenisations of `params.bad_words`."""
    seed: int | None = None
    """The seed of this sequence (differs between the n sequences of one client request)."""
    priority: int = 0
    """Smaller is served first under the priority policy."""
    arrival_time: float = 0.0
    """Seconds since the epoch, when the front end took it in; 0 when nobody said."""
    cache_salt: str | None = None
    fanout_salt: str | None = None
    adapter: Adapter | None = None
    trace_headers: dict[str, str] | None = None
    """Where its span belongs (W3C `traceparent`, `tracestate`) and the client's id, `x-request-id`; None: no span."""


class NewSequence(msgspec.Struct, kw_only=True):
    """A sequence the worker does not know yet (or forgot at preemption). Sent once."""

    request: Request
    token_ids: list[int]
    """Prompt plus all output so far (output is not empty when a preempted sequence resumes)."""


class Scheduled(msgspec.Struct, kw_only=True):
    """One sequence's share of a step: compute `num_tokens` tokens from position `start`.

    `new_block_ids[g]` extends the block table of KV group g. `samples` says whether the last of these tokens, but for
    drafts, is the sequence's newest one, so that the step yields a new token.
    """

    request_id: str
    start: int
    num_tokens: int
    new_block_ids: list[list[int]]
    samples: bool
    draft_token_ids: list[int] = []
    """Guesses at what follows the newest token, counted in `num_tokens`: each is sampled at, and right if it comes."""


class Plan(msgspec.Struct, kw_only=True):
    """What the worker does in one step. An empty `scheduled` list is legal (only `forget` matters then)."""

    new: list[NewSequence] = []
    forget: list[str] = []
    """Finished, aborted or preempted: drop the state of these ids before anything else.

    An id the worker does not know is passed over: after a failed step the engine says again what may not have arrived.
    The same plan may bring a forgotten id anew.
    """
    scheduled: list[Scheduled] = []
    masks: Any = None
    """Which tokens sequences with structured output may get: a `TokenMasks` of `engine/grammar.py`; None: any."""


class TokenLogprobs(msgspec.Struct, kw_only=True):
    """Log-probabilities at one position: the chosen token's and the k likeliest's, best first."""

    token_id: int
    logprob: float
    rank: int
    """1 for the likeliest token of the vocabulary."""
    top_ids: list[int]
    top_logprobs: list[float]


class SampledTokens(msgspec.Struct, kw_only=True):
    """What one scheduled sequence got from a step: the drafts that came, from the first, and one token more."""

    request_id: str
    token_ids: list[int] = []
    draft_token_ids: list[int] = []
    """What the worker's speculator expects next."""
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    """For the prompt positions computed in this step, each about the *next* prompt token."""
    error: str | None = None
    """Why this sequence cannot go on (say, NaN logits); the others of the step are unharmed."""


class StepResult(msgspec.Struct, kw_only=True):
    """The worker's answer to a `Plan`: one entry per scheduled sequence, in the plan's order."""

    sampled: list[SampledTokens] = []


class StepOutput(msgspec.Struct, kw_only=True):
    """What one step brought to one request. The last one has a `finish_reason`; every request gets exactly one such."""

    request_id: str
    token_ids: list[int] = []
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    """The id that ended the output, when one did."""
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    num_cached_tokens: int = 0
    """Prompt tokens served from the prefix cache."""
    error: str | None = None
    refused: str | None = None
    """The parameter at fault, where the error is the request's own and found only now."""


class Delta(msgspec.Struct, kw_only=True):
    """New text and tokens of one completion, after detokenising, stop strings and holding back."""

    request_id: str
    index: int
    text: str = ""
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None


class KVGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that share one block table. All groups draw blocks from one pool, so their pages have one size.

    `sliding_window` is None for full attention; otherwise position p sees p - sliding_window + 1 .. p and blocks
    wholly outside the window may be freed.
    """

    layer_names: tuple[str, ...]
    sliding_window: int | None = None


class KVLayout(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine must know of the worker's KV cache, and no more: counts."""

    block_size: int
    """Tokens per block."""
    num_blocks: int
    """Physical blocks, including block 0, the null block: it is never handed out and stands for freed positions."""
    groups: tuple[KVGroup, ...]


class PrefixCacheStats(msgspec.Struct, kw_only=True):
    """Prefix cache lookups since the last report, in tokens; those of resumed sequences apart (`preempted_*`)."""

    requests: int = 0
    queries: int = 0
    hits: int = 0
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0


class SpecDecodingStats(msgspec.Struct, kw_only=True):
    """Drafts verified since the last report; `num_accepted_tokens_per_pos[i]` counts those whose token i held."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = []


class SchedulerStats(msgspec.Struct, kw_only=True):
    """How things stand in the engine."""

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    """Waiting for room: sequences that may run, and blocks."""
    num_skipped_waiting_reqs: int = 0
    """Waiting for something else, and passed over meanwhile."""
    step_counter: int = 0
    """Steps since the start."""
    kv_cache_usage: float = 0.0
    """Share of the KV blocks that sequences hold, 0 to 1."""
    prefix_cache_stats: PrefixCacheStats
    spec_decoding_stats: SpecDecodingStats | None = None


class FinishedRequestStats(msgspec.Struct, kw_only=True):
    """One request that ended. Times in seconds, measured in the engine."""

    finish_reason: FinishReason
    request_id: str
    arrival_time: float
    """Seconds since the epoch."""
    e2e_latency: float
    """From its arrival to its end."""
    first_token_latency: float
    """From its arrival to its first token; 0 when there was none."""
    num_prompt_tokens: int
    num_generation_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    max_tokens_param: int
    queued_time: float
    """From the moment the engine took it in until it was first scheduled."""
    prefill_time: float
    """From then to its first token."""
    decode_time: float
    """From its first token to its last."""
    inference_time: float
    """From its first scheduling to its last token."""
    mean_time_per_output_token: float
    """Of the tokens after the first."""
    is_corrupted: bool = False
    trace_headers: dict[str, str] | None = None
    params: SamplingParams | None = None
    """What was asked for; only with `trace_headers`."""


class PromptTokenStats(msgspec.Struct, kw_only=True):
    """Prompt tokens by where they first came from. Each counts once, whatever is computed again after a preemption."""

    computed: int = 0
    local_cache_hit: int = 0
    external_kv_transfer: int = 0

    @property
    def cached_tokens(self) -> int:
        """Those that were not computed here."""
        return self.local_cache_hit + self.external_kv_transfer

    @property
    def total(self) -> int:
        """All of them."""
        return self.computed + self.cached_tokens


class IterationStats(msgspec.Struct, kw_only=True):
    """What happened since the last report."""

    iteration_timestamp: float = 0.0
    """Seconds since the epoch, when the report was made."""
    prompt_token_stats: PromptTokenStats
    num_generation_tokens: int = 0
    num_preempted_reqs: int = 0
    finished_requests: list[FinishedRequestStats] = []
    time_to_first_tokens_iter: list[float] = []
    inter_token_latencies_iter: list[float] = []
    n_params_iter: list[int] = []
    """`n` of every client request whose last completion has ended."""
    max_num_generation_tokens_iter: list[int] = []
    """The longest of its completions."""

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens computed or found in a cache."""
        return self.prompt_token_stats.total


class EngineStats(msgspec.Struct, kw_only=True):
    """The engine's report: what `StatLoggerBase.record` takes, as one message."""

    scheduler: SchedulerStats
    iteration: IterationStats
