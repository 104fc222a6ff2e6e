"""Packed weights share slabs of memory: each keeps its own numbers, and what nobody holds goes back to the system."""

import gc
import os
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from modulm.interfaces.quantization import GroupedInt
from modulm.reference.dequantize import dequantize
from modulm_kernels_cpu import _native
from modulm_kernels_cpu.packed_q4 import pack

STATM = Path("/proc/self/statm")
SLAB = 16 << 20


def weight(seed):
    work = np.random.default_rng(seed)
    scales = (work.random((256, 32), np.float32) + 0.5).astype(np.float16)
    codes = work.integers(0, 256, (256, 512), np.uint8)
    return GroupedInt(
        bits=4, out_features=256, in_features=1024, group_size=32, codes=codes, scales=scales, minimums=-scales
    )


def resident():
    return int(STATM.read_text().split()[1]) * 4096


@pytest.mark.skipif(not STATM.exists(), reason="needs /proc")
@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer keeps what is given back")
def test_weights_that_are_gone_leave_their_memory_and_their_neighbours_alone():
    first = weight(0)
    kept = pack(first, "exact")
    before = resident()
    for seed in range(12):
        many = [pack(weight(seed), "exact") for _ in range(120)]  # 20 MB
        assert len(many) == 120
    del many
    gc.collect()
    assert resident() - before < 3 * SLAB
    torch.testing.assert_close(kept.rows(torch.arange(256), torch.float32), dequantize(first, torch.float32))


@pytest.mark.skipif(sys.platform != "linux", reason="reads an ELF file")
def test_a_thread_that_calls_in_pays_for_no_room_it_does_not_use():
    """The system clears what is declared `thread_local` for each thread: it was 2.7 MB."""
    content = Path(_native.__file__).read_bytes()
    start, size, count = *struct.unpack_from("<Q", content, 32), *struct.unpack_from("<HH", content, 54)
    segments = [struct.unpack_from("<IIQQQQQQ", content, start + size * each) for each in range(count)]
    assert content[:5] == b"\x7fELF\x02" and count > 0
    assert sum(segment[6] for segment in segments if segment[0] == 7) < 65536  # PT_TLS
