"""`modulm bench`: time this engine offline (latency, throughput), or any OpenAI server under load (serve)."""

import argparse

from modulm.cli.bench import offline, serve

HELP = "measure latency or throughput, offline or of a server"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the modes, each with its options."""
    modes = parser.add_subparsers(dest="mode", required=True, metavar="MODE")
    for name, module, text in (
        ("latency", offline, "one batch at a time in this process"),
        ("throughput", offline, "many prompts at once in this process"),
        ("serve", serve, "an OpenAI server, as many clients see it"),
    ):
        module.add_arguments(modes.add_parser(name, help=text, description=module.__doc__))


def run(args: argparse.Namespace) -> int:
    """Run the mode that was chosen."""
    return serve.run(args) if args.mode == "serve" else offline.run(args)
