"""The provider `cpu`: whom it asks, what it refuses, and what environment variables change."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import modulm_kernels_cpu
from modulm.errors import ConfigError
from modulm.interfaces.quantization import Encoded, GroupedInt
from modulm_kernels_cpu import _native
from modulm_kernels_cpu.provider import CPUKernels


@pytest.fixture
def weight():
    shape = (8, 2)
    return GroupedInt(
        out_features=8, in_features=64, bits=4, group_size=32, codes=np.full((8, 32), 0x37, np.uint8),
        scales=np.full(shape, 0.3, np.float32), minimums=np.ones(shape, np.float32),
    )  # fmt: skip


def run(code, **environment):
    environment = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def test_it_says_what_it_does(weight, monkeypatch):
    monkeypatch.delenv("MODULM_KERNEL_PRECISION", raising=False)
    answer = CPUKernels().supports("linear", weight, "cpu")
    if _native.isa() == "generic" and not os.environ.get("MODULM_CPU_ISA"):
        assert not answer and "AVX2" in answer.reason
    else:
        assert answer and answer.note == f"{_native.isa()}, fast: 4-bit weights"


@pytest.mark.parametrize(("op", "device", "word"), [("linear", "cuda", "cuda"), ("rope", "cpu", "rope")])
def test_it_refuses_other_devices_and_ops(weight, op, device, word):
    answer = CPUKernels().supports(op, weight, device)
    assert not answer and word in answer.reason


def test_it_refuses_kinds_without_a_kernel():
    other = Encoded(
        out_features=1, in_features=1, format="x", data=np.zeros((1, 1), np.uint8), decode=lambda rows: rows
    )
    answer = CPUKernels().supports("linear", other, "cpu")
    assert not answer


def test_precision_comes_from_the_environment(weight, monkeypatch):
    x = torch.randn(3, 64)
    results = {}
    for precision in ("fast", "exact", ""):
        monkeypatch.setenv("MODULM_KERNEL_PRECISION", precision)
        results[precision] = CPUKernels().pack(weight, "cpu", "float32").linear(x)
    assert torch.equal(results["fast"], results[""])
    assert not torch.equal(results["fast"], results["exact"])


def test_an_unknown_precision_is_an_error(weight, monkeypatch):
    monkeypatch.setenv("MODULM_KERNEL_PRECISION", "quick")
    with pytest.raises(ConfigError, match=r"'quick'.*'fast'.*'exact'"):
        CPUKernels().supports("linear", weight, "cpu")


def test_description():
    count = _native.num_threads()
    plural = "" if count == 1 else "s"
    assert modulm_kernels_cpu.describe().startswith(f"instruction set {_native.isa()}, {count} thread{plural}")


@pytest.mark.parametrize("isa", ["generic", "avx2", "avxvnni", "avx512", "avx512_bf16", "amx", "neon"])
def test_an_instruction_set_can_be_named(isa):
    if not _native.can_run(isa):
        pytest.skip(f"{isa} cannot run here")
    done = run("import modulm_kernels_cpu as k; print(k.isa())", MODULM_CPU_ISA=isa)
    assert done.stdout.strip() == isa, done.stderr


def test_an_unknown_instruction_set_is_an_error():
    done = run("import modulm_kernels_cpu as k; k.isa()", MODULM_CPU_ISA="sse9")
    assert done.returncode and "sse9" in done.stderr and "generic" in done.stderr


def test_no_torch_until_a_tensor_comes():
    done = run("import modulm_kernels_cpu.provider as p, sys; p.CPUKernels(); print('torch' in sys.modules)")
    assert done.stdout.strip() == "False", done.stderr


def test_a_broken_library_says_so():
    code = """
import sys
sys.modules["modulm_kernels_cpu._native"] = None
import modulm_kernels_cpu
modulm_kernels_cpu.isa()
"""
    done = run(code)
    assert "native library of modulm-kernels-cpu cannot be loaded" in done.stderr and "pip install" in done.stderr
