"""How each server is started, at its best on this load: command and environment variables. Starts nothing.

All of them: 16 sequences at once, 512 tokens each, up to 2048 tokens a step, no prefix caching, this machine only.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from peers import settings
from peers.environments import Environment, llama_programs
from peers.score import Source
from peers.servers.lines import NUM_CLIENTS, OUTPUT_LEN, PROMPT_LEN
from peers.workload import TOKEN_IDS

MAX_MODEL_LEN = 512
HOST = "127.0.0.1"
TOKENS_PER_STEP = 2048
"""A wave of prompts fits into one step. vLLM's server has this by default; llama-server is given the same (`-b`)."""
EXTRA_BODY = {"llama": {"cache_prompt": False}}
"""Fields of every request that a server needs to keep nothing from one to the next."""


def needs(source: Source) -> tuple[str | None, str]:
    """Return the environment that a server is installed in (None: the one that runs this), and its weights' form."""
    if source.engine == "modulm":
        return None, "q4_1"
    return ("vllm", "bf16") if source.engine == "vllm" else ("llama-server", source.weights)


def modulm(python: Path, model: Path, port: int, more: Iterable[str]) -> list[str]:
    """`modulm serve`; `more` are options of the user's."""
    command = [str(python), "-m", "modulm.cli", "serve", str(model), "--no-enable-prefix-caching"]
    command += ["--max-num-seqs", str(NUM_CLIENTS), "--max-model-len", str(MAX_MODEL_LEN)]
    command += ["--max-num-batched-tokens", str(TOKENS_PER_STEP), "--disable-uvicorn-access-log"]
    return [*command, "--host", HOST, "--port", str(port), *more]


def llama(env: Environment, model: Path, port: int, threads: int) -> list[str]:
    """`llama-server` with a slot per client; none is chosen by likeness to an earlier request, nothing is kept."""
    command = [str(llama_programs(env) / "llama-server"), "-m", str(model), "-t", str(threads), "-tb", str(threads)]
    command += ["--parallel", str(NUM_CLIENTS), "-c", str(NUM_CLIENTS * MAX_MODEL_LEN)]
    command += ["-b", str(TOKENS_PER_STEP), "-ub", "512"]
    return [*command, "--slot-prompt-similarity", "0", "--cache-ram", "0", "--host", HOST, "--port", str(port)]


def vllm(env: Environment, model: Path, port: int, dtype: str) -> list[str]:
    """The OpenAI server of vLLM, compiled."""
    command = [str(env.python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--dtype", dtype]
    command += ["--no-enable-prefix-caching", "--max-num-seqs", str(NUM_CLIENTS), "--max-model-len", str(MAX_MODEL_LEN)]
    return [*command, "--disable-uvicorn-access-log", "--host", HOST, "--port", str(port)]


def variables(source: Source, env: Environment | None, cores: list[int]) -> dict[str, str]:
    """Return a server's environment variables: those of `settings.py`, and vLLM's engine in a process of its own."""
    given = settings.variables(source.engine, env, cores)
    given.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
    return given


def load(python: Path, source: Source, port: int, requests: int, seed: int) -> list[str]:
    """`modulm bench serve`: all clients at once, each with a next request when its last one has ended.

    Every request has a connection of its own, as llama-server drops those that are used again.
    """
    command = [str(python), "-m", "modulm.cli", "bench", "serve", "--host", HOST, "--port", str(port)]
    command += ["--endpoint", "/v1/completions", "--header", "Connection=close", "--json", "--seed", str(seed)]
    command += ["--num-prompts", str(requests), "--num-warmups", str(NUM_CLIENTS)]
    command += ["--max-concurrency", str(NUM_CLIENTS), "--random-vocab-size", str(TOKEN_IDS[1])]
    command += ["--random-input-len", str(PROMPT_LEN), "--random-output-len", str(OUTPUT_LEN)]
    command += ["--temperature", "0", "--ignore-eos", "--metric-percentiles", "50,99"]
    return [*command, "--extra-body", json.dumps(EXTRA_BODY.get(source.engine, {}))]
