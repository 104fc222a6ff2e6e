"""What each quantization format costs and gives, on SmolLM2-135M: speed, memory and perplexity, as a table.

The published weights are dequantised to bfloat16 once, written in every format (`formats/written.py`), and run by
modulm. Right after a format comes the GGUF file of its nearest type, so that a busy machine slows both; embeddings are
bfloat16 in both. llama.cpp runs that type too, as its own defaults write it. Perplexity is beside bfloat16 (what the
format's rounding costs) and beside exact kernels with the same weights (what our arithmetic costs).

    python benchmarks/quantization.py [--only NVFP4] [--windows 8] [--rounds 3] [--write]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from formats.written import FORMATS, Format
from peers.engines import llama
from peers.environments import Environment, InstallError, ensure, llama_programs
from peers.machine import describe, words
from peers.table import grid, write_between
from peers.weights import WEIGHTS, prepare, published

ROOT = Path(__file__).resolve().parent
PAGE = ROOT.parent / "docs/use/quantization.md"
HEAD = [
    *("format", "bits", "made by", "kernel", "decode", "to GGUF", "to llama.cpp", "prefill", "to GGUF", "to llama.cpp"),
    *("memory, MB", "of the file", "perplexity", "of that by kernels"),
]
LEFT = (0, 1, 2, 3)
Figures = dict[str, Any]


def child(module: str, *arguments: object) -> str:
    """Run a module of `formats` apart: threads, memory and imports stay apart too. Return its last line."""
    command = [sys.executable, "-m", f"formats.{module}", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return done.stdout.strip().rpartition("\n")[2]


def measured(model: Path, options: dict[str, Any], windows: int, rounds: int) -> Figures:
    """Return what `formats.measured` found."""
    found: Figures = json.loads(child("measured", model, json.dumps(options), windows, rounds))
    return found


def gguf(kind: str, programs: Path) -> Path:
    """Return the file of a GGUF type with embeddings in bfloat16, made if it is not there."""
    target = WEIGHTS / f"smollm2-135m-{kind}-bf16-embedding.gguf"
    if not target.exists():
        options = ["--allow-requantize", "--token-embedding-type", "bf16"]
        made = target.with_suffix(".partial")
        command = [str(programs / "llama-quantize"), *options, str(published()), str(made), kind.upper()]
        subprocess.run(command, check=True, capture_output=True)
        os.replace(made, target)
    return target


def by_llama(kind: str, env: Environment, rounds: int) -> Figures:
    """Return llama.cpp's rates with its own file of a type."""
    file, folder = prepare(kind, env), llama_programs(env)
    threads = len(os.sched_getaffinity(0))
    figures: Figures = {}
    for name, what in (("decode", ["-p", "0", "-n", "128", "-d", "128"]), ("prefill", ["-p", "512", "-n", "0"])):
        rates = [llama.bench(folder, file, threads, flash, rounds, what) for flash in ("0", "1")]
        figures[name] = max(rates, key=statistics.median)
    return figures


def stored_bytes(path: Path) -> int:
    """Bytes of a checkpoint's tensors."""
    from modulm.checkpoints.safetensors import SafetensorsCheckpoint
    from modulm_quant_gguf.checkpoint import GGUFCheckpoint

    checkpoint = (SafetensorsCheckpoint if path.is_dir() else GGUFCheckpoint).open(path)
    return sum(checkpoint.info(name).size_bytes for name in checkpoint.tensor_names())


def ratio(figures: Figures, base: Figures, key: str) -> str:
    """Return medians' ratio as text."""
    return f"{statistics.median(figures[key]) / statistics.median(base[key]):.2f}"


def kernels(figures: Figures) -> str:
    """Return which provider served which kind of weights; the plain ones that every model has only where all are."""
    served = {tuple(line.replace(":", "").split()[::2][:2]) for line in figures["kernels"] if ": linear " in line}
    kinds = sorted(f"{provider}, {kind}" for provider, kind in served if len(served) == 1 or kind != "Dense")
    return "; ".join(kinds) + ("" if "run by kernels" in figures["program"] else "; eager")


def row(label: list[str], fast: Figures, near: Figures, peer: Figures, *costs: str) -> list[str]:
    """Return a line of the table; `near` and `peer` are the nearest type by modulm and by llama.cpp."""
    cells = [*label, kernels(fast)]
    for key in ("decode", "prefill"):
        cells += [f"{statistics.median(fast[key]):,.0f}", ratio(fast, near, key), ratio(fast, peer, key)]
    return [*cells, f"{fast['weights_bytes'] / 1e6:.0f}", *costs]


class Table:
    """Runs all, and keeps the lines."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.windows, self.rounds = options.windows, options.rounds
        try:
            self.llama = ensure("llama")
        except InstallError as error:
            raise SystemExit(f"llama.cpp is measured beside, and cannot be installed: {error}") from error
        self.programs = llama_programs(self.llama)
        self.plain = prepare("bf16", self.llama)
        self.exact_plain = measured(self.plain, {"kernel_precision": "exact"}, self.windows, 0)["perplexity"]
        self.peers = {kind: by_llama(kind, self.llama, self.rounds) for kind in ("q4_0", "q4_1", "q8_0", "f16")}
        self.lines = [HEAD]

    def add(self, label: list[str], path: Path, nearest: str, options: dict[str, Any], *, is_online: bool) -> None:
        """Measure a checkpoint in both precisions, and the nearest type right after it."""
        fast = measured(path, options, self.windows, self.rounds)
        near = measured(self.plain if nearest == "f16" else gguf(nearest, self.programs), {}, 0, self.rounds)
        exact = measured(path, {**options, "kernel_precision": "exact"}, self.windows, 0)
        of_file = "" if is_online else f"{fast['weights_bytes'] / stored_bytes(path):.3f}"
        costs = [f"{fast['perplexity'] / each - 1:+.2%}" for each in (self.exact_plain, exact["perplexity"])]
        self.lines.append(row(label, fast, near, self.peers[nearest], of_file, *costs))
        print(" | ".join(self.lines[-1]), flush=True)

    def add_format(self, name: str, form: Format) -> None:
        """Write a format for as long as it is measured."""
        label = [name, form.bits, form.made_by]
        if form.write is None:
            self.add(label, self.plain, form.nearest, form.options, is_online=True)
            return
        with tempfile.TemporaryDirectory(dir=WEIGHTS) as work:
            target = Path(work) / "model"
            child("written", name, self.plain, target)
            self.add(label, target, form.nearest, form.options, is_online=False)


def main() -> None:
    """Measure all, one after the other, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="formats whose name has this")
    parser.add_argument("--windows", type=int, default=8, help="of 512 tokens, for perplexity")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    options = parser.parse_args()
    command = f"python benchmarks/quantization.py {' '.join(sys.argv[1:])}".strip()
    print(f"$ {command}", flush=True)
    load = os.getloadavg()[0]
    table = Table(options)
    if not options.only:
        table.add(["bfloat16", "16", "transformers"], table.plain, "f16", {}, is_online=False)
        for kind in ("q4_0", "q4_1", "q8_0"):
            label = [f"GGUF {kind.upper()}", kind[1], "llama.cpp"]
            table.add(label, gguf(kind, table.programs), kind, {}, is_online=False)
    for name, form in FORMATS.items():
        if options.only in name:
            table.add_format(name, form)
    body = f"Machine: {words(describe())}. Load before: {load:.2f}. Command: `{command}`.\n\n{grid(table.lines, LEFT)}"
    print(body)
    if options.write:
        write_between(PAGE, body, "quantization")


if __name__ == "__main__":
    main()
