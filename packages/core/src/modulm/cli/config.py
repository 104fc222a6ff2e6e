"""`modulm config`: what an engine with these options would be made of; `--explain` adds the reasons."""

import argparse
import dataclasses
import json
from typing import Any

from modulm.cli.options import add_engine_options, engine_config
from modulm.cli.summary import load_llm

HELP = "show the resolved configuration; --explain says why each part was chosen"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--explain", action="store_true", help="load the model and show every candidate's answer")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    """Print the configuration, and with --explain the choices made while really loading the model."""
    config = engine_config(args)
    report: dict[str, Any] = {"config": dataclasses.asdict(config)}
    if args.explain:
        llm = load_llm(config)
        report |= llm.explain()
        llm.shutdown()
    if args.json:
        print(json.dumps(report, indent=2, default=str))
    else:
        _print(report)
    return 0


def _print(report: dict[str, Any]) -> None:
    for name, value in report["config"].items():
        print(f"{name:<24} {value}")
    for choice in report.get("choices", []):
        print(f"\n{choice['family']}: {choice['chosen']}")
        for candidate in choice["candidates"]:
            answer = "accepted" if candidate["accepted"] else "rejected"
            print(f"  {candidate['name']}: {answer}{': ' if candidate['reason'] else ''}{candidate['reason']}")
    if "worker" in report:
        print("\nworker")
        for name, value in report["worker"].items():
            print(f"  {name}: {'' if isinstance(value, dict) else value}")
            for key, count in value.items() if isinstance(value, dict) else ():
                print(f"    {key}: {count}")
