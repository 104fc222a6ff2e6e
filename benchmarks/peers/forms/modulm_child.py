"""modulm through its public `LLM`, with one backend."""

from typing import Any

from modulm import LLM, SamplingParams, StructuredOutputsParams
from peers.forms import workload
from peers.workload import KV_TOKENS, MAX_MODEL_LEN


class Modulm:
    """An `LLM` without prefix caching."""

    def __init__(self, model: str, backend: str) -> None:
        sizes: dict[str, Any] = {"max_model_len": MAX_MODEL_LEN, "block_size": 16, "num_kv_blocks": KV_TOKENS // 16}
        self.llm = LLM(model, enable_prefix_caching=False, structured_output_backend=backend, **sizes)

    def seconds(self, batch: list[list[int]], num_tokens: int, form: dict[str, Any] | None) -> float:
        """See `workload.Engine`."""
        asked = StructuredOutputsParams(**form) if form else None
        params = SamplingParams(
            temperature=0.8, seed=1, max_tokens=num_tokens, ignore_eos=True, structured_outputs=asked
        )
        outputs: list[Any] = []
        took = workload.timed(lambda: outputs.extend(self.llm.generate(batch, params)))
        if reason := next((output.error for output in outputs if output.error), None):
            raise workload.Refused(reason)
        assert all(len(output.outputs[0].token_ids) == num_tokens for output in outputs), "an output is too short"
        return took


if __name__ == "__main__":
    args = workload.arguments(__doc__)
    workload.measure(Modulm(args.model, args.backend), args.output_len, args.repeats)
