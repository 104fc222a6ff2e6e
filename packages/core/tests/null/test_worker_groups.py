"""KV groups and block counts: hand-computed divisions, invariants under random models, messages with their numbers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modulm.config import EngineConfig
from modulm.errors import ConfigError
from modulm.interfaces.platform import Platform
from modulm.worker.groups import LayerPage, grouped
from modulm.worker.kv_budget import num_blocks

LENGTH = 4096


def pages(windows, size_bytes=1024):
    return {f"layer{i}": LayerPage(sliding_window=w, size_bytes=size_bytes) for i, w in enumerate(windows)}


def test_one_type_is_one_group():
    grouping = grouped(pages([None] * 3), LENGTH)
    assert [(g.sliding_window, len(g.layer_names)) for g in grouping.groups] == [(None, 3)]
    assert grouping.buffers == (("layer0",), ("layer1",), ("layer2",))
    assert grouping.block_bytes == 3 * 1024
    assert [g.sliding_window for g in grouped(pages([512] * 3), LENGTH).groups] == [512]


def test_gemma3_shares_buffers_between_five_sliding_groups_and_a_full_one():
    windows = [None if (i + 1) % 6 == 0 else 512 for i in range(24)]
    grouping = grouped(pages(windows), LENGTH)
    assert [(g.sliding_window, len(g.layer_names)) for g in grouping.groups] == [(512, 4)] * 5 + [(None, 4)]
    assert [len(names) for names in grouping.buffers] == [6] * 4
    assert grouping.block_bytes == 4 * 1024


def test_last_group_of_a_type_may_be_smaller():
    windows = [None if (i + 1) % 6 == 0 else 512 for i in range(26)]
    grouping = grouped(pages(windows), LENGTH)
    assert sorted(len(g.layer_names) for g in grouping.groups) == [2, 4, 4, 4, 4, 4, 4]
    assert grouping.block_bytes == 4 * 1024


def test_nearly_equal_counts_are_padded_instead_of_cut():
    grouping = grouped(pages([None, 512] * 12 + [None]), LENGTH)
    assert [len(g.layer_names) for g in grouping.groups] == [13, 12]


def test_windows_beyond_the_longest_sequence_are_none():
    grouping = grouped(pages([None, LENGTH]), LENGTH)
    assert [(g.sliding_window, len(g.layer_names)) for g in grouping.groups] == [(None, 2)]


def test_unequal_pages_make_one_group_that_frees_nothing():
    layers = pages([None, 512]) | {"wide": LayerPage(sliding_window=512, size_bytes=4096)}
    grouping = grouped(layers, LENGTH)
    assert [(g.sliding_window, g.layer_names) for g in grouping.groups] == [(None, ("layer0", "layer1", "wide"))]
    assert grouping.block_bytes == 1024 + 1024 + 4096


def test_blocks_that_lie_in_pieces_change_hands_where_the_pieces_are_the_same():
    apart = {f"apart{i}": LayerPage(sliding_window=w, size_bytes=1024, pieces="2") for i, w in enumerate([None, 512])}
    assert [g.sliding_window for g in grouped(apart, LENGTH).groups] == [None, 512]
    layers = pages([None, 512]) | {"pieces": LayerPage(sliding_window=512, size_bytes=1024, pieces="2")}
    grouping = grouped(layers, LENGTH)
    assert [(g.sliding_window, g.layer_names) for g in grouping.groups] == [(None, ("layer0", "layer1", "pieces"))]
    assert grouping.buffers == (("layer0",), ("layer1",), ("pieces",))


@given(st.lists(st.sampled_from([None, 128, 512]), min_size=1, max_size=40))
def test_every_layer_is_in_one_group_and_one_buffer(windows):
    layers = pages(windows)
    grouping = grouped(layers, LENGTH)
    assert sorted(n for g in grouping.groups for n in g.layer_names) == sorted(layers)
    assert sorted(n for names in grouping.buffers for n in names) == sorted(layers)
    for group in grouping.groups:
        assert {layers[n].sliding_window for n in group.layer_names} == {group.sliding_window}
    for names in grouping.buffers:
        owners = [next(i for i, g in enumerate(grouping.groups) if n in g.layer_names) for n in names]
        assert len(set(owners)) == len(owners), "two layers of one group in one buffer would overwrite each other"


class Machine(Platform):
    name = "machine"

    def __init__(self, total, free, device_type="cpu"):
        self.device_type = device_type
        self._total, self._free = total, free

    def device(self, index=0):
        raise NotImplementedError

    def available_memory_bytes(self, index=0):
        return self._free

    def total_memory_bytes(self, index=0):
        return self._total


GIB = 1 << 30


def count(grouping, platform=None, max_model_len=LENGTH, weights_bytes=0, **options):
    config = EngineConfig.make(model="m", **options)
    platform = platform or Machine(64 * GIB, 64 * GIB)
    return num_blocks(config, grouping, max_model_len=max_model_len, platform=platform, weights_bytes=weights_bytes)


def test_number_of_blocks_from_each_option():
    grouping = grouped(pages([None] * 4, size_bytes=2**20), LENGTH)
    assert count(grouping, num_kv_blocks=300, kv_cache_memory_bytes=1) == 300
    assert count(grouping, kv_cache_memory_bytes=8 * GIB) == 2048
    assert count(grouping, max_num_seqs=2) == 1 + 2 * LENGTH // 16
    assert count(grouping, max_num_seqs=64) == 4 * GIB // 2**22
    cuda = Machine(64 * GIB, 60 * GIB, "cuda")
    assert count(grouping, cuda, weights_bytes=2 * GIB, gpu_memory_utilization=0.5) == 30 * GIB // 2**22
    busy = Machine(64 * GIB, 10 * GIB, "cuda")
    assert count(grouping, busy, gpu_memory_utilization=0.9) == math.floor(9 * GIB / 2**22)


def test_too_small_names_all_numbers():
    grouping = grouped(pages([None] * 4, size_bytes=2**20), LENGTH)
    message = (
        "max_model_len=4096 does not fit: one sequence of that length needs 257 KV blocks of 16 tokens (1.00 GiB), "
        "and kv_cache_memory_bytes=419430400 gives 100 (0.39 GiB). The longest that fits has 1,584 tokens. "
        "Lower max_model_len or raise kv_cache_memory_bytes."
    )
    with pytest.raises(ConfigError) as caught:
        count(grouping, kv_cache_memory_bytes=400 * 2**20)
    assert str(caught.value) == message
    with pytest.raises(ConfigError, match="num_kv_blocks=256 gives 256"):
        count(grouping, num_kv_blocks=256)
    assert count(grouping, num_kv_blocks=257) == 257
    with pytest.raises(ConfigError, match="60.00 GiB taken by weights"):
        count(grouping, weights_bytes=60 * GIB)


def test_sliding_windows_need_fewer_blocks():
    grouping = grouped(pages([128] * 4), LENGTH)
    # 127 tokens before, 512 of a step, starting anywhere in a block: 41 blocks, and the null block.
    assert count(grouping, num_kv_blocks=42, max_num_batched_tokens=512) == 42
    with pytest.raises(ConfigError):
        count(grouping, num_kv_blocks=41, max_num_batched_tokens=512)
