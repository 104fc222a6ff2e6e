"""What a form costs: throughput under forms beside the same requests without, and compile times, backend by backend.

    python benchmarks/structured_output.py [--rounds 3] [--backends A,B] [--vllm] [--write]

Every round starts a child for each backend: 16 sequences of 128 random tokens and 128 more, at temperature 0.8, without
a form and under each in turn. `--vllm` adds vLLM's CPU build with xgrammar, in the environment of `make bench-peers`
and on the same weights. `--write` puts the tables into benchmarks/README.md. The bar is 0.9 under JSON Schemas. Forms
and figures: `peers/forms/workload.py`.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from peers import children, machine, settings, table, weights
from peers.command import load_before, own_versions, words_of
from peers.environments import BUILD, PEERS, ROOT, Environment, InstallError, ensure
from peers.forms.workload import FORMS, PLAIN
from peers.machine import instruction_sets

README = ROOT / "benchmarks/README.md"
BACKENDS = ("guidance", "xgrammar", "outlines", "lm-format-enforcer")
VLLM = "vLLM, xgrammar"
BAR = 0.9


@dataclass
class Measured:
    """What was seen of one column; values round by round, by form."""

    ready: list[float] = field(default_factory=list)
    cold: dict[str, list[float]] = field(default_factory=dict)
    cached: dict[str, list[float]] = field(default_factory=dict)
    rates: dict[str, list[float]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    reason: str = ""

    def take(self, outcome: children.Outcome) -> None:
        """Keep a child's figures, or why it gave none."""
        self.reason = outcome.reason or ""
        for line in outcome.figures:
            if line["figure"] == "ready":
                self.ready.append(line["value"])
            elif line["figure"] == "refused":
                self.refused[line["form"]] = line["reason"]
            elif line["figure"] in ("cold", "cached"):
                getattr(self, line["figure"]).setdefault(line["form"], []).append(line["value"])
            elif line["figure"] == "rate":
                self.rates.setdefault(line["form"], []).extend(line["all"])

    def ratios(self, name: str) -> list[float]:
        """Return throughput under a form over that without, both of the same turn."""
        return [
            value / plain for value, plain in zip(self.rates.get(name, []), self.rates.get(PLAIN, []), strict=False)
        ]


def command(column: str, model: Path, env: Environment | None, args: argparse.Namespace) -> list[str]:
    """Return the command of a column's child."""
    parts = [f"--output-len={args.output_len}", f"--repeats={args.repeats}", f"--model={model}"]
    if env is None:
        return [sys.executable, "-m", "peers.forms.modulm_child", f"--backend={column}", *parts]
    dtype = "bfloat16" if any("bf16" in flag for flag in instruction_sets()) else "float32"
    return [str(env.python), "-m", "peers.forms.vllm_child", "--backend=xgrammar", f"--dtype={dtype}", *parts]


def run(args: argparse.Namespace) -> dict[str, Measured]:
    """Run all children and return what was measured."""
    measured = {name: Measured() for name in (*args.backends, *([VLLM] if args.vllm else []))}
    env, models = None, {name: weights.published() for name in args.backends}
    if args.vllm:
        try:
            env, models[VLLM] = ensure("vllm"), weights.prepare("bf16", None)
        except InstallError as error:
            measured[VLLM].reason = str(error)
    cores = settings.allowed_cores(args.threads)
    os.sched_setaffinity(0, cores)  # children inherit it
    for number in range(1, args.rounds + 1):
        for name, model in models.items():
            theirs = env if name == VLLM else None
            variables = settings.variables("vllm" if theirs else "modulm", theirs, cores)
            variables |= {"PYTHONPATH": str(ROOT / "benchmarks")}
            log = BUILD / f"logs/forms-{name.replace(', ', '-')}.log"
            measured[name].take(children.run(command(name, model, theirs, args), variables, log, args.timeout))
            print(f"round {number} {name}: {measured[name].reason or 'done'}", flush=True)
    return measured


def throughput(measured: dict[str, Measured]) -> str:
    """Return the table of ratios, with the spread of each."""
    lines = [["tok/s to those without a form", *measured]]
    for name in FORMS:
        cells = []
        for column in measured.values():
            values = column.ratios(name)
            spread = f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})" if values else ""
            cells.append(spread or ("refused" if name in column.refused else ""))
        lines.append([name, *cells])
    plain = [column.rates.get(PLAIN) for column in measured.values()]
    lines.append(["without a form, tok/s", *(table.number(statistics.median(each)) if each else "" for each in plain)])
    return table.grid(lines, left=(0,))


def compiling(measured: dict[str, Measured]) -> str:
    """Return the table of what a form's first request waits for, and later ones."""
    lines = [["a request waits, ms: first / later", *measured]]
    for name in FORMS:
        lines.append([name, *(_both(column.cold.get(name), column.cached.get(name)) for column in measured.values())])
    lines.append(["the first form of all", *(_milliseconds(column.ready) for column in measured.values())])
    return table.grid(lines, left=(0,))


def _both(cold: list[float] | None, cached: list[float] | None) -> str:
    return f"{_milliseconds(cold)} / {_milliseconds(cached)}" if cold and cached else ""


def _milliseconds(values: Iterable[float] | None) -> str:
    values = list(values or ())
    return table.number(max(1000 * statistics.median(values), 0.0), 1) if values else ""


def verdict(measured: dict[str, Measured]) -> str:
    """Return a line for each column that has figures: the worst of the JSON Schemas beside the bar."""
    lines = []
    for name, column in measured.items():
        ratios = [
            statistics.median(found) for form in FORMS if "json" in FORMS[form] and (found := column.ratios(form))
        ]
        if column.reason:
            lines.append(f"{name}: not measured, {column.reason}")
        elif ratios:
            word = "reached" if min(ratios) >= BAR else "missed"
            lines.append(f"{name}: {min(ratios):.2f} in the worst of the JSON Schemas, the bar is {BAR}: {word}")
    return "\n".join(f"- {line}" for line in lines)


def main() -> None:
    """Run the tool; see `--help`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3, help="measurements of a form in one child")
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=1800, metavar="S", help="of one child")
    parser.add_argument("--backends", type=words_of, default=list(BACKENDS), metavar="A,B")
    parser.add_argument("--vllm", action="store_true", help="measure vLLM's CPU build too")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {README.relative_to(ROOT)}")
    args = parser.parse_args()
    load = load_before()
    measured = run(args)
    versions = own_versions()
    how = f"--rounds {args.rounds} --repeats {args.repeats} --output-len {args.output_len}"
    how += f" --backends {','.join(args.backends)}{' --vllm' if args.vllm else ''}"
    heads = f"Machine: {machine.words(machine.describe())}. {args.threads} threads. Load before: {load}."
    told = ", ".join(f"{name} {number}" for name, number in versions.items())
    told += f", {PEERS['vllm'].requirement.replace('==', ' ')}" if args.vllm else ""
    heads += f"\n\nVersions: {told}. Command: `python benchmarks/structured_output.py {how}`."
    text = machine.without_paths("\n\n".join([heads, throughput(measured), compiling(measured), verdict(measured)]))
    print(f"\n{text}")
    if args.write:
        table.write_between(README, text, "bench-structured")


if __name__ == "__main__":
    main()
