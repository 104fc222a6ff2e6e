"""`Stats`: what stat loggers in the older style, `log(stats)`, are told of a step."""

from dataclasses import dataclass, field

from vllm.v1.metrics.loggers import StatLoggerBase

__all__ = ["StatLoggerBase", "Stats"]


@dataclass
class Stats:
    """One step, or several: counts and times as vLLM named them then, as far as modulm has them.

    `*_sys` is how things stand, `*_iter` what the step brought, `*_requests` one value for each request that ended.
    Times in seconds; `now` since the epoch. Usage of the cache is a share, 0 to 1; the host has no second cache.
    """

    now: float
    num_running_sys: int = 0
    num_waiting_sys: int = 0
    num_swapped_sys: int = 0
    gpu_cache_usage_sys: float = 0.0
    cpu_cache_usage_sys: float = 0.0
    gpu_prefix_cache_hit_rate: float = 0.0
    num_prompt_tokens_iter: int = 0
    num_generation_tokens_iter: int = 0
    num_tokens_iter: int = 0
    num_preemption_iter: int = 0
    time_to_first_tokens_iter: list[float] = field(default_factory=list)
    time_per_output_tokens_iter: list[float] = field(default_factory=list)
    time_e2e_requests: list[float] = field(default_factory=list)
    time_queue_requests: list[float] = field(default_factory=list)
    time_inference_requests: list[float] = field(default_factory=list)
    time_prefill_requests: list[float] = field(default_factory=list)
    time_decode_requests: list[float] = field(default_factory=list)
    num_prompt_tokens_requests: list[int] = field(default_factory=list)
    num_generation_tokens_requests: list[int] = field(default_factory=list)
    max_tokens_requests: list[int] = field(default_factory=list)
    n_requests: list[int] = field(default_factory=list)
    max_num_generation_tokens_requests: list[int] = field(default_factory=list)
    finished_reason_requests: list[str] = field(default_factory=list)
