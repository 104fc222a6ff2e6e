"""Reference attention against dense attention in float64, with NaN wherever nothing may be read."""

import numpy as np
import pytest
import torch

from modulm.interfaces.attention import AttentionSpec, BatchLayout
from modulm.reference import attention_torch
from modulm.reference.attention_torch import TorchAttention

SPECS = {
    "plain": {},
    "one kv head": {"num_kv_heads": 1},
    "all kv heads": {"num_kv_heads": 6},
    "window": {"sliding_window": 5},
    "window of one": {"sliding_window": 1},
    "wide window": {"sliding_window": 1000},
    "soft cap": {"soft_cap": 1.5},
    "sinks": {"has_sinks": True},
    "alibi": {"has_alibi": True},
    "everything": {"sliding_window": 7, "soft_cap": 2.0, "has_sinks": True, "has_alibi": True},
}
SEQUENCES = {
    "prefill": [(1, 1), (7, 7), (23, 23)],
    "decode": [(1, 1), (33, 1), (8, 1), (9, 1), (64, 1)],
    "chunks": [(20, 7), (41, 2), (16, 8)],
    "mixed": [(20, 7), (33, 1), (12, 12), (1, 1), (18, 1), (40, 39)],
}
BLOCK = 8


def spec_of(**changes):
    return AttentionSpec(**{"num_heads": 6, "num_kv_heads": 2, "head_size": 10, "scale": 0.41, **changes})


class Case:
    """Random sequences, shuffled blocks. `work` holds (length after the step, tokens of the step)."""

    def __init__(self, spec, work, seed=0):
        rng = np.random.default_rng(seed)
        self.spec, self.work = spec, work
        sizes = [
            (spec.num_heads, spec.head_size),
            (spec.num_kv_heads, spec.head_size),
            (spec.num_kv_heads, spec.head_size),
        ]
        self.sequences = [[rng.normal(size=(length, *size)) for size in sizes] for length, _ in work]
        self.sinks = torch.from_numpy(rng.normal(size=spec.num_heads)) if spec.has_sinks else None
        self.slopes = torch.from_numpy(rng.uniform(0.05, 0.5, spec.num_heads)) if spec.has_alibi else None
        widest = max(-(-length // BLOCK) for length, _ in work)
        blocks = list(rng.permutation(np.arange(1, 1 + widest * len(work))))
        shape = TorchAttention.kv_cache_shape(1 + len(blocks), BLOCK, spec.num_kv_heads, spec.head_size)
        self.cache = torch.full(shape, torch.nan)
        self.table = np.zeros((len(work), widest + 2), np.int32)
        for row, (length, count) in zip(self.table, work, strict=True):
            for index in range(-(-length // BLOCK)):
                row[index] = blocks.pop()
            if spec.sliding_window is not None:
                freed = max(0, length - count - spec.sliding_window + 1) // BLOCK
                row[:freed] = 0

    def run(self):
        slots, parts = [], [[], [], []]
        flat = self.cache.flatten(0, 1)
        for row, (length, count), tensors in zip(self.table, self.work, self.sequences, strict=True):
            own = [row[p // BLOCK] * BLOCK + p % BLOCK for p in range(length)]
            slots += own[length - count :]
            for part, tensor in zip(parts, tensors, strict=True):
                part.append(torch.from_numpy(tensor[length - count :]).float())
            for position, slot in enumerate(own[: length - count]):
                if slot >= BLOCK:  # not the null block
                    flat[slot] = torch.from_numpy(np.stack([t[position] for t in tensors[1:]])).float()
        layout = BatchLayout(
            query_start=np.cumsum([0, *(count for _, count in self.work)], dtype=np.int32),
            seq_lens=np.array([length for length, _ in self.work], np.int32),
            block_table=self.table,
            slot_mapping=np.array(slots, np.int64),
            block_size=BLOCK,
        )
        self.slots = slots
        backend = TorchAttention()
        metadata = backend.plan(layout, torch.device("cpu"))
        tensors = [torch.cat(part) for part in parts]
        return backend.forward(
            self.spec, *tensors, self.cache, metadata, sinks=self.sinks, alibi_slopes=self.slopes
        ).numpy()

    def oracle(self):
        return np.concatenate([self._dense(*t)[n - c :] for t, (n, c) in zip(self.sequences, self.work, strict=True)])

    def _dense(self, query, key, value):
        """One token and head at a time, as the definition reads."""
        spec, out = self.spec, np.zeros_like(query)
        for p in range(len(query)):
            first = 0 if spec.sliding_window is None else max(0, p - spec.sliding_window + 1)
            for head in range(spec.num_heads):
                shared = head // (spec.num_heads // spec.num_kv_heads)
                scores = key[first : p + 1, shared] @ query[p, head] * spec.scale
                if spec.soft_cap is not None:
                    scores = spec.soft_cap * np.tanh(scores / spec.soft_cap)
                if self.slopes is not None:
                    scores = scores + self.slopes[head].item() * (np.arange(first, p + 1) - p)
                extra = [] if self.sinks is None else [self.sinks[head].item()]
                weights = np.exp(np.concatenate([scores, extra]))
                out[p, head] = (weights / weights.sum())[: len(scores)] @ value[first : p + 1, shared]
        return out


@pytest.mark.parametrize("work", SEQUENCES)
@pytest.mark.parametrize("name", SPECS)
def test_equals_dense_attention(name, work):
    case = Case(spec_of(**SPECS[name]), SEQUENCES[work])
    np.testing.assert_allclose(case.run(), case.oracle(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["plain", "window", "everything"])
def test_equals_dense_attention_when_cut_into_pieces(name, monkeypatch):
    monkeypatch.setattr(attention_torch, "_PIECE", 100)
    case = Case(spec_of(**SPECS[name]), SEQUENCES["mixed"])
    np.testing.assert_allclose(case.run(), case.oracle(), rtol=1e-5, atol=1e-5)


def test_writes_only_this_steps_slots():
    case = Case(spec_of(), SEQUENCES["mixed"])
    before = case.cache.clone()
    case.run()
    written = set(np.flatnonzero(case.cache.flatten(0, 1).isfinite().all(dim=(1, 2, 3)).numpy()))
    known = {
        int(row[p // BLOCK] * BLOCK + p % BLOCK)
        for row, (length, _) in zip(case.table, case.work, strict=True)
        for p in range(length)
    }
    assert before.isnan().all()
    assert written == known


def test_sequences_of_one_step_may_share_blocks():
    """The second starts with the first one's tokens, which are written in the same step."""
    case = Case(spec_of(), [(16, 16), (21, 5)])
    case.table[1, :2] = case.table[0, :2]
    for first, second in zip(case.sequences[0], case.sequences[1], strict=True):
        second[:16] = first
    np.testing.assert_allclose(case.run(), case.oracle(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_queries_and_caches(dtype):
    case = Case(spec_of(), SEQUENCES["decode"])
    for tensors in case.sequences:
        tensors[:] = [torch.from_numpy(t).to(dtype).double().numpy() for t in tensors]
    case.cache = case.cache.to(dtype)
    np.testing.assert_allclose(case.run(), case.oracle(), rtol=1e-5, atol=1e-5)


def test_refuses_caches_with_scales():
    answer = TorchAttention.supports(spec_of(kv_cache_dtype="int8_per_token_head"))
    assert not answer and "none of float32, bfloat16, float16" in answer.reason
