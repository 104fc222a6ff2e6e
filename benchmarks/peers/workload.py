"""What every engine is asked to do, and the lines a child prints. Imported by each engine's own Python: no libraries.

A child prints one JSON object per figure on stdout; other lines are log. Rates are in tokens per second. Knows no
engine; `children.py` reads the lines.
"""

import argparse
import json
import random
import statistics
import string
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

RATES = ("decode1", "decode16", "prefill512", "prefill1024")
PROMPT_LEN = 128
OUTPUT_LEN = 128
BATCH = 16
KV_TOKENS = 16 * 512
"""Tokens that the KV cache holds, for every engine that lets one choose."""
MAX_MODEL_LEN = 2048
TOKEN_IDS = (1000, 40000)
"""Range of the random prompts: inside every vocabulary, outside of special tokens."""


class Engine(Protocol):
    """A loaded model."""

    def seconds(self, prompts: list[list[int]], num_tokens: int) -> float:
        """Time greedy generation of `num_tokens` for each of `prompts`, end-of-sequence ignored."""


def prompts(count: int, length: int, seed: int) -> list[list[int]]:
    """Return random token ids, `count` rows of `length`."""
    rng = random.Random(seed)
    return [[rng.randrange(*TOKEN_IDS) for _ in range(length)] for _ in range(count)]


def emit(figure: str, value: float, **more: Any) -> None:
    """Print one measurement."""
    print(json.dumps({"figure": figure, "value": value, **more}), flush=True)


def emit_first_token() -> None:
    """Print the time on the clock that the parent shares; the parent subtracts when it started this process."""
    emit("first_token", time.monotonic())


def decode_rate(engine: Engine, num_seqs: int, seed: int) -> float:
    """Return num_seqs x 127 / (time for 128 tokens - time for 1)."""
    batch = prompts(num_seqs, PROMPT_LEN, seed)
    first_s = engine.seconds(batch, 1)
    return num_seqs * (OUTPUT_LEN - 1) / (engine.seconds(batch, OUTPUT_LEN) - first_s)


def prefill_rate(engine: Engine, length: int, seed: int) -> float:
    """Return length / (time for 1 token)."""
    return length / engine.seconds(prompts(1, length, seed), 1)


def number_in(figure: str) -> int:
    """Return the number that a figure's name ends in: sequences of a decode, tokens of a prefill."""
    return int(figure.lstrip(string.ascii_lowercase))


def rate(engine: Engine, figure: str, seed: int) -> float:
    """Return one measurement of `figure`, one of RATES."""
    measured = decode_rate if figure.startswith("decode") else prefill_rate
    return measured(engine, number_in(figure), seed)


def measure(engine: Engine, figures: Iterable[str], repeats: int) -> None:
    """Measure those of RATES that are asked for: one repeat to warm up, then the median of `repeats`."""
    for figure in (name for name in figures if name in RATES):
        rate(engine, figure, 0)
        values = [rate(engine, figure, seed) for seed in range(1, repeats + 1)]
        emit(figure, statistics.median(values), all=values)


def arguments(description: str | None, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse what every child is given; `options` becomes a dict whose values are parsed as JSON where they can be."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--figures", type=lambda text: text.split(","), default=list(RATES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    args = parser.parse_args(argv)
    args.options = dict(parsed_option(text) for text in args.option)
    return args


def parsed_option(text: str) -> tuple[str, Any]:
    """Split NAME=VALUE; VALUE is JSON where it parses, else a string."""
    name, sign, value = text.partition("=")
    if not sign:
        raise SystemExit(f"Option {text!r} is refused: it must be NAME=VALUE.")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value
