"""OpenVINO GenAI, which reads GGUF itself, with continuous batching and paged attention."""

import time
from typing import Any

import numpy as np
import openvino
import openvino_genai

from peers import workload


class OpenVino:
    """An `LLMPipeline` on the CPU."""

    def __init__(self, model: str, threads: int, options: dict[str, Any]) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 1  # GB, the smallest; it holds more than the workload's KV_TOKENS
        scheduler.max_num_seqs = 32
        scheduler.max_num_batched_tokens = 4096
        scheduler.enable_prefix_caching = False
        properties = {"INFERENCE_NUM_THREADS": threads, "scheduler_config": scheduler, **options}
        self.pipeline = openvino_genai.LLMPipeline(model, "CPU", **properties)

    def seconds(self, prompts: list[list[int]], num_tokens: int) -> float:
        """Time one batch."""
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = num_tokens
        config.ignore_eos, config.do_sample, config.apply_chat_template = True, False, False
        ids = np.array(prompts, dtype=np.int64)
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        started = time.perf_counter()
        result = self.pipeline.generate(inputs, config)
        seconds = time.perf_counter() - started
        assert all(len(tokens) == num_tokens for tokens in result.tokens), "an output is too short"
        return seconds


def main() -> None:
    """Load, tell when the first token came, measure what is asked for."""
    args = workload.arguments(__doc__)
    engine = OpenVino(str(args.model), args.threads, args.options)
    engine.seconds(workload.prompts(1, 8, 0), 1)
    workload.emit_first_token()
    workload.measure(engine, args.figures, args.repeats)


if __name__ == "__main__":
    main()
