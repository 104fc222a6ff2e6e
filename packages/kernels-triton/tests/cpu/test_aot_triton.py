"""Every kernel compiles to a binary for sm_80, sm_90 and gfx942, multiplies on tensor cores, and fits the registers."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
INSTRUCTIONS = {
    "sm_80": {"": r"\bmma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.bf16\.bf16\.f32\b"},
    "sm_90": {
        "few": r"\bmma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.bf16\.bf16\.f32\b",
        "many": r"\bwgmma\.mma_async\.sync\.aligned\.m64n64k16\.f32\.bf16\.bf16\b",
        "rounded, many": r"\bwgmma\.mma_async\.sync\.aligned\.m64n64k32\.f32\.e4m3\.e4m3\b",
    },
    "gfx942": {"": r"\bv_mfma_f32_\d+x\d+x\d+_bf16\b", "rounded, many": r"\bv_mfma_f32_\d+x\d+x\d+_fp8_fp8\b"},
}
"""Target -> end of a kernel's name -> what its assembly must have; the longest end counts."""
KERNELS = {
    "grouped, 4 bits, few",
    "grouped, 4 bits, reordered, many",
    "grouped, 8 bits, many",
    "float8, few",
    "float8, many",
}


@pytest.mark.parametrize("target", INSTRUCTIONS)
def test_compiled_ahead_of_time(target, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = Path(__file__).parent.parent / "compiled.py"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), target],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert set(found) == KERNELS | ({"float8, rounded, many"} if target != "sm_80" else set())
    for name, made in found.items():
        end = max((end for end in INSTRUCTIONS[target] if name.endswith(end)), key=len)
        assert re.search(INSTRUCTIONS[target][end], made["assembly"]), f"{name}: no {INSTRUCTIONS[target][end]}"
        assert made["spilled"] == 0, name
