"""`modulm bench latency|throughput`: time this engine offline on random prompts. Peers: see `benchmarks/`."""

import argparse
import json
import random
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

from modulm.cli.bench.numbers import count
from modulm.cli.options import add_engine_options, engine_config
from modulm.cli.summary import load_llm, peak_memory_bytes, raise_if_failed
from modulm.errors import ConfigError

if TYPE_CHECKING:
    from modulm.llm import LLM

_COUNTS = (
    ("--input-len", 128, "prompt tokens"),
    ("--output-len", 128, "tokens to generate"),
    ("--batch-size", 1, "latency: sequences at once"),
    ("--num-prompts", 32, "throughput: prompts"),
    ("--num-iters", 5, "counted runs"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of both."""
    for option, default, text in _COUNTS:
        parser.add_argument(option, type=count, default=default, metavar="N", help=f"{text}; default: {default}")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    """Load once, warm up once, time `--num-iters` runs, print medians."""
    llm = load_llm(engine_config(args))
    _check_lengths(llm, args)
    num_seqs = args.batch_size if args.mode == "latency" else args.num_prompts
    _time(llm, num_seqs, args.input_len, 2)
    runs = [_measure(llm, num_seqs, args) for _ in range(args.num_iters)]
    result = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    result |= {"mode": args.mode, "model": args.model, "num_seqs": num_seqs, "input_len": args.input_len}
    result |= {"output_len": args.output_len, "runs": len(runs), "peak_memory_mb": round(peak_memory_bytes() / 1e6)}
    _print(result, as_json=args.json)
    llm.shutdown()
    return 0


def _check_lengths(llm: "LLM", args: argparse.Namespace) -> None:
    """Outputs that end early would be counted as if they were whole."""
    longest = llm.model_config.max_model_len
    if args.input_len + args.output_len > longest:
        raise ConfigError(
            f"--input-len {args.input_len} and --output-len {args.output_len} are refused: together they are more than "
            f"the model's limit of {longest:,} tokens. Lower one of them."
        )


def _measure(llm: "LLM", num_seqs: int, args: argparse.Namespace) -> dict[str, float]:
    """Decode rate excludes the prefill: tokens after the first over the time after the first."""
    prefill_s = _time(llm, num_seqs, args.input_len, 1)
    total_s = _time(llm, num_seqs, args.input_len, args.output_len)
    decoded = num_seqs * (args.output_len - 1)
    return {
        "total_s": total_s,
        "output_tok_s": num_seqs * args.output_len / total_s,
        "prefill_tok_s": num_seqs * args.input_len / prefill_s,
        "decode_tok_s": decoded / (total_s - prefill_s) if total_s > prefill_s else 0.0,
    }


def _time(llm: "LLM", num_seqs: int, input_len: int, output_len: int) -> float:
    from modulm.sampling_params import SamplingParams

    vocab_size = llm.model_config.vocab_size
    prompts = [{"prompt_token_ids": [random.randrange(vocab_size) for _ in range(input_len)]} for _ in range(num_seqs)]
    params = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True, detokenize=False)
    started = time.perf_counter()
    outputs = llm.generate(prompts, params)
    seconds = time.perf_counter() - started
    for output in outputs:
        raise_if_failed(output)
    return seconds


def _print(result: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        sys.stdout.write(f"{name:>16}  {value:.3f}\n" if isinstance(value, float) else f"{name:>16}  {value}\n")
