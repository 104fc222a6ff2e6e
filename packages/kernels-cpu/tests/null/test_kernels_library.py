"""The library loads, says what it is, and brings no torch with it."""

import os
import subprocess
import sys

import pytest

import modulm_kernels_cpu
from modulm_kernels_cpu.library import native, numa_nodes

SETS = ("amx", "avx512_bf16", "avx512", "avxvnni", "avx2", "neon", "generic")


def test_it_says_what_is_in_use():
    assert modulm_kernels_cpu.isa() in SETS
    assert native().can_run(modulm_kernels_cpu.isa()) and native().can_run("generic")
    assert modulm_kernels_cpu.describe().startswith(f"instruction set {modulm_kernels_cpu.isa()}, ")


def test_memory_nodes_are_those_of_the_cores_allowed(tmp_path):
    ours = min(os.sched_getaffinity(0))
    for node, cores in {
        "node0": f"{ours}-{ours}",
        "node1": "4000-4007,4010",
        "node12": f"5000,{ours}",
        "other": "0",
    }.items():
        (tmp_path / node).mkdir()
        (tmp_path / node / "cpulist").write_text(cores + "\n")
    assert numa_nodes(tmp_path) == [0, 12]
    assert numa_nodes(tmp_path / "absent") == []


def test_threads_follow_the_cores_allowed():
    code = "import os, modulm_kernels_cpu._native as n; print(n.num_threads(), len(os.sched_getaffinity(0)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    threads, cores = done.stdout.split()
    assert threads == cores


@pytest.mark.parametrize("count", [0, -1, 1025])
def test_an_impossible_number_of_threads_is_refused(count):
    with pytest.raises(ValueError, match="between 1 and 1024"):
        native().set_num_threads(count)


@pytest.mark.parametrize("name", [*SETS, "mmx"])
def test_an_instruction_set_can_be_named_if_it_runs(name):
    environment = {**os.environ, "MODULM_CPU_ISA": name}
    code = "import modulm_kernels_cpu as k; print(k.isa())"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    if native().can_run(name):
        assert done.stdout.strip() == name
    else:
        assert done.returncode != 0 and name in done.stderr


def test_neither_package_nor_library_imports_torch():
    code = "import sys, modulm_kernels_cpu.provider, modulm_kernels_cpu._native; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
