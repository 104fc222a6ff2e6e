"""Make `.venv`: every package of the workspace, editable, with exactly the versions in `uv.lock`.

Run by `make` with any Python from 3.11 and nothing installed. pip does the installing, so that the user's index
settings hold (pip.conf, PIP_INDEX_URL, PIP_FIND_LINKS ...). The lock's versions are given to it as constraints, not as
requirements: a build of torch that needs no CUDA libraries then brings none. Uses no other file of the environment.
Where to look next: `lock.py`, which writes the lock.
"""

import argparse
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workspace import ROOT, locked_versions, packages, requirement_name

TOLD = ("Collecting ", "Processing ", "Downloading ", "Building ", "Installing ", "Successfully ", "ERROR", "error:")
"""How the lines of pip's output begin that are shown while it runs; the rest is in the log."""


BUILD_TOOLS = ("uv", "hatchling", "editables", "scikit-build-core", "nanobind", "cmake", "ninja")


def digest(root: Path) -> str:
    """Return a digest of all that decides what belongs in the environment."""
    packages = root / "packages"
    files = [root / "pyproject.toml", root / "uv.lock", *sorted(packages.glob("*/pyproject.toml"))]
    files += sorted([*packages.glob("*/CMakeLists.txt"), *packages.glob("*/native/**/*.?pp")])
    sums = hashlib.sha256(sys.version.encode())
    for file in [*files, Path(__file__)]:
        sums.update(file.read_bytes())
    return sums.hexdigest()


@contextmanager
def only_one(lock: Path) -> Iterator[None]:
    """Wait until no other set-up of this checkout runs, and keep others waiting meanwhile."""
    with lock.open() as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def make_venv(venv: Path) -> None:
    """Create `venv` with pip in it, also where this Python came without ensurepip, as Debian's does."""
    if _made_with_pip(venv):
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", venv], check=True)
    if _has("pip"):
        pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin/python"), "install", "--quiet", "pip"]
        if subprocess.run(pip).returncode == 0:
            return
    shutil.rmtree(venv)
    if _debian_venv() and _made_with_pip(venv):
        return
    sys.exit(
        f"A virtual environment with pip is asked for and {sys.executable} cannot make one: it has neither a working "
        "ensurepip nor pip. Install one of them, on Debian with: apt-get install python3-venv"
    )


def _made_with_pip(venv: Path) -> bool:
    made = [sys.executable, "-m", "venv", "--clear", str(venv)]
    return _has("ensurepip") and subprocess.run(made, capture_output=True).returncode == 0


def _has(module: str) -> bool:
    importlib.invalidate_caches()
    return importlib.util.find_spec(module) is not None


def _debian_venv() -> bool:
    """Debian keeps ensurepip in a package of its own: install it for Debian's own Python, where we may."""
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0 or Path(sys.executable).resolve().parent != Path("/usr/bin"):
        return False
    print("      Debian's Python lacks ensurepip: installing python3-venv with apt-get", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    steps = [[apt, "update", "-qq"], [apt, "install", "-y", "-qq", "--no-install-recommends", "python3-venv"]]
    return all(subprocess.run(step, env=environment, stdout=subprocess.DEVNULL).returncode == 0 for step in steps)


def usable(venv: Path) -> bool:
    """Whether `venv` is there and whole: a set-up that was interrupted may have left one without pip."""
    python = venv / "bin/python"
    return python.exists() and subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode == 0


def pip_install(venv: Path, arguments: list[str]) -> None:
    """Install with the venv's pip, showing what it collects. Exits with the end of its output when it fails."""
    command = [str(venv / "bin/python"), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    lines = []
    with (venv / "setup.log").open("a") as log:
        pip = subprocess.Popen(
            [*command, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert pip.stdout is not None
        for line in pip.stdout:
            log.write(line)
            lines.append(line)
            if line.lstrip().startswith(TOLD):
                print("   ", line.strip()[:110], flush=True)
    if pip.wait() != 0:
        sys.exit("".join(lines[-30:]) + f"\npip could not install. The whole output: {venv / 'setup.log'}")


def constraints(venv: Path) -> Path:
    """Write the lock's versions of everything that is not of the workspace, and return the file."""
    file = venv / "constraints.txt"
    what = ["--all-packages", "--all-groups", "--all-extras", "--no-emit-workspace", "--no-hashes", "--no-annotate"]
    subprocess.run(
        [venv / "bin/uv", "export", "--frozen", "--quiet", *what, "--output-file", file],
        cwd=ROOT,
        env={**os.environ, "UV_PYTHON": str(venv / "bin/python")},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return file


def install(venv: Path) -> None:
    """Fill `venv`: the tools that read the lock, then everything it names, then the workspace itself."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    pins = [f"{name}=={version}" for name in BUILD_TOOLS for version in locked_versions()[name]]
    print("[2/4] installing uv and what builds packages", flush=True)
    pip_install(venv, pins)
    print("[3/4] installing what uv.lock names (torch is the large one)", flush=True)
    limits = ["--constraint", str(constraints(venv))]
    ours = {package.distribution for package in packages()}
    lines = [line for package in packages() for line in package.requirements + package.test_requirements]
    needed = [line for line in lines if requirement_name(line) not in ours]
    pip_install(venv, [*limits, *groups["dev"], *needed])
    pip_install(venv, [*limits, "--no-deps", *groups["weights"]])
    print(
        "[4/4] installing the packages of this workspace, editable; native ones compile",
        flush=True,
    )
    editable = [f"--editable=packages/{package.folder}" for package in packages()]
    pip_install(venv, ["--no-build-isolation", "--no-deps", *editable])


def main() -> int:
    """Run the tool; see `--help`."""
    parser = argparse.ArgumentParser(description="Make or refresh .venv from uv.lock; does nothing if it is current.")
    parser.add_argument("--force", action="store_true", help="start from an empty environment")
    force = parser.parse_args().force
    venv, stamp = ROOT / ".venv", ROOT / ".venv/.stamp"
    with only_one(ROOT / "uv.lock"):
        if not force and stamp.exists() and stamp.read_text() == digest(ROOT):
            stamp.touch()
            return 0
        started = time.monotonic()
        if force or not usable(venv):
            print(f"[1/4] creating {venv} with {sys.executable}", flush=True)
            make_venv(venv)
        stamp.unlink(missing_ok=True)
        install(venv)
        stamp.write_text(digest(ROOT))
        print(f".venv is ready ({time.monotonic() - started:.0f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
