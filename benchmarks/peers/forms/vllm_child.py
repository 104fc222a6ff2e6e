"""vLLM's CPU build through its offline `LLM`, compiled, with one backend."""

from typing import Any

from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams

from peers.forms import workload
from peers.workload import MAX_MODEL_LEN


class Vllm:
    """An `LLM` without prefix caching."""

    def __init__(self, model: str, backend: str, dtype: str) -> None:
        sizes = {"max_model_len": MAX_MODEL_LEN, "max_num_seqs": 32, "disable_log_stats": True}
        chosen = {"dtype": dtype, "enable_prefix_caching": False, "structured_outputs_config": {"backend": backend}}
        self.llm = LLM(model=model, **chosen, **sizes)

    def seconds(self, batch: list[list[int]], num_tokens: int, form: dict[str, Any] | None) -> float:
        """See `workload.Engine`."""
        asked = StructuredOutputsParams(**form) if form else None
        params = SamplingParams(
            temperature=0.8, seed=1, max_tokens=num_tokens, ignore_eos=True, structured_outputs=asked
        )
        outputs: list[Any] = []
        inputs = [{"prompt_token_ids": ids} for ids in batch]
        try:
            took = workload.timed(lambda: outputs.extend(self.llm.generate(inputs, params, use_tqdm=False)))
        except ValueError as error:
            raise workload.Refused(str(error)) from error
        assert all(len(output.outputs[0].token_ids) == num_tokens for output in outputs), "an output is too short"
        return took


if __name__ == "__main__":
    args = workload.arguments(__doc__)
    workload.measure(Vllm(args.model, args.backend, args.dtype), args.output_len, args.repeats)
