"""Native attention against dense attention in float64, on every instruction set that runs here.

The cache holds NaN wherever nothing was written that the step may see, one of bytes in its scales; outputs begin as
NaN. A cache of 8-bit floats has scales by head, by which the largest numbers are cut off.
"""

import itertools

import byte_cache
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from modulm.interfaces.attention import AttentionSpec, BatchLayout
from modulm_kernels_cpu import _native
from modulm_kernels_cpu.attention import CPUAttention

ISAS = [name for name in ("generic", "avx2", "avxvnni", "avx512", "amx", "neon") if _native.can_run(name)]
FLOAT8 = {torch.float8_e4m3fn: "fp8_e4m3", torch.float8_e5m2: "fp8_e5m2"}
DTYPES = [torch.float32, torch.float16, torch.float8_e4m3fn, torch.int8]
OPTIONS = {
    "plain": {},
    "window of one": {"window": 1},
    "window": {"window": 37},
    "wide window": {"window": 1000},
    "soft cap": {"soft_cap": 1.5},
    "sinks": {"sinks": True},
    "alibi": {"alibi": True},
    "everything": {"window": 21, "soft_cap": 2.0, "sinks": True, "alibi": True},
}
SEQUENCES = {  # (tokens after the step, tokens of the step)
    "prefill": [(1, 1), (67, 67), (23, 23), (130, 130)],
    "decode": [(1, 1), (33, 1), (64, 1), (65, 1), (700, 1)],
    "chunks": [(20, 7), (300, 2), (141, 68), (16, 8)],
    "mixed": [(20, 7), (533, 1), (62, 62), (1, 1), (18, 1), (600, 39), (5, 0)],
}


class Case:
    """Sequences in shuffled blocks; table entries behind a window are stale."""

    def __init__(
        self, work, *, heads=(6, 2), size=16, block=16, dtype=torch.float32, window=0, soft_cap=0.0, sinks=False,
        alibi=False, exact=False, seed=0,
    ):  # fmt: skip
        rng = np.random.default_rng(seed)
        self.work, self.heads, self.size, self.block, self.dtype, self.exact = work, heads, size, block, dtype, exact
        self.window, self.soft_cap, self.scale = window, soft_cap, float(size**-0.5 * rng.uniform(0.8, 2.0))
        self.sinks = rng.normal(size=heads[0]).astype(np.float32) if sinks else None
        self.slopes = rng.uniform(0.05, 0.5, heads[0]).astype(np.float32) if alibi else None
        self.scales = [rng.uniform(*(1e-3, 0.02) if dtype in FLOAT8 else (1, 1), (heads[1], 1)) for _ in range(2)]
        self.scales = [one.astype(np.float32) * (2e-3 if dtype == torch.float8_e5m2 else 1) for one in self.scales]
        self.query = [rng.normal(size=(length, heads[0], size)).astype(np.float32) for length, _ in work]
        self.key, self.value = (
            [self.rounded(rng.normal(size=(length, heads[1], size)).astype(np.float32), part) for length, _ in work]
            for part in range(2)
        )
        self.counts = [-(-length // block) for length, _ in work]
        blocks = list(rng.permutation(np.arange(1, 4 + sum(self.counts))))
        if dtype == torch.int8:
            self.cache = torch.from_numpy(byte_cache.empty(1 + len(blocks), heads[1], block, size))
        else:
            self.cache = torch.full((1 + len(blocks), 2, heads[1], block, size), torch.nan, dtype=dtype)
            self.cache = self.cache.view(torch.uint8) if dtype in FLOAT8 else self.cache
        self.table = np.zeros((len(work), max(self.counts) + 2), np.int32)
        for row, count, (length, new) in zip(self.table, self.counts, work, strict=True):
            row[:count] = [blocks.pop() for _ in range(count)]
            if window:
                row[: max(0, length - new - window + 1) // block] = rng.choice([0, blocks[0]])
        self.spare = blocks

    def rounded(self, array, part):
        if self.dtype == torch.int8:
            return byte_cache.rounded(array)
        return self.stored(array, part).view(self.dtype).float().numpy() * self.scales[part]

    def stored(self, array, part):
        """Return [..., heads, size] as the cache holds it."""
        codes = torch.from_numpy(array / self.scales[part])
        if self.dtype not in FLOAT8:
            return codes.to(self.dtype)
        largest = torch.finfo(self.dtype).max
        return codes.clamp(-largest, largest).to(self.dtype).view(torch.uint8)

    def slot(self, sequence, position):
        return int(self.table[sequence, position // self.block]) * self.block + position % self.block

    def first_seen(self, position):
        return max(0, position - self.window + 1) if self.window else 0

    def keys(self):
        """The cache's keys, [num_blocks, heads, block, size], as a view; not of bytes."""
        shape = (len(self.cache), self.heads[1], self.size, self.block)
        return self.cache[:, 0].view(shape).transpose(2, 3)

    def put(self, block, offset, key, value):
        if self.dtype == torch.int8:
            byte_cache.put(self.cache.numpy(), block, offset, key, value)
        else:
            self.keys()[block, :, offset] = self.stored(key, 0)
            self.cache[block, 1, :, offset] = self.stored(value, 1)

    def contents(self):
        """Copies of keys, values and, where there are any, scales: [num_blocks, heads, block] come first."""
        if self.dtype != torch.int8:
            return [part.float().numpy().copy() for part in (self.keys(), self.cache[:, 1])]
        return [part[:, i] for part in byte_cache.contents(self.cache.numpy()) for i in (0, 1)]

    def fill(self):
        """Write what earlier steps left, as far as the step may see it."""
        for i, (length, new) in enumerate(self.work):
            for position in range(self.first_seen(length - new), length - new):
                self.put(*divmod(self.slot(i, position), self.block), self.key[i][position], self.value[i][position])

    def layout(self):
        slots = [self.slot(i, p) for i, (length, new) in enumerate(self.work) for p in range(length - new, length)]
        return BatchLayout(
            query_start=np.cumsum([0, *(new for _, new in self.work)], dtype=np.int32),
            seq_lens=np.array([length for length, _ in self.work], np.int32),
            block_table=self.table,
            slot_mapping=np.array(slots, np.int64),
            block_size=self.block,
        )

    def of_step(self, sequences):
        return np.concatenate([s[length - new :] for s, (length, new) in zip(sequences, self.work, strict=True)])

    def run(self, isa="", rope=(None, None)):
        self.fill()
        query, key, value = (self.of_step(sequences) for sequences in (self.query, self.key, self.value))
        room = np.full((len(query) + 2, *query.shape[1:]), np.nan, np.float32)
        room[[0, -1]] = 77.0
        out = room[1:-1]
        plan = CPUAttention().plan(self.layout(), torch.device("cpu"))
        capsule = torch.utils.dlpack.to_dlpack(self.cache)
        options = (self.scale, self.window, self.soft_cap, self.sinks, self.slopes, *rope, self.exact, isa)
        named = dict(zip(("key_scales", "value_scales"), (one[:, 0].copy() for one in self.scales), strict=True))
        named = {"cache_type": FLOAT8[self.dtype], **named} if self.dtype in FLOAT8 else {}
        plan.forward(query, key, value, capsule, out, *options, **named)
        assert (room[[0, -1]] == 77.0).all(), "written beside the output"
        return out

    def oracle(self):
        group = self.heads[0] // self.heads[1]
        out = []
        for query, key, value, (length, new) in zip(self.query, self.key, self.value, self.work, strict=True):
            key, value = (np.repeat(array.astype(np.float64), group, axis=1) for array in (key, value))
            scores = np.einsum("qhd,khd->hqk", query[length - new :].astype(np.float64), key) * self.scale
            if self.soft_cap:
                scores = self.soft_cap * np.tanh(scores / self.soft_cap)
            distance = np.arange(length) - np.arange(length - new, length)[:, None]
            if self.slopes is not None:
                scores += self.slopes[:, None, None] * distance
            hidden = (distance > 0) | (distance <= -self.window) if self.window else distance > 0
            scores = np.where(hidden, -np.inf, scores)
            largest = scores.max(-1, keepdims=True)
            weights = np.exp(scores - largest)
            extra = 0.0 if self.sinks is None else np.exp(self.sinks.astype(np.float64)[:, None, None] - largest)
            weights /= weights.sum(-1, keepdims=True) + extra
            out.append(np.einsum("hqk,khd->qhd", weights, value))
        return np.concatenate(out)


def tolerance(case, isa=""):
    """Beside bytes, queries and weights are of 16 bits. Prefill beside narrow floats rounds to 12 unless exact.

    In tiles weights and values are rounded to 8 bits, each by up to 2^-9 of itself.
    """
    if case.dtype == torch.int8:
        return 5e-4
    if case.dtype == torch.float32 or case.exact:
        return 2e-5
    in_tiles = isa == "amx" or (isa == "" and _native.isa() == "amx")
    return 2**-8 * max(np.abs(value).max() for value in case.value) if in_tiles else 1e-3


def check(case, isa=""):
    np.testing.assert_allclose(case.run(isa), case.oracle(), rtol=0, atol=tolerance(case, isa))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("work", SEQUENCES)
@pytest.mark.parametrize("name", OPTIONS)
def test_equals_dense_attention(name, work, dtype, isa):
    check(Case(SEQUENCES[work], dtype=dtype, **OPTIONS[name]), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block", [1, 3, 16, 32, 256])
@pytest.mark.parametrize("size", [8, 24, 64, 80, 128, 256])
@pytest.mark.parametrize("heads", [(9, 3), (4, 4), (8, 1)])
def test_all_shapes(heads, size, block, dtype, isa):
    check(Case([(67, 67), (90, 1), (41, 13)], heads=heads, size=size, block=block, dtype=dtype), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("dtype", "exact"),
    [*itertools.product([torch.bfloat16, torch.float16, *FLOAT8], [False, True]), (torch.int8, False)],
)
@pytest.mark.parametrize("block", [3, 16])
@pytest.mark.parametrize("heads", [(9, 3), (4, 4), (14, 2)])
def test_narrow_caches(heads, block, dtype, exact, isa):
    """Queries beside bytes are always rounded."""
    check(Case(SEQUENCES["mixed"], heads=heads, size=40, block=block, dtype=dtype, window=50, exact=exact), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", range(1, 68))
def test_every_number_of_tokens(tokens, dtype, isa):
    check(Case([(tokens, tokens), (tokens + 5, tokens)], size=8, block=16, dtype=dtype), isa)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_random_batches(data):
    pair = st.integers(1, 300).flatmap(lambda length: st.tuples(st.just(length), st.sampled_from([1, length, 0, 40])))
    work = [(length, min(new, length)) for length, new in data.draw(st.lists(pair, min_size=1, max_size=6))]
    case = Case(
        work,
        heads=data.draw(st.sampled_from([(9, 3), (4, 4), (8, 1), (10, 2)])),
        size=data.draw(st.sampled_from([8, 16, 24, 64])),
        block=data.draw(st.sampled_from([1, 3, 8, 16, 32])),
        dtype=data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16, *FLOAT8, torch.int8])),
        window=data.draw(st.sampled_from([0, 0, 1, 5, 64, 150])),
        soft_cap=data.draw(st.sampled_from([0.0, 3.0])),
        sinks=data.draw(st.booleans()),
        alibi=data.draw(st.booleans()),
        exact=data.draw(st.booleans()),
        seed=data.draw(st.integers(0, 1000)),
    )
    check(case, data.draw(st.sampled_from(ISAS)))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("block", [3, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, *FLOAT8, torch.int8])
def test_writes_only_this_steps_slots(dtype, block, isa):
    case = Case(SEQUENCES["mixed"], dtype=dtype, block=block)
    case.fill()
    before = case.contents()
    case.run(isa)
    written = {divmod(int(slot), case.block) for slot in case.layout().slot_mapping}
    kept = [(b, o) for b in range(len(case.cache)) for o in range(case.block) if (b, o) not in written]
    block, offset = (np.array(part) for part in zip(*kept, strict=True))
    for was, now in zip(before, case.contents(), strict=True):
        np.testing.assert_array_equal(now[block, :, offset], was[block, :, offset])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, *FLOAT8])
def test_narrows_as_torch_does(dtype, isa):
    """Numbers of every size: ties, subnormals, what overflows, infinities; 8 bits are saturated."""
    rng = np.random.default_rng(3)
    numbers = np.concatenate([
        rng.normal(size=4000) * 2.0 ** rng.integers(-30, 20, 4000),
        [0.0, -0.0, 65519.0, 65520.0, 65504.0, 3.4e38, np.inf, -np.inf, 2.0**-24, 2.0**-25, 3 * 2.0**-25, 1e-40],
        1.0 + np.arange(64) * 2.0**-12,
        *(np.arange(33) * 2.0**power for power in (-20, -13, -4, 0, 9, 12)),
        [np.nan],
    ]).astype(np.float32)  # fmt: skip
    count = len(numbers) // 8
    numbers = numbers[: count * 8].reshape(count, 1, 8)
    case = Case([(count, count)], heads=(1, 1), size=8, dtype=dtype)
    case.key = case.value = [numbers]
    case.scales = [np.ones((1, 1), np.float32)] * 2
    case.run(isa)
    slots = case.layout().slot_mapping
    expected = case.stored(numbers[:, 0], 0).view(dtype).float()
    for found in (case.keys()[:, 0].reshape(-1, 8)[slots], case.cache[:, 1, 0].reshape(-1, 8)[slots]):
        np.testing.assert_array_equal(found.view(dtype).float(), expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("count", [1, 40])
def test_reads_every_float_of_8_bits(count, dtype, isa):
    """One position alone has all the weight, so that its value is the result: each code, in heads of 256 numbers."""
    case = Case([(count, count)], heads=(1, 1), size=256, dtype=dtype, window=1, exact=True)
    codes = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    codes[~codes.isfinite()] = 0.0
    numbers = np.stack([np.roll(codes.numpy(), i) for i in range(count)])[:, None]
    case.value, case.scales = [numbers], [np.ones((1, 1), np.float32)] * 2
    np.testing.assert_array_equal(case.run(isa), numbers)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("count", [1, 40])
def test_what_is_not_a_number_is_seen_in_a_cache_of_8_bits(count, dtype, isa):
    """Of an earlier token: keys that are none spoil all that sees them, values their own column."""
    case = Case([(90, count)], heads=(3, 1), size=64, dtype=dtype)
    case.value[0][3, 0, 5] = np.nan
    out = case.run(isa)
    assert np.isnan(out[:, :, 5]).all()
    case = Case([(90, count)], heads=(3, 1), size=64, dtype=dtype)
    case.key[0][3, 0, 5] = np.nan
    assert np.isnan(case.run(isa)).all()


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa != "neon"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_value_that_is_no_number_spoils_nobody_who_does_not_see_it(dtype, value, isa):
    """Prefill of many rows, which are computed together with rows that see more; not where float32 multiplies."""
    case, clean = (Case([(150, 150)], heads=(3, 1), size=64, dtype=dtype, window=70) for _ in range(2))
    case.value[0][50, 0, 5] = value
    out, seeing = case.run(isa), slice(50, 50 + 70)
    assert np.isnan(out[seeing, :, 5]).all() or np.isinf(out[seeing, :, 5]).all()
    others = np.r_[:50, 50 + 70 : 150]
    np.testing.assert_allclose(out[others], clean.oracle()[others], rtol=0, atol=tolerance(clean, isa))


@pytest.mark.parametrize("isa", ISAS)
def test_rounds_to_the_nearest_byte(isa):
    """Heads of every magnitude; zeros, what is too small for a scale, and what is not finite."""
    rng = np.random.default_rng(4)
    numbers = rng.normal(size=(300, 1, 16)) * 2.0 ** rng.integers(-90, 120, (300, 1, 1))
    numbers[0], numbers[1] = 0.0, 1e-35
    numbers[2, 0, 3], numbers[3, 0, 4], numbers[4, 0, 5] = np.nan, np.inf, -np.inf
    numbers = numbers.astype(np.float32)
    case = Case([(300, 300)], heads=(1, 1), size=16, dtype=torch.int8)
    case.key, case.value = [numbers], [numbers[::-1]]
    case.run(isa)
    slots = case.layout().slot_mapping
    parts = [part[:, 0].reshape(-1, *part.shape[3:])[slots] for part in case.contents()]
    for codes, scales, wanted in ((parts[0], parts[2], numbers), (parts[1], parts[3], numbers[::-1])):
        wanted = wanted[:, 0].astype(np.float64)
        is_finite, is_seen = np.isfinite(wanted).all(-1), np.abs(wanted).max(-1) > 1e-30
        assert np.isinf(scales[~is_finite]).all() and (codes[~(is_finite & is_seen)] == 0).all()
        assert (scales[is_finite & ~is_seen] == 0).all()
        codes, scales, wanted = (a[is_finite & is_seen].astype(np.float64) for a in (codes, scales, wanted))
        np.testing.assert_allclose(scales, np.abs(wanted).max(-1) / 127, rtol=1e-7)
        assert (np.abs(codes).max(-1) == 127).all()
        assert (np.abs(codes * scales[:, None] - wanted) <= 0.5001 * scales[:, None]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_do_not_depend_on_threads(dtype, isa):
    threads, found = _native.num_threads(), []
    try:
        for count in (1, 2, 3):
            _native.set_num_threads(count)
            for _ in range(3):
                case = Case([(1500, 1), (400, 400), (900, 30), (3000, 1)], size=64, heads=(9, 3), dtype=dtype)
                found.append(case.run(isa))
    finally:
        _native.set_num_threads(threads)
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_do_not_depend_on_neighbours(dtype, isa):
    alone, among = Case([(1500, 1)], dtype=dtype), Case([(1500, 1), (400, 400), (7, 1)], dtype=dtype)
    for mine, theirs in ((alone.query, among.query), (alone.key, among.key), (alone.value, among.value)):
        theirs[0] = mine[0]
    among.scale = alone.scale
    np.testing.assert_array_equal(alone.run(isa)[0], among.run(isa)[0])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_decode_equals_the_last_row_of_prefill(dtype, isa):
    whole, last = Case([(700, 700)], size=64, dtype=dtype), Case([(700, 1)], size=64, dtype=dtype)
    np.testing.assert_allclose(whole.run(isa)[-1:], last.run(isa), rtol=0, atol=tolerance(whole, isa))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("count", [1, 40])
def test_bytes_keep_what_one_large_weight_leaves_the_others(count, isa):
    """The first token takes 3/4 of the weight, 2000 others share the rest: each has 1/6000 of the first's."""
    case = Case([(2000 + count, count)], heads=(1, 1), size=16, dtype=torch.int8)
    case.scale = 1.0
    for array in (case.query[0], case.key[0]):
        array[:] = 0.0
    case.query[0][:, 0, 0], case.key[0][0, 0, 0] = 1.0, np.log(6000.0)
    case.value[0][0] = 0.0
    case.value[0][1:] = byte_cache.rounded(np.abs(case.value[0][1:]))
    np.testing.assert_allclose(case.run(isa), case.oracle(), rtol=2e-3)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 2e-5), (torch.float16, 2e-3), (torch.int8, 0.05)])
@pytest.mark.parametrize("width", [8, 16])
def test_rotates_queries_and_keys_on_the_way(width, dtype, atol, isa):
    """What a rotation makes of bytes is no longer of bytes, so one step of them is lost."""
    work = [(80, 80), (300, 1), (50, 3)]
    plain, turned = Case(work, dtype=dtype), Case(work, dtype=dtype)
    tokens = sum(new for _, new in work)
    angles = np.random.default_rng(1).uniform(0, 6, (tokens, width // 2))
    angles = np.concatenate([angles, angles], axis=1)
    start = 0
    for i, (length, new) in enumerate(work):
        rows = slice(start, start := start + new)
        for sequences in (plain.query, plain.key):
            x = sequences[i][length - new :]
            first, second = x[..., : width // 2].copy(), x[..., width // 2 : width].copy()
            cos, sin = (f(angles[rows, None, : width // 2]) for f in (np.cos, np.sin))
            x[..., : width // 2], x[..., width // 2 : width] = first * cos - second * sin, second * cos + first * sin
    tables = (np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))
    atol = max(atol, tolerance(plain, isa))
    np.testing.assert_allclose(turned.run(isa, tables), plain.oracle(), rtol=0, atol=atol)


def test_sequences_of_one_step_may_share_blocks():
    case = Case([(32, 32), (37, 5)])
    case.table[1, :2] = case.table[0, :2]
    for sequences in (case.query, case.key, case.value):
        sequences[1][:32] = sequences[0]
    case.fill = lambda: None
    check(case)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("dtype", "factor"), [(torch.float32, 300.0), (torch.float16, 30.0), (torch.int8, 30.0)])
def test_large_scores_and_nan_stay_where_they_belong(dtype, factor, isa):
    case = Case([(100, 100), (90, 1)], dtype=dtype)
    case.query[0] *= factor
    case.query[1][-1, 2] = np.nan
    found, expected = case.run(isa), case.oracle()
    assert np.isnan(found[100, 2]).all()
    found[100, 2] = expected[100, 2]
    np.testing.assert_allclose(found, expected, rtol=0, atol=max(1e-2, tolerance(case, isa)))


def spec_of(**changes):
    return AttentionSpec(**{"num_heads": 6, "num_kv_heads": 2, "head_size": 16, "scale": 0.3, **changes})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_backend_takes_views_and_sixteen_bit_queries(dtype):
    """Queries, keys and values as they come out of one product: views of its rows."""
    case = Case([(20, 20), (70, 1)], sinks=True, alibi=True, soft_cap=4.0, window=30)
    case.query, case.key, case.value = (
        [torch.from_numpy(a).to(dtype).float().numpy() for a in s] for s in (case.query, case.key, case.value)
    )
    case.fill()
    parts = [torch.from_numpy(case.of_step(s)).to(dtype) for s in (case.query, case.key, case.value)]
    together = torch.cat([part.flatten(1) for part in parts], dim=1)
    query, key, value = (part.unflatten(1, (-1, 16)) for part in together.split([96, 32, 32], dim=1))
    backend = CPUAttention()
    spec = spec_of(scale=case.scale, soft_cap=4.0, sliding_window=30, has_sinks=True, has_alibi=True)
    out = backend.forward(
        spec, query, key, value, case.cache, backend.plan(case.layout(), torch.device("cpu")),
        sinks=torch.from_numpy(case.sinks).to(dtype), alibi_slopes=torch.from_numpy(case.slopes).double(),
    )  # fmt: skip
    case.sinks = torch.from_numpy(case.sinks).to(dtype).float().numpy()
    assert out.dtype == dtype
    step = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    np.testing.assert_allclose(out.float(), case.oracle(), rtol=0, atol=step)
