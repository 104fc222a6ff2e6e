"""modulm through its public `LLM`, with its own choice of kernels; `--option` sets any field of `EngineConfig`."""

import statistics
import sys
import time
from typing import Any

from peers import workload

CONTEXTS = (128, 1024)
CONTEXT_OUTPUT_LEN = 65
FILL = "fill"
"""Figure that fills the KV cache, 16 x 512 tokens; the parent reads the peak memory."""


class Modulm:
    """An `LLM` without prefix caching, its KV cache as large as the workload says."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        from modulm import LLM, SamplingParams

        self._params = SamplingParams
        defaults = {"enable_prefix_caching": False, "max_num_seqs": 32, "max_model_len": workload.MAX_MODEL_LEN}
        defaults |= {"block_size": 16, "num_kv_blocks": workload.KV_TOKENS // 16}
        self.llm = LLM(model=model, **{**defaults, **options})

    def _greedy(self, num_tokens: int) -> Any:
        return self._params(temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)

    def seconds(self, prompts: list[list[int]], num_tokens: int) -> float:
        """Time one batch."""
        started = time.perf_counter()
        outputs = self.llm.generate([{"prompt_token_ids": ids} for ids in prompts], self._greedy(num_tokens))
        seconds = time.perf_counter() - started
        assert all(len(each.outputs[0].token_ids) == num_tokens for each in outputs), "an output is too short"
        return seconds

    def context_rate(self, length: int, seed: int) -> float:
        """Return the decode rate of one sequence after a prompt of `length`, from its first token to its last."""
        (ids,) = workload.prompts(1, length, seed)
        times = []
        for _ in self.llm.stream({"prompt_token_ids": ids}, self._greedy(CONTEXT_OUTPUT_LEN)):
            times.append(time.perf_counter())
        return (len(times) - 1) / (times[-1] - times[0])


def context_ratios(engine: Modulm, repeats: int) -> list[float]:
    """Return the rate at context 1024 over that at 128, both timed in turn."""
    short, long = CONTEXTS
    return [engine.context_rate(long, seed) / engine.context_rate(short, seed) for seed in range(repeats + 1)][1:]


def main() -> None:
    """Load, tell when the first token came, measure what is asked for."""
    args = workload.arguments(__doc__)
    engine = Modulm(str(args.model), args.options)
    engine.seconds(workload.prompts(1, 8, 0), 1)
    workload.emit_first_token()
    if FILL in args.figures:
        engine.seconds(workload.prompts(workload.BATCH, 384, 1), 128)
        workload.emit("torch_imported", int("torch" in sys.modules))
    workload.measure(engine, args.figures, args.repeats)
    if "context1024" in args.figures:
        ratios = context_ratios(engine, args.repeats)
        workload.emit("context1024", statistics.median(ratios), all=ratios)


if __name__ == "__main__":
    main()
