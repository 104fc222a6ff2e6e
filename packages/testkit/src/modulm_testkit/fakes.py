"""Stand-ins for what surrounds a plugin: a checkpoint in memory, payloads of statistics, an engine's door, a worker."""

from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from modulm.errors import CheckpointError, did_you_mean
from modulm.interfaces.checkpoint import Checkpoint, TensorInfo, TokenizerData
from modulm.interfaces.metrics import LoggedCache, LoggedConfig, LoggedModel, PluginLoad
from modulm.interfaces.support import Rejected, Support
from modulm.outputs import CompletionOutput, RequestOutput
from modulm.sampling_params import SamplingParams
from modulm.types import (
    FinishedRequestStats,
    FinishReason,
    IterationStats,
    KVGroup,
    KVLayout,
    Plan,
    PrefixCacheStats,
    PromptTokenStats,
    SampledTokens,
    SchedulerStats,
    SpecDecodingStats,
    StepResult,
)

if TYPE_CHECKING:
    import numpy as np


class MemoryCheckpoint(Checkpoint):
    """A checkpoint that is nowhere on disk: config.json's contents and tensors, as given.

    Tensors are handed out read-only, as from a mapped file.
    """

    format: ClassVar[str] = "memory"

    def __init__(self, config: Mapping[str, Any], tensors: "Mapping[str, np.ndarray]") -> None:
        self.path = Path("in-memory")
        self._config = dict(config)
        self._tensors = dict(tensors)

    @classmethod
    def matches(cls, path: Path) -> Support:
        """Reject every path."""
        return Rejected("it is nowhere on disk")

    @classmethod
    def open(cls, path: Path) -> "MemoryCheckpoint":
        """Raise `CheckpointError`: there is nothing to open."""
        raise CheckpointError(f"{str(path)!r} cannot be opened: this format is nowhere on disk.")

    def config(self) -> dict[str, Any]:
        """Return what it was made with."""
        return dict(self._config)

    def generation_config(self) -> dict[str, Any]:
        """Return an empty dict."""
        return {}

    def tokenizer(self) -> TokenizerData:
        """Raise `CheckpointError`."""
        raise CheckpointError("A checkpoint in memory has no tokenizer.")

    def tensor_names(self) -> Iterable[str]:
        """Return the names it was made with."""
        return self._tensors.keys()

    def info(self, name: str) -> TensorInfo:
        """See base class."""
        array = self._array(name)
        return TensorInfo(shape=array.shape, dtype=array.dtype.name, size_bytes=array.nbytes)

    def tensor(self, name: str) -> "np.ndarray":
        """See base class."""
        view = self._array(name).view()
        view.flags.writeable = False
        return view

    def _array(self, name: str) -> "np.ndarray":
        if name not in self._tensors:
            raise CheckpointError(f"Tensor {name!r} is missing in memory.{did_you_mean(name, self._tensors)}")
        return self._tensors[name]


def logged_config(max_model_len: int = 512) -> LoggedConfig:
    """Return what a stat logger is constructed with."""
    model = LoggedModel(model="folder/tiny", served_model_name="tiny", max_model_len=max_model_len)
    cache = LoggedCache(
        block_size=16, cache_dtype="auto", enable_prefix_caching=True, gpu_memory_utilization=0.5,
        kv_cache_memory_bytes=None, num_gpu_blocks=100,
    )  # fmt: skip
    loads = (PluginLoad(name="p", state="loaded", seconds=0.5), PluginLoad(name="q", state="broken", seconds=None))
    return LoggedConfig(model_config=model, cache_config=cache, plugins=lambda: loads)


def scheduler_stats(*, drafts: bool = True) -> SchedulerStats:
    """Return how a busy engine stands; `drafts`: with what became of drafted tokens."""
    spec = SpecDecodingStats(
        num_drafts=2, num_draft_tokens=6, num_accepted_tokens=3, num_accepted_tokens_per_pos=[2, 1, 0]
    )
    return SchedulerStats(
        num_running_reqs=3, num_waiting_reqs=2, num_skipped_waiting_reqs=1, step_counter=17, kv_cache_usage=0.25,
        prefix_cache_stats=PrefixCacheStats(requests=4, queries=400, hits=160),
        spec_decoding_stats=spec if drafts else None,
    )  # fmt: skip


def iteration_stats(finished: Iterable[FinishedRequestStats] = ()) -> IterationStats:
    """Return what a step with prompts and decoding sequences did."""
    return IterationStats(
        iteration_timestamp=1e9, prompt_token_stats=PromptTokenStats(computed=20, local_cache_hit=16),
        num_generation_tokens=5, num_preempted_reqs=1, finished_requests=list(finished),
        time_to_first_tokens_iter=[0.125], inter_token_latencies_iter=[0.01, 0.02], n_params_iter=[1],
        max_num_generation_tokens_iter=[7],
    )  # fmt: skip


def finished_request(
    request_id: str = "r0", finish_reason: FinishReason = "stop", *, traced: bool = False
) -> FinishedRequestStats:
    """Return a request that has ended; `traced`: with headers and parameters, as where spans are made."""
    return FinishedRequestStats(
        finish_reason=finish_reason, request_id=request_id, arrival_time=1e9, e2e_latency=1.5, first_token_latency=0.5,
        num_prompt_tokens=36, num_generation_tokens=7, num_cached_tokens=16, num_preemptions=1, max_tokens_param=16,
        queued_time=0.1, prefill_time=0.4, decode_time=1.0, inference_time=1.4, mean_time_per_output_token=0.17,
        trace_headers={"x-request-id": request_id} if traced else None,
        params=SamplingParams(n=2) if traced else None,
    )  # fmt: skip


def request_output(prompt: str, text: str, request_id: str = "r0") -> RequestOutput:
    """Return a request's last output."""
    done = CompletionOutput(index=0, text=text, token_ids=list(text.encode()), finish_reason="stop")
    return RequestOutput(
        request_id=request_id, prompt=prompt, prompt_token_ids=list(prompt.encode()), outputs=[done], finished=True
    )


class FakeWorker:
    """A worker for executors: its k-th token of any sequence is k. `failure` is raised by the next steps.

    Attributes:
        plans: What it was told to do.
        shutdowns: How often it was shut down.
    """

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self.plans: list[Plan] = []
        self.shutdowns = 0

    def kv_layout(self) -> KVLayout:
        """Return 100 blocks of 16 tokens, in one group."""
        return KVLayout(block_size=16, num_blocks=100, groups=(KVGroup(layer_names=("layer",)),))

    def execute(self, plan: Plan) -> StepResult:
        """Answer one token for every sequence that samples."""
        if self.failure is not None:
            raise self.failure
        self.plans.append(plan)
        return StepResult(
            sampled=[
                SampledTokens(request_id=one.request_id, token_ids=[one.start + one.num_tokens] if one.samples else [])
                for one in plan.scheduled
            ]
        )

    def describe(self) -> dict[str, Any]:
        """Return what it is."""
        return {"device": "none"}

    def shutdown(self) -> None:
        """Count."""
        self.shutdowns += 1


class FakeEngineClient:
    """What an endpoint plugin is given as the engine's door: every request is answered with its own prompt.

    Attributes:
        prompts: What it was asked.
    """

    def __init__(self) -> None:
        self.prompts: list[Any] = []

    async def generate(
        self, prompt: Any, sampling_params: Any = None, request_id: str = "r0", **options: Any
    ) -> AsyncIterator[RequestOutput]:
        """Yield one last output whose text is the prompt."""
        self.prompts.append(prompt)
        yield request_output(str(prompt), str(prompt), request_id)

    async def abort(self, request_id: str) -> None:
        """Nothing runs here."""

    async def check_health(self) -> None:
        """It is well."""
