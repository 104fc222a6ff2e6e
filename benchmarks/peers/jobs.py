"""Which engine measures what on which weights, in the order of one round. Knows no commands and no bars."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from peers.engines.modulm_engine import FILL
from peers.machine import instruction_sets
from peers.score import Source
from peers.workload import RATES

START = "start"
"""Name in `--only` for the jobs that time a start and read the peak memory."""
FIGURES = (*RATES, "context1024", START)
STATES = ("first", "cached", "cached_int8")
"""Of a start: without and with the program in the cache folder, and with a KV cache of bytes."""


@dataclass(frozen=True)
class Job:
    """One child process.

    Attributes:
        weights: The form of the weights as `weights.py` names it.
        label: How results name the weights; differs where one form is computed in several types.
        state: One of `STATES`: the figures' names end in it; "first" clears the engine's cache folder before.
    """

    engine: str
    weights: str
    figures: tuple[str, ...]
    label: str = ""
    options: tuple[str, ...] = ()
    state: str = ""

    @property
    def source(self) -> Source:
        """What the results are of."""
        return Source(self.engine, self.label or self.weights)


def _vllm() -> Iterator[Job]:
    yield Job("vllm", "bf16", RATES, label="float32", options=("dtype=float32",))
    # Elsewhere torch's product in bfloat16 is a hundred times slower than in float32.
    if any("bf16" in flag for flag in instruction_sets()):
        yield Job("vllm", "bf16", RATES, label="bfloat16", options=("dtype=bfloat16",))


def all_jobs() -> list[Job]:
    """Return one round; what is compared stands close together."""
    gemma = ("decode1", "prefill512", "prefill1024")
    return [
        Job("modulm", "q4_1", (FILL,), state="first"),
        Job("modulm", "q4_1", (FILL,), state="cached"),
        Job("modulm", "q4_1", (FILL,), state="cached_int8", options=("kv_cache_dtype=int8_per_token_head",)),
        Job("llama", "q4_1", RATES),
        Job("modulm", "q4_1", (*RATES, "context1024")),
        Job("llama", "q4_0", RATES),
        Job("openvino", "q4_1", RATES),
        Job("llama", "q8_0", RATES),
        Job("llama", "f16", RATES),
        Job("modulm", "bf16", RATES),
        *_vllm(),
        # Its layers have caches of two kinds, which share these blocks.
        Job("modulm", "gemma", gemma, options=("num_kv_blocks=1024",)),
        Job("llama", "gemma", gemma),
    ]


def chosen(only: list[str], peers: list[str], weights: list[str]) -> list[Job]:
    """Return the jobs that are left by a choice of figures, peers (modulm stays) and weights; empty means all."""
    jobs = []
    for job in all_jobs():
        wanted = job.figures
        if only:
            wanted = tuple(name for name in job.figures if name in only or (name == FILL and START in only))
        named = not weights or job.weights in weights
        if wanted and named and (not peers or job.engine in (*peers, "modulm")):
            jobs.append(replace(job, figures=wanted))
    return jobs
