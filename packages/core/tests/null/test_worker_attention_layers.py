"""Attention layers and their memory: dtypes that are asked for or preferred, bytes of pages, caches of every dtype."""

import platform
import subprocess
import sys

import numpy as np
import pytest

from modulm.interfaces.attention import AttentionBackend, AttentionSpec
from modulm.worker.attention_layers import AttentionLayers
from modulm.worker.kv_memory import host_caches

SPEC = AttentionSpec(num_heads=6, num_kv_heads=2, head_size=16, scale=0.25)
BYTES = "int8_per_token_head"


class Scaled(AttentionBackend):
    """Four more bytes for each of 2 x 2 heads of a token, where there are scales."""

    name = "scaled"

    @classmethod
    def supports(cls, spec):
        raise NotImplementedError

    @classmethod
    def kv_cache_shape(cls, num_blocks, block_size, num_kv_heads, head_size, kv_cache_dtype="float32"):
        return (num_blocks, 2, num_kv_heads, block_size, head_size + 4 * (kv_cache_dtype == BYTES))

    @classmethod
    def preferred_kv_cache_dtype(cls, spec):
        return BYTES

    def plan(self, layout, device):
        raise NotImplementedError

    def forward(self, *arguments, **options):
        raise NotImplementedError


def layers(kv_cache_dtype):
    asked = []

    def attention(spec):
        asked.append(spec.kv_cache_dtype)
        return Scaled()

    found = AttentionLayers(
        {"a": SPEC, "b": SPEC}, kv_cache_dtype=kv_cache_dtype, device_type="cpu", attention=attention
    )
    return found, asked


@pytest.mark.parametrize(
    ("dtype", "size_bytes", "host"),
    [
        ("float32", 2 * 2 * 8 * 16 * 4, np.float32),
        ("float16", 2 * 2 * 8 * 16 * 2, np.float16),
        ("bfloat16", 2 * 2 * 8 * 16 * 2, np.uint16),
        (BYTES, 2 * 2 * 8 * (16 + 4), np.int8),
    ],
)
def test_pages_are_what_the_backend_says(dtype, size_bytes, host):
    found, asked = layers(dtype)
    assert asked == [dtype, dtype] and {spec.kv_cache_dtype for spec in found.specs.values()} == {dtype}
    assert {page.size_bytes for page in found.pages(8).values()} == {size_bytes}
    caches = host_caches([["a", "b"]], found.shapes(5, 8), {"a": dtype, "b": dtype})
    assert caches["a"].dtype == host and caches["a"].nbytes == 5 * size_bytes
    assert np.shares_memory(caches["a"], caches["b"]) and caches["a"].ctypes.data % 64 == 0


def test_auto_is_what_the_backend_prefers():
    found, asked = layers("auto")
    assert asked == ["float32", "float32"]  # whether a backend serves is asked before what it prefers
    assert {spec.kv_cache_dtype for spec in found.specs.values()} == {BYTES}


@pytest.mark.skipif(platform.system() != "Linux", reason="memory is read from /proc")
def test_caches_take_no_memory_before_they_are_used():
    code = """
import re
from pathlib import Path
from modulm.worker.kv_memory import host_caches

def resident_kib():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

names = [f"layer{n}" for n in range(30)]
bytearray(30 << 20)  # glibc has seen large pieces come and go, as when weights are loaded: the next are of its heap
before = resident_kib()
shapes, dtypes = dict.fromkeys(names, (6 << 20,)), dict.fromkeys(names, "int8_per_token_head")
caches = host_caches([[name] for name in names], shapes, dtypes)
assert len({cache.ctypes.data for cache in caches.values()}) == 30
assert all(cache.ctypes.data % (2 << 20) == 0 for cache in caches.values())
spans = sorted((cache.ctypes.data, cache.nbytes) for cache in caches.values())
assert all(start + size <= following for (start, size), (following, _) in zip(spans, spans[1:]))
print(resident_kib() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert int(done.stdout) < 1024
