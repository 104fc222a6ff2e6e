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
WARM_UP_LEN = 8
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


def shape(figure: str) -> tuple[int, int]:
    """Return the sequences and the prompt length of one of RATES: the number in its name is one of the two."""
    number = int(figure.lstrip(string.ascii_lowercase))
    return (number, PROMPT_LEN) if figure.startswith("decode") else (1, number)


def rate(engine: Engine, figure: str, seed: int) -> float:
    """Return one measurement of one of RATES: of the prompt's tokens, or of those that come after the first."""
    num_seqs, length = shape(figure)
    batch = prompts(num_seqs, length, seed)
    first_s = engine.seconds(batch, 1)
    if figure.startswith("prefill"):
        return length / first_s
    return num_seqs * (OUTPUT_LEN - 1) / (engine.seconds(batch, OUTPUT_LEN) - first_s)


def measure(engine: Engine, figures: Iterable[str], repeats: int) -> None:
    """Measure those of RATES that are asked for: after a short run to warm up, the median of `repeats`."""
    for figure in (name for name in figures if name in RATES):
        engine.seconds(prompts(*shape(figure), 0), WARM_UP_LEN)
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
