"""Kernels for processors that are not here: compiled without Python, run by an emulator, compared bit by bit.

The checks lie in packages/kernels-cpu/tests/native. What an emulator shows is that results are right; speeds on Arm and
with AVX-VNNI have not been measured.
"""

import os
import platform
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from modulm_kernels_cpu import _native

PACKAGE = Path(__file__).resolve().parent.parent / "packages/kernels-cpu"
CHECKS = PACKAGE / "tests/native"
PRODUCTS = ("linear_q4", "linear_q4_pack", "linear_int8", "linear_dense", "quantize_activations")
AVX2 = "-march=x86-64-v2 -mavx2 -mfma -mf16c"
AVX512 = "-march=x86-64-v4 -mavx512vnni -mfma -mf16c -Wno-uninitialized -Wno-maybe-uninitialized"
X86 = {"generic": "-march=x86-64-v2", "avx2": AVX2, "avx512": AVX512}
ARM = {"generic": "", "neon": "-march=armv8.2-a+dotprod"}
"""Options per instruction set, as in CMakeLists.txt."""

CROSS, QEMU = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
HOST = shutil.which(os.environ.get("CXX", "g++"))


def build(folder, compiler, kernels, checks):
    """Compile `kernels`, tuples (instruction set, file, options), and `checks`; return the program that runs them."""
    parts = ["features.cpp", "pool.cpp", "bindings_attention_plan.cpp"]
    jobs = [(CHECKS / f"{name}.cpp", "", name) for name in [*checks, "main"]]
    jobs += [(PACKAGE / "native" / name, "", name) for name in parts]
    jobs += [
        (PACKAGE / f"native/kernels/{name}.cpp", f"-DMODULM_ISA={isa} {options}", f"{isa}-{Path(name).name}")
        for isa, name, options in kernels
    ]
    common = ["-std=c++20", "-O1", "-ffp-contract=off", "-Wno-unknown-pragmas"]

    def compiled(job):
        source, options, name = job
        target = folder / f"{name}.o"
        includes = [f"-I{PACKAGE / 'native'}", f"-I{CHECKS}"]
        command = [compiler, *common, *options.split(), *includes, "-c", source, "-o", target]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compiled, jobs))
    program = folder / "checks"
    subprocess.run([compiler, "-static", "-pthread", *objects, "-o", program], check=True)
    return program


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    first, *others = done.stdout.splitlines()
    assert others and all(line.endswith(" 0 failures") for line in others), done.stdout
    return first.partition(": ")[2].split()


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    if CROSS is None or QEMU is None:
        pytest.skip("needs aarch64-linux-gnu-g++ and qemu-aarch64 (Debian's g++-aarch64-linux-gnu, qemu-user)")
    names = sorted({file.stem for file in (PACKAGE / "native/kernels").glob("*.cpp")} - {"sampling"})
    kernels = [(isa, name, options) for isa, options in ARM.items() for name in names]
    checks = ("q4", "int8", "elementwise", "attention")
    return build(tmp_path_factory.mktemp("arm"), CROSS, kernels, checks)


@pytest.mark.parametrize(("processor", "isas"), [("max", ["neon", "generic"]), ("cortex-a72", ["generic"])])
def test_arm_with_and_without_dot_products(processor, isas, arm):
    assert run(QEMU, "-cpu", processor, arm) == isas


@pytest.mark.skipif(platform.machine() != "x86_64" or HOST is None, reason="x86-64 and a compiler only")
@pytest.mark.skipif(not _native.can_run("avx512"), reason="needs AVX-512 with VNNI, whose encoding stands for AVX-VNNI")
def test_avx_vnni_computes_the_bits_of_avx2(tmp_path):
    kernels = [(isa, name, options) for isa, options in X86.items() for name in PRODUCTS]
    same = f"{AVX2} -include {CHECKS / 'avxvnni_as_avx512.hpp'}"
    kernels += [("avxvnni", name, same) for name in ("linear_q4", "linear_int8")]
    checks = build(tmp_path, HOST, kernels, ("q4", "int8"))
    assert run(checks, "avxvnni", "avx2", "avx512", "generic") == ["avx512", "avxvnni", "avx2", "generic"]
