"""`modulm chat`: a conversation on the terminal.

/reset forgets it, /exit or the end of input leaves, Ctrl-C stops an answer.
"""

import argparse
import sys
from typing import TYPE_CHECKING

from modulm.cli.options import add_engine_options, add_sampling_options, checked_sampling_options, engine_config
from modulm.cli.streams import not_utf8, utf8
from modulm.cli.summary import load_llm, raise_if_failed
from modulm.errors import ConfigError, EngineError, RequestError

if TYPE_CHECKING:
    from modulm.llm import LLM
    from modulm.sampling_params import SamplingParams

HELP = "talk with a model on the terminal"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--system", type=utf8, metavar="TEXT", help="system message")
    add_engine_options(parser)
    add_sampling_options(parser)


def run(args: argparse.Namespace) -> int:
    """Read turns from stdin until its end."""
    options = checked_sampling_options(args)
    if options.get("n", 1) > 1:
        raise ConfigError(f"--n {options['n']} is refused: a conversation goes on from one answer. Leave --n out.")
    llm = load_llm(engine_config(args))
    params = llm.get_default_sampling_params().clone(**{"max_tokens": None, **options})
    opening = [{"role": "system", "content": args.system}] if args.system else []
    history = list(opening)
    while (line := _read_turn()) not in (None, "/exit"):
        if line == "/reset":
            history = list(opening)
        elif line:
            history = _turn(llm, history, line, params)
    llm.shutdown()
    return 0


def _read_turn() -> str | None:
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except (EOFError, KeyboardInterrupt):
        return None
    except UnicodeDecodeError as error:
        raise not_utf8(error) from error


def _turn(llm: "LLM", history: list[dict[str, str]], line: str, params: "SamplingParams") -> list[dict[str, str]]:
    """Stream one answer; return the conversation with it, or unchanged when the turn was refused."""
    messages = [*history, {"role": "user", "content": line}]
    answer = ""
    try:
        for output in llm.stream_chat(messages, params):
            raise_if_failed(output)
            answer += output.outputs[0].text
            sys.stdout.write(output.outputs[0].text)
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stdout.write(" [stopped]")
    except (RequestError, EngineError) as error:
        print(f"modulm: {error}", file=sys.stderr)
        return history
    sys.stdout.write("\n")
    return [*messages, {"role": "assistant", "content": answer}]
