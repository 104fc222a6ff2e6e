"""Run the tests: one pytest process per package and tier, so that no suite passes thanks to a neighbour's import.

Tiers by need, run in this order: `null` imports no torch and takes seconds; `tools` tests what lies beside this file;
`cpu` builds small models; `integration` starts processes; `gpu` says that it was not run where there is no GPU. Knows
nothing of what is tested.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from workspace import ROOT, packages

TIERS = ("null", "tools", "cpu", "integration", "gpu")
NO_TESTS = 5
"""pytest's exit status when it found nothing to run."""
MANY_FILES = 16
"""From so many files on a suite's files are shared out among several processes."""


@dataclass(kw_only=True)
class Suite:
    """One pytest process: what it ran on and how it ended."""

    tier: str
    path: Path
    seconds: float = 0.0
    status: int = 0
    closing: str = "not run"
    counts: dict[str, int] = field(default_factory=dict)
    cuts: int = 0
    """Ways of cutting texts that were tried on parsers, as the testkit's plugin says."""


def suites(root: Path, tiers: list[str], only: list[str]) -> list[Suite]:
    """Return the suites of `tiers` that exist, in order; `only` keeps those whose path names one of its words."""
    places = {
        "tools": [root / "tools/tests"],
        "integration": [root / "integration_tests"],
    }
    found = []
    for tier in tiers:
        for path in places.get(tier, [p.path / "tests" / tier for p in packages(root)]):
            words = path.relative_to(root).parts
            if any(path.rglob("test_*.py")) and (not only or any(word in words for word in only)):
                found.append(Suite(tier=tier, path=path))
    return found


def has_gpu() -> bool:
    """Whether this machine shows an NVIDIA or AMD GPU to processes."""
    return Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists()


def closing_counts(output: str) -> tuple[str, dict[str, int]]:
    """Return pytest's closing line and its counts by word (passed, failed, skipped, error ...)."""
    pattern = re.compile(
        r"^.*\b\d+ (?:passed|failed|skipped|errors?|xfailed|xpassed|deselected)\b.* in [\d.]+s.*$", re.M
    )
    lines = pattern.findall(re.sub(r"\x1b\[[\d;]*m", "", output))
    closing = lines[-1].strip("= ") if lines else "no closing line"
    return closing, {word.removesuffix("s"): int(n) for n, word in re.findall(r"(\d+) ([a-z]+)", closing)}


def sharing(suite: Suite, jobs: int) -> list[str]:
    """Return the arguments that have `jobs` processes run a large suite, each file in one of them."""
    num_files = sum(1 for _ in suite.path.rglob("test_*.py"))
    return ["-n", str(jobs), "--dist", "loadfile"] if jobs > 1 and num_files >= MANY_FILES else []


def cuts(output: str) -> int:
    """Return how many ways of cutting texts were tried on parsers."""
    return sum(int(n.replace(",", "")) for n in re.findall(r"^parser invariants: ([\d,]+) cuts", output, re.M))


def run(suite: Suite, pytest_arguments: list[str]) -> None:
    """Run one suite, showing its output as it comes, and note how it ended."""
    command = [sys.executable, "-m", "pytest", str(suite.path.relative_to(ROOT)), *pytest_arguments]
    print(f"\n$ {' '.join(command[1:])}", flush=True)
    started = time.monotonic()
    # Threads that spin while they wait make torch crawl beside another busy process.
    defaults = {"MODULM_STRICT_PLUGINS": "1", "OMP_WAIT_POLICY": "passive"}
    environment = {**defaults, **os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        output = []
        for line in process.stdout:
            output.append(line)
            print(line, end="", flush=True)
    suite.seconds = time.monotonic() - started
    suite.status = 0 if process.returncode == NO_TESTS else process.returncode
    suite.closing, suite.counts = closing_counts("".join(output))
    suite.cuts = cuts("".join(output))
    if suite.status and not {"failed", "error"} & set(suite.counts):
        suite.counts["failed"] = 1
        suite.closing += f" (exit status {suite.status})"


def summary(done: list[Suite]) -> str:
    """Return the table of suites and, last, the totals in the form that CI reads."""
    rows = [f"{s.tier:<12}{s.seconds:7.1f} s  {s.path.relative_to(ROOT)}: {s.closing}" for s in done]
    total = {word: sum(s.counts.get(word, 0) for s in done) for word in ("passed", "failed", "error", "skipped")}
    failed = total["failed"] + total["error"]
    null = sum(s.seconds for s in done if s.tier == "null")
    rows.append(f"{'null tier':<12}{null:7.1f} s  (aim: under 15 s)")
    rows.append(f"{'all':<12}{sum(s.seconds for s in done):7.1f} s")
    if tried := sum(s.cuts for s in done):
        rows.append(f"parser invariants: {tried:,} cuts")
    return "\n".join([*rows, "", f"{total['passed']} passed, {failed} failed, {total['skipped']} skipped"])


def main() -> int:
    """Run the tool; see `--help`."""
    parser = argparse.ArgumentParser(description="Run every suite, or those of some tiers or packages.")
    parser.add_argument("only", nargs="*", metavar="PACKAGE", help="folder names: core, quant-gguf, tools ...")
    parser.add_argument("--tier", action="append", choices=TIERS, help="only this tier; may be given again")
    parser.add_argument("-x", action="store_true", dest="stop", help="stop at the first suite that fails")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 4), help="processes for a large suite")
    arguments, pytest_arguments = parser.parse_known_args()
    # A shell without job control starts background jobs with Ctrl-C ignored, and the tests would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    done = suites(ROOT, [tier for tier in TIERS if tier in (arguments.tier or TIERS)], arguments.only)
    for suite in done:
        if suite.tier == "gpu" and not has_gpu():
            suite.closing = "not run: this machine has no GPU"
            continue
        run(suite, [*sharing(suite, arguments.jobs), *pytest_arguments])
        if suite.status and arguments.stop:
            break
    print(f"\n{summary(done)}")
    return 1 if any(suite.status for suite in done) or not done else 0


if __name__ == "__main__":
    sys.exit(main())
