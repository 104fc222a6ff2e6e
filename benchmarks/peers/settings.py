"""Environment variables that let each engine run at its best on the given processor cores. Knows no figures."""

import os
from pathlib import Path

from peers.environments import BUILD, Environment

CACHES = BUILD / "caches"
"""Where engines keep what they compile, each in a folder of its own, so that the user's caches stay as they are."""


def cache_folder(engine: str) -> Path:
    """Return the folder that takes the place of the user's cache folder for `engine`."""
    return CACHES / engine


def variables(engine: str, env: Environment | None, cores: list[int]) -> dict[str, str]:
    """Return the variables of a child of `engine`, whose threads run on `cores`."""
    cache = str(cache_folder(engine))
    shared = {"OMP_NUM_THREADS": str(len(cores)), "XDG_CACHE_HOME": cache, "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
    # pip compiles the modules that it installs; other installers leave that to the first start, if it is allowed.
    shared |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(CACHES / "bytecode")}
    if engine != "vllm" or env is None:
        return shared
    preload = [*_tcmalloc(), *sorted(env.folder.glob("lib/libiomp5.so"))]
    return {
        **shared,
        "LD_PRELOAD": ":".join(map(str, preload)),
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
        "VLLM_CACHE_ROOT": f"{cache}/vllm",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
    }


def _tcmalloc() -> list[Path]:
    """The allocator that vLLM's manual recommends, where the system has it."""
    found = Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4")
    return sorted(found)[:1]


def allowed_cores(count: int) -> list[int]:
    """Return the first `count` cores that this process may use."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < count:
        raise SystemExit(f"{count} threads are asked for and {len(cores)} cores are allowed: lower --threads.")
    return cores[:count]
