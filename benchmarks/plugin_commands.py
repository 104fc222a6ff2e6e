"""Time `modulm plugins list`, `doctor`, `verify` with 200 plugin distributions, beside a bare importlib.metadata scan.

The distributions are synthetic: a `dist-info` folder (METADATA with a long description, entry points of one hook and
one family, RECORD) and a package of three files each, in a folder that is put on PYTHONPATH. Every command is a whole
process, from its start to its end; the bare scan is one that does nothing but `importlib.metadata.entry_points()`.
Commands take turns; medians over rounds, and the ratio to the scan of the same round.

    python benchmarks/plugin_commands.py [--distributions 200] [--rounds 9]
"""

import argparse
import base64
import hashlib
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GROUPS = ("modulm.kernels", "modulm.tool_parsers", "modulm.lora_resolvers", "modulm.models", "modulm.structured_output")
BACKEND = """
from modulm.interfaces.structured import StructuredOutputBackend


class Thing(StructuredOutputBackend):
    name = "thing"

    @classmethod
    def supports(cls, params): ...
    def __init__(self, vocabulary): ...
    def compile(self, params): ...
"""
FILES = {
    "__init__.py": '"""A plugin that is well."""\n',
    "general.py": "def register():\n    pass\n",
    "thing.py": BACKEND,
}
BAR_S = 0.4
SCAN = "from importlib.metadata import entry_points; entry_points()"


def generate(folder: Path, count: int) -> None:
    """Install `count` synthetic distributions into a folder."""
    for number in range(count):
        name = f"synthetic-{number:03}"
        module = name.replace("-", "_")
        info = f"{module}-1.0.dist-info"
        files = {
            **{f"{module}/{file}": text for file, text in FILES.items()},
            f"{info}/METADATA": _metadata(name),
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: benchmark\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/entry_points.txt": (
                f"[vllm.general_plugins]\n{module} = {module}.general:register\n\n"
                f"[modulm.structured_output]\n{module}_thing = {module}.thing:Thing\n"
            ),
        }
        record = [f"{path},sha256={_digest(text)},{len(text)}" for path, text in files.items()]
        files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""])
        for path, text in files.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)


def _metadata(name: str) -> str:
    head = f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\nSummary: Nothing.\nRequires-Dist: modulm-core>=0.1\n"
    return head + "Requires-Dist: numpy>=1.26\n\n" + "A long description, as READMEs are.\n" * 120


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def _seconds(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Return how long a process and its children take, and how much processor time."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    taken, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return taken, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print a line for each command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--distributions", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base, "site")
        folder.mkdir()
        generate(folder, options.distributions)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "MODULM_"))}
        environment |= {"PYTHONPATH": str(folder), "MODULM_CACHE_DIR": f"{base}/cache"}
        environment |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": f"{base}/bytecode"}  # as pip leaves it
        program = [sys.executable, "-m", "modulm.cli", "plugins"]
        lock = f"{base}/modulm-plugins.lock"
        print(f"{options.distributions} synthetic distributions; {os.cpu_count()} cores; load {os.getloadavg()[0]:.2f}")
        first, first_cpu = _seconds([*program, "doctor"], environment)
        _seconds([*program, "lock", lock], environment)
        commands = {
            "bare scan": [sys.executable, "-c", SCAN],
            "plugins list": [*program, "list"],
            "plugins doctor": [*program, "doctor"],
            "plugins verify": [*program, "verify", lock],
        }
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(options.rounds):
            for name, command in commands.items():
                times[name].append(_seconds(command, environment))
    for name, taken in times.items():
        _print(name, taken, times["bare scan"])
    print(f"the first doctor, which tries all of them in child processes: {first:.3f} s, processor {first_cpu:.3f} s")


def _print(name: str, taken: list[tuple[float, float]], scan: list[tuple[float, float]]) -> None:
    walls, cpus = zip(*taken, strict=True)
    ratio = statistics.median(one / other for (one, _), (other, _) in zip(taken, scan, strict=True))
    median = statistics.median(walls)
    bar = "" if taken is scan else f", bar {BAR_S} s: {'reached' if median < BAR_S else 'missed'}"
    spread = f"({min(walls):.3f} to {max(walls):.3f}), processor {statistics.median(cpus):.3f} s"
    print(f"{name:<16} {median:.3f} s {spread}, {ratio:.2f} x the scan{bar}")


if __name__ == "__main__":
    main()
