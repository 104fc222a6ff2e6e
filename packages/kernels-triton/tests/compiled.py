"""Compiles every kernel ahead of time for GPUs that are not here: python compiled.py TARGET -> JSON by kernel.

Run in a process of its own, without the interpreter. What a kernel is called with is written out: as `linear` does it
for bfloat16 activations, with rows that are multiples of 16, as models have them.
"""

import json
import re
import subprocess
import sys
import tempfile

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from modulm_kernels_triton.products import float8_linear, grouped_linear
from modulm_kernels_triton.steps import tile

TARGETS = {
    "sm_80": (GPUTarget("cuda", 80, 32), "ptx", None, 163 << 10),
    "sm_90": (GPUTarget("cuda", 90, 32), "ptx", "fp8e4nv", 227 << 10),
    "gfx942": (GPUTarget("hip", "gfx942", 64), "amdgcn", "fp8e4b8", 64 << 10),
}
"""Name -> target, its assembly, its type of 8-bit floats or None, and the shared memory of a program."""
PROCESSORS = 108
WIDTH = ("num_rows", "num_inputs", "stride")
GROUPED = {
    "x": "*bf16", "codes": "*u8", "scales": "*fp16", "minimums": "*fp32", "order": "*i32", "out": "*bf16",
    "num_tokens": "i32", "num_rows": "i32", "num_inputs": "i32", "num_groups": "i32", "group_size": "i32",
    "stride": "i32",
}  # fmt: skip
FLOAT8 = {
    "x": "*bf16", "token_scales": "*fp32", "data": "*u8", "scales": "*fp32", "out": "*bf16", "num_tokens": "i32",
    "num_rows": "i32", "num_inputs": "i32", "num_blocks": "i32", "high": "i32", "wide": "i32", "stride": "i32",
}  # fmt: skip


def cut(num_tokens):
    """Return the constants of a tile, and its warps, for a weight of 4096 x 4096."""
    chosen = tile(num_tokens, 4096, 64, PROCESSORS)
    return {"TOKENS": chosen.tokens, "ROWS": chosen.rows, "SPLIT": chosen.split, "WIDEN": False}, chosen.num_warps


def kernels(eight_bits):
    """Yield (name, kernel, types of arguments, constants, warps)."""
    for words, num_tokens in (("few", 1), ("many", 512)):
        constants, warps = cut(num_tokens)
        partial = {"out": "*fp32"} if constants["SPLIT"] > 1 else {}
        for bits, reorders in ((4, False),) if num_tokens == 1 else ((4, True), (8, False)):
            given = {"PER_BYTE": 2 if bits == 4 else 1, "HAS_ORDER": reorders, "STEP": 64, **constants}
            given |= {"num_groups": 1} if bits == 8 else {}  # a group a row: what is 1 becomes a constant
            name = f"grouped, {bits} bits{', reordered' if reorders else ''}, {words}"
            yield name, grouped_linear, GROUPED | partial, given, warps
        given = {"ROUNDED": False, "FIVE_TWO": False, "STEP": 64, **constants}
        given |= {"num_blocks": 1, "high": 1} if words == "many" else {}  # a scale a row; for few, in blocks
        yield f"float8, {words}", float8_linear, FLOAT8 | partial, given, warps
    if eight_bits:
        types = FLOAT8 | {"x": f"*{eight_bits}", "data": f"*{eight_bits}"}
        yield "float8, rounded, many", float8_linear, types, given | {"ROUNDED": True}, warps


def compiled(target, kind, memory, kernel, types, constants, warps):
    """Return the assembly, and what did not fit the registers, once it was made a binary for the target too."""
    arguments = list(types)
    aligned = [name for name in arguments if types[name].startswith("*") or name in WIDTH]
    source = ASTSource(
        kernel, {**types, **dict.fromkeys(constants, "constexpr")}, constants,
        {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )  # fmt: skip
    made = triton.compile(source, target=target, options={"num_warps": warps})
    assert made.metadata.shared <= memory, f"{made.metadata.shared} bytes of shared memory, of {memory}"
    if kind == "ptx":
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(made.asm["cubin"])
            file.flush()
            told = subprocess.check_output([triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name], text=True)
        (spilled,) = re.findall(r"STACK:(\d+)", told)
    else:
        assert made.asm["hsaco"].startswith(b"\x7fELF")
        (spilled,) = re.findall(r"\.vgpr_spill_count:\s*(\d+)", made.asm[kind])
    return {"assembly": made.asm[kind], "spilled": int(spilled)}


def main(name):
    """Print what every kernel becomes."""
    target, kind, eight_bits, memory = TARGETS[name]
    print(json.dumps({what: compiled(target, kind, memory, *how) for what, *how in kernels(eight_bits)}))


main(sys.argv[1])
