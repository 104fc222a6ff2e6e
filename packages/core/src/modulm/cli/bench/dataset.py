"""What `modulm bench serve` asks of a server: random prompts, or those of a file. Knows no HTTP.

Random prompts are token ids, so that they are as long as asked for in every model; a chat has words instead, about a
token each. How long prompts really were, servers say in `usage`.
"""

import argparse
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modulm.errors import ConfigError

NAMES = ("random", "custom", "sharegpt")
_WORDS = ("time", "year", "people", "way", "day", "man", "thing", "life", "child", "world")
_CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One request: a prompt (text, or token ids), and how many tokens to ask for."""

    prompt: str | list[int]
    max_tokens: int


def samples(args: argparse.Namespace, number: int, *, as_text: bool) -> list[Sample]:
    """Return so many requests, the same for the same `--seed`. Raises `ConfigError` for a bad file."""
    chance = random.Random(args.seed)
    if args.dataset_name == "random":
        return _random(args, number, chance, as_text=as_text)
    if args.dataset_path is None:
        raise ConfigError(f"--dataset-name {args.dataset_name} is refused: it needs a file. Add --dataset-path FILE.")
    read = _custom if args.dataset_name == "custom" else _sharegpt
    try:
        found = read(Path(args.dataset_path).read_text(encoding="utf-8"), args.output_len)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"--dataset-path {args.dataset_path!r} cannot be read as {args.dataset_name}: {error!r}. See --help."
        ) from error
    if not found:
        raise ConfigError(f"--dataset-path {args.dataset_path!r} is refused: there is no prompt in it.")
    chance.shuffle(found)
    return [found[index % len(found)] for index in range(number)]


def _random(args: argparse.Namespace, number: int, chance: random.Random, *, as_text: bool) -> list[Sample]:
    def some(length: int) -> list[Any]:
        if as_text:
            return chance.choices(_WORDS, k=length)
        return [chance.randrange(args.random_vocab_size) for _ in range(length)]

    def varied(length: int) -> int:
        least, most = (round(length * (1 + sign * args.random_range_ratio)) for sign in (-1, 1))
        return max(1, chance.randint(least, most))

    found, prefix = [], some(args.random_prefix_len)
    for _ in range(number):
        prompt = prefix + some(varied(args.random_input_len))
        max_tokens = varied(args.output_len or args.random_output_len)
        found.append(Sample(prompt=" ".join(prompt) if as_text else prompt, max_tokens=max_tokens))
    return found


def _custom(text: str, output_len: int | None) -> list[Sample]:
    """One JSON object per line: `prompt`, and `output_tokens` unless --output-len is given."""
    rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    return [Sample(prompt=row["prompt"], max_tokens=output_len or int(row.get("output_tokens", 256))) for row in rows]


def _sharegpt(text: str, output_len: int | None) -> list[Sample]:
    """A JSON list of `conversations`: the first turn is the prompt, the second one's length that of the answer."""
    found = []
    for row in json.loads(text):
        turns = [turn["value"] for turn in row["conversations"][:2]]
        if len(turns) == 2 and all(turns):
            answer = max(1, len(turns[1]) // _CHARACTERS_PER_TOKEN)
            found.append(Sample(prompt=turns[0], max_tokens=output_len or answer))
    return found
