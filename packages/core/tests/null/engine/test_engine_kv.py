"""Blocks, names and groups, each by itself."""

import pytest

from modulm.engine.kv.groups import KVGroups
from modulm.engine.kv.pool import BlockPool
from modulm.engine.kv.prefix import chain_for
from modulm.types import Adapter


def _named(pool, *names):
    blocks = pool.allocate(len(names))
    for block, name in zip(blocks, names, strict=True):
        assert pool.name(block, (0, name))
    return blocks


def test_the_null_block_is_never_handed_out():
    pool = BlockPool(5)
    assert sorted(pool.allocate(4)) == [1, 2, 3, 4]
    assert pool.num_free == 0


def test_unnamed_blocks_go_first_then_the_longest_unused():
    pool = BlockPool(5)
    a, b, c = _named(pool, b"a", b"b", b"c")
    for block in (b, a, c):
        pool.release(block)
    assert pool.num_free == 4
    pool.share(b)
    pool.release(b)  # used again: now the newest
    unnamed, *evicted = pool.allocate(3)
    assert unnamed not in (a, b, c)
    assert evicted == [a, c]
    assert pool.find((0, b"b")) == b
    assert pool.find((0, b"a")) is None


def test_the_first_block_of_a_name_keeps_it():
    pool = BlockPool(5)
    (first,) = _named(pool, b"a")
    (second,) = pool.allocate(1)
    assert not pool.name(second, (0, b"a"))
    pool.release(second)
    assert pool.find((0, b"a")) == first


@pytest.mark.parametrize("is_free", [False, True])
def test_an_unnamed_block_is_found_no_more_and_not_lost(is_free):
    pool = BlockPool(3)
    (block,) = _named(pool, b"a")
    if is_free:
        pool.release(block)
    pool.unname(block)
    pool.unname(block)
    assert pool.find((0, b"a")) is None
    assert pool.num_free == (2 if is_free else 1)
    assert pool.allocate(pool.num_free)


def _seeds(sim, *, prefix_caching=True, **options):
    chain = chain_for(sim.make_request("r", [1, 2, 3, 4], **options), 2, prefix_caching=prefix_caching)
    return chain and tuple(chain.extend([1, 2, 3, 4], 4))


def test_whatever_decides_the_contents_decides_the_names(sim):
    adapters = [Adapter(name="same", key=key, path="p") for key in ("1", "2")]
    chains = [
        _seeds(sim),
        _seeds(sim, adapter=adapters[0]),
        _seeds(sim, adapter=adapters[1]),  # H1: one name, other contents
        _seeds(sim, cache_salt="1"),
        _seeds(sim, cache_salt="2"),
        _seeds(sim, adapter=adapters[0], cache_salt="1"),
        _seeds(sim, prefix_caching=False, fanout_salt="1"),
    ]
    assert len({chain[0] for chain in chains}) == len({chain[1] for chain in chains}) == len(chains)
    assert _seeds(sim, fanout_salt="1") == _seeds(sim)
    assert _seeds(sim, prefix_caching=False) is None


def test_a_chain_names_full_blocks_once_and_as_they_fill(sim):
    tokens = list(range(11))
    grown = chain_for(sim.make_request("r", tokens), 4, prefix_caching=True)
    for end in range(12):
        assert len(grown.extend(tokens, end)) == end // 4
    at_once = chain_for(sim.make_request("s", tokens), 4, prefix_caching=True).extend(tokens, 11)
    assert grown.hashes == at_once
    assert len(set(at_once)) == 2


def _groups_with(sim, windows, found, num_blocks=60):
    """Block size 2 and ten blocks' hashes; per group, the indices of those the cache has."""
    kv = KVGroups(sim.make_layout(2, num_blocks, windows))
    hashes = [bytes([i]) for i in range(10)]
    for g, indices in enumerate(found):
        for i in indices:
            (block,) = kv.pool.allocate(1)
            kv.pool.name(block, (g, hashes[i]))
            kv.pool.release(block)
    return kv, hashes


@pytest.mark.parametrize(
    ("windows", "found", "num_hit"),
    [
        ((None,), [range(10)], 10),
        ((None,), [[0, 1, 2, 4, 5]], 3),
        ((5,), [[3, 4]], 5),  # positions 6 .. 9 serve a query at 10
        ((6,), [[3, 4]], 0),  # position 5 is missing
        ((6,), [[2, 3, 4, 6, 7, 8, 9]], 10),
        ((6,), [[2, 3, 4, 6, 7]], 5),
        ((6,), [[0, 1]], 2),  # the beginning needs no more than there is
        ((1,), [[]], 10),  # a query that sees only itself needs nothing before it
        ((None, 5), [range(8), [0, 1, 2, 5, 6, 9]], 7),
        ((None, 5), [range(6), [5, 6]], 0),
        ((5, 3), [[1, 2, 5, 6], [2, 6]], 7),
        ((5, 3), [[1, 2, 5, 6], [2]], 3),
        ((), [], 0),
    ],
)
def test_a_hit_is_as_long_as_all_groups_can_serve(sim, windows, found, num_hit):
    kv, hashes = _groups_with(sim, windows, found)
    tables = kv.longest_hit(hashes, 10)
    assert tables.num_blocks == num_hit
    for table, window in zip(tables.groups, windows, strict=True):
        first = 0 if window is None else max(0, num_hit * 2 - window + 1) // 2
        assert [block != 0 for block in table] == [i >= first for i in range(num_hit)]
    assert kv.longest_hit(hashes, 1).num_blocks <= 1


def test_blocks_outside_the_window_are_freed_as_the_sequence_grows(sim):
    kv = KVGroups(sim.make_layout(2, 60, (None, 3)))
    tables = kv.longest_hit([], 0)
    kv.begin(tables)
    for start in range(20):
        kv.extend(tables, start, start + 1)
    assert [block != 0 for block in tables.groups[1]] == [False] * 8 + [True] * 2
    assert all(tables.groups[0])
    assert kv.pool.num_usable - kv.pool.num_free == 12 <= kv.peak(20, 1)
    kv.release(tables)
    assert kv.pool.num_free == kv.pool.num_usable


@pytest.mark.parametrize("windows", [(None,), (3,), (4,), (1,), (2, None), (7, 3)])
@pytest.mark.parametrize("chunk", [1, 2, 5, 8])
def test_the_peak_is_an_upper_bound_and_is_reached_by_full_attention(sim, windows, chunk):
    for size in (1, 2, 3):
        kv = KVGroups(sim.make_layout(size, 500, windows))
        tables, most = kv.longest_hit([], 0), 0
        for start in range(0, 41, chunk):
            assert kv.extend(tables, start, min(41, start + chunk)) is not None
            most = max(most, kv.pool.num_usable - kv.pool.num_free)
        assert most <= kv.peak(41, chunk)
        if windows == (None,):
            assert most == kv.peak(41, chunk)


def test_the_longest_sequence_is_the_longest_that_fits(sim):
    kv = KVGroups(sim.make_layout(4, 11, (None, 6)))
    longest = kv.longest_sequence(8, 1000)
    assert kv.peak(longest, 8) <= 10 < kv.peak(longest + 1, 8)
    assert kv.longest_sequence(8, 5) == 5
