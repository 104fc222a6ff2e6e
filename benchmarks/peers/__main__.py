"""Measure modulm and its peers in turn on this machine, print what must be reached, write `build/peers/results.json`.

A part in minutes: `--only decode1,prefill512 --peers llama --weights q4_1 --quick`.
"""

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from peers import jobs, machine, score, settings, table
from peers.command import load_before, own_versions, publish, report, words_of
from peers.environments import BUILD, PEERS, ROOT
from peers.session import Session
from peers.workload import RATES, parsed_option

RESULTS = BUILD / "results.json"


def parse() -> argparse.Namespace:
    """Return the options, checked."""
    parser = argparse.ArgumentParser(prog="make bench-peers", description=__doc__)
    known = {"only": jobs.FIGURES, "peers": tuple(PEERS), "weights": ("q4_1", "q4_0", "q8_0", "f16", "bf16", "gemma")}
    for name, allowed in known.items():
        parser.add_argument(f"--{name}", type=words_of, default=[], metavar="A,B", help=f"of: {', '.join(allowed)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3, help="measurements of a figure in one child")
    parser.add_argument("--quick", action="store_true", help="one round, one measurement; to see that it works")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=1800, metavar="S", help="of one child")
    parser.add_argument("--modulm-args", type=words_of, default=[], metavar="NAME=VALUE,...", help="engine options")
    parser.add_argument("--write", action="store_true", help="put the tables into README.md and benchmarks/README.md")
    args = parser.parse_args()
    for name, allowed in known.items():
        for word in set(getattr(args, name)) - set(allowed):
            parser.error(f"--{name} {word} is unknown. There are: {', '.join(allowed)}.")
    for text in args.modulm_args:
        parsed_option(text)
    if args.quick:
        args.rounds = args.repeats = 1
    return args


def versions(session: Session) -> dict[str, str]:
    """Return the versions of modulm's packages and of every peer that was installed."""
    found = own_versions()
    for name, env in session.environments.items():
        requirement = PEERS[name].requirement
        found[requirement.partition("==")[0]] = env.version(requirement)
    return found


def command_line(args: argparse.Namespace) -> str:
    """Return the command that repeats this run."""
    parts = [] if args.quick else [f"--rounds {args.rounds}", f"--repeats {args.repeats}"]
    parts += ["--quick"] if args.quick else []
    parts += [
        f"--{name} {','.join(getattr(args, name))}" for name in ("only", "peers", "weights") if getattr(args, name)
    ]
    parts += [f"--threads {args.threads}"]
    parts += [f"--modulm-args {','.join(args.modulm_args)}"] if args.modulm_args else []
    return f'make bench-peers ARGS="{" ".join(parts)}"'


def results(args: argparse.Namespace, session: Session, commands: list[str], rows: list[score.Row]) -> dict[str, Any]:
    """Return all that goes into the JSON file."""
    return {
        "machine": machine.describe(),
        "threads": args.threads,
        "versions": versions(session),
        "command": command_line(args),
        "children": [session.public(command) for command in commands],
        "variables": session.variables(),
        "probes": session.probes,
        "reasons": {str(source): session.public(reason) for source, reason in session.reasons.items()},
        "lines": [_line(row, session) for row in rows],
        "figures": session.raw,
    }


def _line(row: score.Row, session: Session) -> dict[str, Any]:
    line = {"label": row.line.label, "figure": row.line.figure, "bar": row.line.bar, "at_most": row.line.at_most}
    line |= {"best_peer": str(row.best) if row.best else None, "ours": row.ours, "theirs": row.theirs}
    return line | {"score": row.score, "low": row.low, "high": row.high, "verdict": session.public(row.verdict)}


def asked_figures(only: list[str]) -> set[str] | None:
    """Return the figures whose lines are shown; None for all."""
    starts = {f"{name}_{state}" for name in ("first_token", "memory") for state in jobs.STATES}
    return {*only, *(starts if jobs.START in only else ())} or None


def main() -> int:
    """Run the tool; 0 when it ran, whatever was reached."""
    args = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # so that children end as well
    load = load_before()
    session = Session(settings.allowed_cores(args.threads), args.repeats, args.timeout, engine_options=args.modulm_args)
    session.python = Path(os.environ.get("MODULM_PYTHON", session.python))
    chosen = jobs.chosen(args.only, args.peers, args.weights)
    runnable = session.prepare(chosen)
    os.sched_setaffinity(0, session.cores)  # children inherit it
    session.probe(runnable)
    for number in range(1, args.rounds + 1):
        session.round(number, runnable)
    records = session.records()
    rows = score.rows(records, session.reasons, asked_figures(args.only), {job.source for job in chosen})
    commands = [" ".join(session.command(job, args.repeats)) for job in runnable]
    done = {**results(args, session, commands, rows), "load_before": load}
    BUILD.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(done, indent=1) + "\n")
    text = session.public(report(done, f"Command: `{done['command']}`", rows, table.figures(records, RATES)))
    print(f"\n{text}\n\nall figures: {RESULTS.relative_to(ROOT)}")
    if args.write:
        publish(text, session.public(table.bars(rows)), "bench-peers")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
