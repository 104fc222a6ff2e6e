"""`modulm env`: what to put into a bug report: versions, machine, settings, plugins. Imports no torch."""

import argparse
import json
import os
import platform
from importlib.metadata import PackageNotFoundError, distributions, version
from typing import Any

from modulm.reference.platform_cpu import cpu_flags, cpuinfo

HELP = "show versions, machine and settings for a bug report"

_LIBRARIES = ("torch", "numpy", "tokenizers", "ml-dtypes", "huggingface-hub", "jinja2", "msgspec", "gguf")
_INSTRUCTION_SETS = ("avx", "fma", "f16c", "amx", "asimd", "sve")
_PREFIXES = ("VLLM_", "MODULM_", "HF_HUB_", "OMP_", "CUDA_")
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the report."""
    report = collect()
    if args.json:
        print(json.dumps(report, indent=2))
        return 0
    for title, part in report.items():
        print(title)
        for name, value in part.items():
            print(f"  {name:<24} {value}")
    return 0


def collect() -> dict[str, dict[str, Any]]:
    """Gather the report from metadata and /proc; values of settings that look secret are hidden."""
    names = sorted({d.metadata["Name"] for d in distributions() if (d.metadata["Name"] or "").startswith("modulm")})
    return {
        "packages": {name: version(name) for name in names},
        "libraries": {name: _version(name) for name in _LIBRARIES},
        "machine": {
            "python": platform.python_version(),
            "system": platform.platform(),
            "cpu": cpuinfo("model name") or platform.processor() or platform.machine(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "instruction sets": " ".join(name for name in cpu_flags() if name.startswith(_INSTRUCTION_SETS)),
        },
        "settings": {
            name: _shown(name, value) for name, value in sorted(os.environ.items()) if name.startswith(_PREFIXES)
        },
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _shown(name: str, value: str) -> str:
    return "(hidden)" if any(word in name for word in _SECRET) else value
