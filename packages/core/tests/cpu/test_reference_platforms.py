"""Platforms: memory under limits, dtypes by processor, and no torch until it is needed."""

import platform
import subprocess
import sys

import pytest

from modulm.config import EngineConfig
from modulm.reference import platform_cuda
from modulm.reference.host_memory import available_bytes, total_bytes
from modulm.reference.platform_cpu import CPUPlatform, cpu_flags, cpuinfo, is_fast_in, probe

MEMINFO = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    800 kB\n"
KIB = 1024


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("group", "files", "total", "available"),
    [
        ("0::/\n", {}, 1000 * KIB, 800 * KIB),
        (
            "0::/\n",
            {"memory.max": "512000\n", "memory.current": "300000\n", "memory.stat": "anon 1\ninactive_file 100000\n"},
            512_000,
            312_000,
        ),
        (
            "0::/a/b\n",
            {
                "a/b/memory.max": "max\n",
                "a/b/memory.current": "5\n",
                "a/b/memory.stat": "inactive_file 0\n",
                "a/memory.max": "400000\n",
                "a/memory.current": "450000\n",
                "a/memory.stat": "anon 1\n",
            },
            400_000,
            0,
        ),
        (
            "4:cpu,memory:/pod\n1:cpu:/\n",
            {
                "memory/pod/memory.limit_in_bytes": "700000\n",
                "memory/pod/memory.usage_in_bytes": "200000\n",
                "memory/pod/memory.stat": "inactive_file 1\ntotal_inactive_file 50000\n",
            },
            700_000,
            550_000,
        ),
        ("0::/gone\n", {"memory.max": "max\n"}, 1000 * KIB, 800 * KIB),
    ],
)
def test_memory_is_what_control_groups_leave(group, files, total, available, tmp_path):
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    write(proc, {"meminfo": MEMINFO, "self/cgroup": group})
    write(cgroups, files)
    assert total_bytes(proc, cgroups) == total
    assert available_bytes(proc, cgroups) == available


def test_memory_without_proc_is_the_machines(tmp_path):
    assert total_bytes(tmp_path, tmp_path) > 1 << 28


def test_this_machine_has_memory():
    platform = CPUPlatform()
    assert 0 < platform.available_memory_bytes() <= platform.total_memory_bytes()


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({}, 512),
        ({"max_num_batched_tokens": 4096}, 4096),
        ({"max_num_batched_tokens": 16}, 16),
        ({"enable_chunked_prefill": False}, 2048),  # a step must hold a whole prompt
    ],
    ids=str,
)
def test_a_step_is_small_unless_the_user_says_otherwise(options, tokens):
    config = EngineConfig.make(model="m", **options)
    CPUPlatform().check_and_update_config(config)
    assert config.tokens_per_step == tokens


@pytest.mark.parametrize(
    ("dtype", "machine", "flags", "fast"),
    [
        ("bfloat16", "x86_64", {"avx2"}, False),
        ("bfloat16", "x86_64", {"avx512_bf16"}, False),
        ("bfloat16", "x86_64", {"avx512_bf16", "amx_bf16"}, True),
        ("float16", "x86_64", {"amx_bf16"}, False),
        ("float16", "AMD64", {"amx_fp16"}, True),
        ("bfloat16", "aarch64", {"asimdhp"}, False),
        ("float16", "aarch64", {"asimdhp"}, True),
        ("bfloat16", "arm64", set(), True),
    ],
)
def test_sixteen_bits_only_where_they_are_fast(dtype, machine, flags, fast):
    assert is_fast_in(dtype, machine, flags) is fast


def test_flags_are_read_from_cpuinfo(tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx2 amx_bf16\n\nflags\t\t: other\n")
    assert cpu_flags(file) == ["fpu", "avx2", "amx_bf16"]
    assert cpuinfo("model name", file=file) == "Some CPU" and cpuinfo("model", file=file) == ""
    assert cpu_flags(tmp_path / "missing") == []


def test_float32_stays_and_unknown_dtypes_become_it():
    assert CPUPlatform().default_dtype("float32") == "float32"
    assert CPUPlatform().default_dtype("float64") == "float32"


def test_without_a_driver_cuda_is_rejected_without_importing_torch():
    assert not platform_cuda.probe(files=("/nowhere/nvidiactl",))
    code = (
        "import sys; from modulm.reference import platform_cpu, platform_cuda;"
        "platform_cpu.probe(); platform_cuda.probe(files=());"
        "platform_cpu.CPUPlatform().available_memory_bytes(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert probe()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library keeps what was freed, or does not")
def test_what_was_freed_goes_back_to_the_system():
    code = """
import re
from pathlib import Path
from modulm.reference.host_memory import give_back_freed

def resident():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) >> 10

pieces = [bytes(1000) for _ in range(100_000)]
last = pieces[-1]  # above all others, so that the heap cannot simply end earlier
pieces.clear()
before = resident()
give_back_freed()
print(before - resident())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert int(done.stdout) > 60
