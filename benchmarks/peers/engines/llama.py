"""llama.cpp through its own llama-bench and llama-batched-bench, which do the same work as the other engines' children.

Decoding starts behind a prompt of 128 (depth 128); the rate is that of the 128 tokens generated, which llama.cpp times
alone, so nothing is subtracted. It evaluates random ids and samples nothing: an advantage of about 1 %.
Options: `bin` (folder of the programs), `fa` (flash attention, or `fa_FIGURE` for one figure).
"""

import json
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

from peers import workload

LLAMA_BENCH = "llama-bench"
BATCHED_BENCH = "llama-batched-bench"


def json_lines(command: list[str]) -> list[dict[str, Any]]:
    """Run a program and return the JSON objects among its lines."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def bench(folder: Path, model: Path, threads: int, flash: str, repeats: int, what: list[str]) -> list[float]:
    """Return llama-bench's rates of its one test."""
    common = ["-m", str(model), "-t", str(threads), "-fa", flash, "-b", "2048", "-ub", "512", "-r", str(repeats)]
    (line,) = json_lines([str(folder / LLAMA_BENCH), *common, *what, "-o", "jsonl"])
    return [float(value) for value in line["samples_ts"]]


def batched(folder: Path, model: Path, threads: int, flash: str, num_seqs: int) -> float:
    """Return llama-batched-bench's rate of generation."""
    lengths = ["-npp", str(workload.PROMPT_LEN), "-ntg", str(workload.OUTPUT_LEN), "-npl", str(num_seqs)]
    common = ["-m", str(model), "-t", str(threads), "-tb", str(threads), "-fa", flash]
    common += ["-c", str(workload.KV_TOKENS), "-b", "2048", "-ub", "512", "--output-format", "jsonl"]
    lines = json_lines([str(folder / BATCHED_BENCH), *common, *lengths])
    return float(lines[-1]["speed_tg"])


def rates(args: Any, folder: Path, figure: str, flash: str) -> list[float]:
    """Return `repeats` measurements of one of RATES."""
    num_seqs, length = workload.shape(figure)
    if figure == "decode1":
        what = ["-p", "0", "-n", str(workload.OUTPUT_LEN), "-d", str(workload.PROMPT_LEN)]
        return bench(folder, args.model, args.threads, flash, args.repeats, what)
    if figure.startswith("prefill"):
        return bench(folder, args.model, args.threads, flash, args.repeats, ["-p", str(length), "-n", "0"])
    return [batched(folder, args.model, args.threads, flash, num_seqs) for _ in range(args.repeats)]


def main() -> None:
    """Time one short prompt from process start, then measure what is asked for."""
    args = workload.arguments(__doc__)
    folder = Path(args.options.pop("bin"))
    short = ["--no-warmup", "-p", "8", "-n", "0", "-r", "1", "-t", str(args.threads), "-o", "jsonl"]
    started = time.monotonic()
    json_lines([str(folder / LLAMA_BENCH), "-m", str(args.model), *short])
    workload.emit("first_token", time.monotonic(), started=started)
    for figure in (name for name in args.figures if name in workload.RATES):
        flash = args.options.get(f"fa_{figure}", args.options.get("fa", "auto"))
        values = rates(args, folder, figure, flash)
        workload.emit(figure, statistics.median(values), all=values, fa=flash)


if __name__ == "__main__":
    main()
