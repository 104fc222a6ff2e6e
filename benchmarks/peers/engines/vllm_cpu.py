"""vLLM's CPU build through its offline `LLM`, compiled; its environment variables come from `environments.py`."""

import time
from typing import Any

from vllm import LLM, SamplingParams

from peers import workload


class Vllm:
    """An `LLM` without prefix caching."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        defaults = {"dtype": "float32", "enforce_eager": False, "enable_prefix_caching": False}
        defaults |= {"max_model_len": workload.MAX_MODEL_LEN, "max_num_seqs": 32, "disable_log_stats": True}
        self.llm = LLM(model=model, **{**defaults, **options})

    def seconds(self, prompts: list[list[int]], num_tokens: int) -> float:
        """Time one batch."""
        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        started = time.perf_counter()
        outputs = self.llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        seconds = time.perf_counter() - started
        assert all(len(each.outputs[0].token_ids) == num_tokens for each in outputs), "an output is too short"
        return seconds


def main() -> None:
    """Load, tell when the first token came, measure what is asked for."""
    args = workload.arguments(__doc__)
    engine = Vllm(str(args.model), args.options)
    engine.seconds(workload.prompts(1, 8, 0), 1)
    workload.emit_first_token()
    workload.measure(engine, args.figures, args.repeats)


if __name__ == "__main__":
    main()
