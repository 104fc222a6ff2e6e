"""The same requests through modulm's offline door: the engine with neither HTTP nor a second process.

A child process. Prompts are random ids of the load's lengths, text is made of the outputs as a server does.
"""

import time

from modulm import LLM, SamplingParams
from peers import workload
from peers.servers.commands import MAX_MODEL_LEN, TOKENS_PER_STEP
from peers.servers.lines import NUM_CLIENTS, OUTPUT_LEN, PROMPT_LEN, THROUGHPUT


def main() -> None:
    """Load, warm up, time `--option requests=N` at once, of which 16 run."""
    args = workload.arguments(__doc__)
    num_requests = args.options.pop("requests")
    llm = LLM(
        model=str(args.model),
        max_num_seqs=NUM_CLIENTS,
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=TOKENS_PER_STEP,
        enable_prefix_caching=False,
        **args.options,
    )
    params = SamplingParams(temperature=0, max_tokens=OUTPUT_LEN, ignore_eos=True)

    def generate(count: int, seed: int) -> float:
        prompts = [{"prompt_token_ids": ids} for ids in workload.prompts(count, PROMPT_LEN, seed)]
        started = time.perf_counter()
        outputs = llm.generate(prompts, params)
        seconds = time.perf_counter() - started
        return sum(len(each.outputs[0].token_ids) for each in outputs) / seconds

    generate(NUM_CLIENTS, 0)
    workload.emit(THROUGHPUT, generate(num_requests, 1))


if __name__ == "__main__":
    main()
