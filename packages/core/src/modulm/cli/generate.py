"""`modulm generate`: stream completions of prompts to stdout, then one summary line to stderr."""

import argparse
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from modulm.cli.options import add_engine_options, add_sampling_options, checked_sampling_options, engine_config
from modulm.cli.streams import read_stdin, utf8
from modulm.cli.summary import load_llm, raise_if_failed, summary_line
from modulm.errors import ConfigError

if TYPE_CHECKING:
    from modulm.outputs import RequestOutput

HELP = "complete prompts, streaming to the terminal"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "--prompt", action="append", type=utf8, metavar="TEXT", help="may be repeated; default: standard input"
    )
    parser.add_argument("--chat", action="store_true", help="put each prompt into the model's chat template")
    parser.add_argument("--system", type=utf8, metavar="TEXT", help="system message, with --chat")
    parser.add_argument("--quiet", action="store_true", help="no summary line")
    add_engine_options(parser)
    add_sampling_options(parser)


def run(args: argparse.Namespace) -> int:
    """Load the model, stream each prompt's completions, report."""
    if args.system and not args.chat:
        raise ConfigError("--system is refused without --chat: only chat templates know a system message. Add --chat.")
    options = {"max_tokens": max(256, args.min_tokens or 0), **checked_sampling_options(args)}
    prompts = args.prompt or [read_stdin()]
    llm = load_llm(engine_config(args))
    params = llm.get_default_sampling_params().clone(**options)
    num_tokens, seconds = 0, 0.0
    for prompt in prompts:
        started = time.perf_counter()
        stream = llm.stream_chat(_messages(args, prompt), params) if args.chat else llm.stream(prompt, params)
        num_tokens += _write(stream, params.n)
        seconds += time.perf_counter() - started
    if not args.quiet:
        print(summary_line(llm, num_tokens, seconds), file=sys.stderr)
    llm.shutdown()
    return 0


def _write(stream: "Iterable[RequestOutput]", n: int) -> int:
    """Write one prompt's completions to stdout, a line each; return the number of tokens.

    A single one is written as it comes. Several come side by side: the first is streamed, the others follow it.
    """
    num_tokens = 0
    later = [""] * n
    for output in stream:
        raise_if_failed(output)
        for completion in output.outputs:
            num_tokens += len(completion.token_ids)
            if completion.index:
                later[completion.index] += completion.text
            else:
                sys.stdout.write(completion.text)
        sys.stdout.flush()
    sys.stdout.write("\n".join(later) + "\n")
    sys.stdout.flush()
    return num_tokens


def _messages(args: argparse.Namespace, prompt: str) -> list[dict[str, str]]:
    system = [{"role": "system", "content": args.system}] if args.system else []
    return [*system, {"role": "user", "content": prompt}]
