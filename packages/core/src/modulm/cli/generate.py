"""`modulm generate`: stream completions of prompts to stdout, then one summary line to stderr."""

import argparse
import sys
import time

from modulm.cli.options import add_engine_options, add_sampling_options, engine_config, sampling_options
from modulm.cli.summary import LoadProgress, summary_line
from modulm.errors import ConfigError

HELP = "complete prompts, streaming to the terminal"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--prompt", action="append", metavar="TEXT", help="may be repeated; default: standard input")
    parser.add_argument("--chat", action="store_true", help="put each prompt into the model's chat template")
    parser.add_argument("--system", metavar="TEXT", help="system message, with --chat")
    parser.add_argument("--quiet", action="store_true", help="no summary line")
    add_engine_options(parser)
    add_sampling_options(parser)


def run(args: argparse.Namespace) -> int:
    """Load the model, stream each prompt's completion, report."""
    from modulm.llm import LLM

    if args.system and not args.chat:
        raise ConfigError("--system is refused without --chat: only chat templates know a system message. Add --chat.")
    config = engine_config(args)
    with LoadProgress() as progress:
        llm = LLM.from_config(config, progress=progress.update)
    params = llm.get_default_sampling_params().clone(**{"max_tokens": 256, **sampling_options(args)})
    num_tokens, seconds = 0, 0.0
    for prompt in args.prompt or [sys.stdin.read()]:
        started = time.perf_counter()
        stream = llm.stream_chat(_messages(args, prompt), params) if args.chat else llm.stream(prompt, params)
        for output in stream:
            for completion in output.outputs:
                num_tokens += len(completion.token_ids)
                sys.stdout.write(completion.text)
            sys.stdout.flush()
        seconds += time.perf_counter() - started
        sys.stdout.write("\n")
    if not args.quiet:
        print(summary_line(llm, num_tokens, seconds), file=sys.stderr)
    llm.shutdown()
    return 0


def _messages(args: argparse.Namespace, prompt: str) -> list[dict[str, str]]:
    system = [{"role": "system", "content": args.system}] if args.system else []
    return [*system, {"role": "user", "content": prompt}]
