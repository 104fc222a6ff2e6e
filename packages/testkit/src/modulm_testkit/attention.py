"""Conformance of attention backends (`modulm.interfaces.attention`): numbers against float64, and what it may touch.

What a backend can do it says itself, through `supports`, which the engine asks as well: a test of what it rejects is
skipped with its reason. Where to look next: `paged.py`, which drives the backend.
"""

from dataclasses import replace
from itertools import product
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from modulm.config import EngineConfig, ModelConfig
from modulm.interfaces.attention import AttentionBackend, AttentionSpec
from modulm.interfaces.kv_cache import KV_CACHE_DTYPES, KVScales
from modulm.interfaces.support import Accepted, Rejected
from modulm_testkit.paged import PagedBatch, Work
from modulm_testkit.suite import Conformance, ask_for
from modulm_testkit.tolerances import tolerance

PREFILL: Work = [(1, 1), (7, 7), (33, 33), (16, 16)]
DECODE: Work = [(1, 1), (33, 1), (16, 1), (17, 1), (70, 1)]
CHUNKS: Work = [(20, 7), (41, 2), (36, 20)]
MIXED: Work = [(20, 7), (33, 1), (12, 12), (1, 1), (18, 1), (40, 39)]
SMALL: Work = [(20, 7), (33, 1), (12, 12), (18, 1)]
_DTYPES = ("float32", "bfloat16", "float16")
_HEAD_SIZES = (16, 10, 32, 64, 80, 128, 256)


class AttentionConformance(Conformance):
    """Give `backend`: the class that the entry point of `modulm.attention` names, or an object of it.

    Attributes:
        device: torch's device type that the backend runs on.
    """

    device: ClassVar[str] = "cpu"

    @pytest.fixture(name="backend")
    def _backend(self) -> Any:
        """Return the class, or an object of it."""
        ask_for("backend", "MyBackend")

    @pytest.fixture
    def accepted(self, backend: Any) -> "_Accepted":
        """The backend with the simplest layer that it accepts."""
        return _Accepted(backend, self.device)

    def test_supports_always_answers(self, backend: Any) -> None:
        """`supports` answers `Accepted` or `Rejected` with a reason, whatever it is asked; it never raises.

        The engine asks every installed backend about every layer of every model. What breaks it: a table look-up for a
        dtype or head size that nobody thought of.
        """
        odd: list[dict[str, Any]] = [
            {"head_size": 7},
            {"head_size": 4096},
            {"dtype": "float8"},
            {"kv_cache_dtype": "unheard-of"},
        ]
        odd += [{"num_kv_heads": 1}, {"device_type": "toaster"}, {"sliding_window": 1}, {"has_sinks": True}]
        for changes in [*odd, {"has_alibi": True, "soft_cap": 3.0}]:
            answer = backend.supports(replace(_plain(self.device), **changes))
            assert isinstance(answer, Accepted | Rejected), f"supports({changes}) answered {answer!r}"
            assert isinstance(answer, Accepted) or answer.reason, f"supports({changes}) rejects without a reason"
        assert not backend.supports(replace(_plain(self.device), kv_cache_dtype="unheard-of")), "no cache is like that"

    def test_serves_something(self, backend: Any) -> None:
        """It accepts a plain layer on its device; one that accepts nothing would pass everything below."""
        answers = {spec: backend.supports(spec) for spec in _plain_specs(self.device)}
        assert any(answers.values()), f"every plain layer is rejected: {next(iter(answers.values()))}"

    def test_cache_has_a_row_for_each_block(self, accepted: "_Accepted") -> None:
        """The first dimension of the cache's shape is the number of blocks, the others do not depend on it.

        The engine measures a block by asking for one, and frees blocks by their number.
        """
        spec = accepted.spec
        shapes = [
            accepted.backend.kv_cache_shape(count, 16, spec.num_kv_heads, spec.head_size, spec.kv_cache_dtype)
            for count in (1, 5, 9)
        ]
        assert [shape[0] for shape in shapes] == [1, 5, 9]
        assert shapes[0][1:] == shapes[1][1:] == shapes[2][1:]

    def test_prefers_a_cache_that_it_supports(self, accepted: "_Accepted") -> None:
        """`preferred_kv_cache_dtype` names a dtype with which `supports` accepts the same layer."""
        for dtype in _DTYPES:
            spec = replace(accepted.spec, dtype=dtype)
            if accepted.backend.supports(spec):
                wanted = accepted.backend.preferred_kv_cache_dtype(spec)
                answer = accepted.backend.supports(replace(spec, kv_cache_dtype=wanted))
                assert answer, f"it prefers {wanted!r} for {dtype} and rejects it: {answer}"

    def test_prefill(self, accepted: "_Accepted") -> None:
        """Whole prompts of several sequences: each token sees itself and what is before it, and no neighbour."""
        accepted.check(PREFILL)

    def test_decode(self, accepted: "_Accepted") -> None:
        """One token of each of several sequences, with histories that end anywhere in a block."""
        accepted.check(DECODE)

    def test_chunked_prefill(self, accepted: "_Accepted") -> None:
        """The next part of a prompt sees what earlier steps left in the cache."""
        accepted.check(CHUNKS)

    def test_mixed_batch(self, accepted: "_Accepted") -> None:
        """Prompts, parts of prompts and single tokens in one step, in any order; results come in the order of tokens.

        What breaks it: sorting decoding sequences first and not sorting back.
        """
        accepted.check(MIXED)

    @pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(6, 2), (4, 1), (9, 3)])
    def test_grouped_heads(self, accepted: "_Accepted", num_heads: int, num_kv_heads: int) -> None:
        """Neighbouring query heads share a key and value head: head h uses h // (num_heads / num_kv_heads)."""
        accepted.check(SMALL, num_heads=num_heads, num_kv_heads=num_kv_heads)

    @pytest.mark.parametrize("head_size", [size for size in _HEAD_SIZES if size not in (16,)])
    def test_head_sizes(self, accepted: "_Accepted", head_size: int) -> None:
        """Every head size that is accepted gives right numbers."""
        accepted.check([(20, 7), (18, 1)], head_size=head_size, scale=head_size**-0.5)

    def test_scale(self, accepted: "_Accepted") -> None:
        """Scores are multiplied by the layer's own scale, which need not be head_size ** -0.5."""
        accepted.check(SMALL, scale=0.41)

    @pytest.mark.parametrize("window", [1, 5, 16, 1000])
    def test_sliding_window(self, accepted: "_Accepted", window: int) -> None:
        """With a window of w a token sees w positions, itself among them."""
        accepted.check(SMALL, sliding_window=window)

    @pytest.mark.parametrize("work", [CHUNKS, DECODE], ids=["chunks", "decode"])
    def test_reads_nothing_behind_the_window(self, accepted: "_Accepted", work: Work) -> None:
        """Blocks behind a window are gone: the table names block 0 in their place, and what is there may be NaN.

        What breaks it: weights of 0 instead of values that are not read, since 0 * NaN is NaN.
        """
        accepted.need_blocks_in_one_piece()
        accepted.check(work, sliding_window=6, forget=True)

    def test_soft_cap(self, accepted: "_Accepted") -> None:
        """Scores become soft_cap * tanh(score / soft_cap) (Gemma 2)."""
        accepted.check(SMALL, soft_cap=1.5)

    def test_sinks(self, accepted: "_Accepted") -> None:
        """A learned logit for each head joins the softmax's denominator and adds nothing to the sum (gpt-oss)."""
        accepted.check(SMALL, has_sinks=True)

    def test_alibi(self, accepted: "_Accepted") -> None:
        """A slope for each head times the distance, which is negative for the past, is added to the scores."""
        accepted.check(SMALL, has_alibi=True)

    def test_options_together(self, accepted: "_Accepted") -> None:
        """All options that are accepted, at once, with shuffled blocks: scale, cap, bias, mask, sinks in that order."""
        options: dict[str, Any] = {}
        wanted = {"num_heads": 6, "sliding_window": 7, "soft_cap": 2.0, "has_sinks": True, "has_alibi": True}
        for name, value in wanted.items():
            if accepted.backend.supports(replace(accepted.spec, **{**options, name: value})):
                options[name] = value
        accepted.check(SMALL, shuffled=True, **options)

    @pytest.mark.parametrize("block_size", [1, 3, 8, 32, 100])
    def test_block_sizes(self, accepted: "_Accepted", block_size: int) -> None:
        """Blocks may have any number of tokens; the user chooses it."""
        accepted.check(SMALL, block_size=block_size)

    def test_shuffled_blocks(self, accepted: "_Accepted") -> None:
        """A sequence's blocks may lie anywhere in the cache, in any order."""
        accepted.check(SMALL, shuffled=True)

    def test_shared_blocks(self, accepted: "_Accepted") -> None:
        """All keys and values of a step are written before any is read: a sequence may begin with another's tokens.

        Prefix caching gives both the same blocks, also when the first one writes them in this very step.
        """
        batch = accepted.batch([(37, 5), (32, 32)])
        batch.table[0, :2] = batch.table[1, :2]
        for sequences in (batch.query, batch.key, batch.value):
            sequences[0][:32] = sequences[1]
        accepted.compare(batch.run(), batch.expected(), batch.spec)

    @pytest.mark.parametrize("kv_cache_dtype", KV_CACHE_DTYPES)
    def test_cache_dtypes(self, accepted: "_Accepted", kv_cache_dtype: str) -> None:
        """Every dtype of the cache that is accepted gives numbers as good as it can hold."""
        accepted.check(SMALL, kv_cache_dtype=kv_cache_dtype)

    @pytest.mark.parametrize("kv_cache_dtype", [name for name, kind in KV_CACHE_DTYPES.items() if kind.has_scales])
    def test_cache_scales(self, accepted: "_Accepted", kv_cache_dtype: str) -> None:
        """A layer's cache has the scales of its checkpoint, one for each head; what is too large is cut off.

        What breaks it: one scale for all heads, or for keys and values; infinity where the largest number belongs.
        """
        scales = KVScales(key=(0.021, 3e-5), value=(0.004, 0.33))
        accepted.check(SMALL, kv_cache_dtype=kv_cache_dtype, kv_scales=scales)

    @pytest.mark.parametrize("dtype", _DTYPES)
    def test_output_has_the_dtype_of_queries(self, accepted: "_Accepted", dtype: str) -> None:
        """Queries, keys and values come in the model's dtype, and so does the result."""
        batch = accepted.batch(SMALL, dtype=dtype)
        assert batch.forward(batch.tensors(), batch.plan()).dtype == getattr(torch, dtype)
        accepted.check(SMALL, dtype=dtype)

    def test_takes_views(self, accepted: "_Accepted") -> None:
        """Query, key and value may be parts of one product's rows, so not contiguous."""
        batch = accepted.batch(SMALL)
        batch.write_history()
        parts = batch.tensors()
        widths = [part[0].numel() for part in parts]
        views = torch.cat([part.flatten(1) for part in parts], dim=1).split(widths, dim=1)
        shaped = [view.unflatten(1, part.shape[1:]) for view, part in zip(views, parts, strict=True)]
        assert not any(view.is_contiguous() for view in shaped)
        found = batch.forward(shaped, batch.plan()).double().cpu().numpy()
        accepted.compare(found, batch.expected(), batch.spec)

    def test_leaves_its_arguments_as_they_are(self, accepted: "_Accepted") -> None:
        """Queries, keys, values and the step's layout are only read; the model and the other layers use them too."""
        batch = accepted.batch(SMALL)
        batch.write_history()
        layout, tensors = batch.layout(), batch.tensors()
        before = [tensor.clone() for tensor in tensors]
        arrays = {name: value.copy() for name, value in vars(layout).items() if isinstance(value, np.ndarray)}
        batch.forward(tensors, batch.plan(layout))
        for tensor, was in zip(tensors, before, strict=True):
            assert torch.equal(tensor, was)
        for name, array in arrays.items():
            np.testing.assert_array_equal(getattr(layout, name), array)

    def test_writes_only_the_slots_of_the_step(self, accepted: "_Accepted") -> None:
        """In the cache nothing changes but the shares of the step's tokens: other sequences live beside them."""
        accepted.need_blocks_in_one_piece()
        batch = accepted.batch(SMALL, shuffled=True)
        batch.write_history()
        before = _as_bytes(batch.cache)
        batch.run()
        changed = (_as_bytes(batch.cache) != before).reshape(batch.num_blocks, -1)
        slots = batch.layout().slot_mapping
        own = np.unique(slots // batch.block_size)
        others = np.setdiff1d(np.arange(batch.num_blocks), own)
        assert not changed[others].any(), "blocks changed in which the step has no slot"
        for block in own:
            share = int((slots // batch.block_size == block).sum())
            most = share * changed.shape[1] // batch.block_size
            assert changed[block].sum() <= most, f"block {block}: more changed than {share} tokens take"

    def test_one_plan_serves_all_layers(self, accepted: "_Accepted") -> None:
        """What `plan` returns is used for every layer of the step, each with a cache of its own."""
        layers = [accepted.batch(SMALL, seed=seed) for seed in range(3)]
        for layer in layers:
            layer.write_history()
        metadata = layers[0].plan()
        for layer in layers:
            found = layer.forward(layer.tensors(), metadata).double().cpu().numpy()
            accepted.compare(found, layer.expected(), layer.spec)

    def test_keeps_nothing_of_another_step(self, accepted: "_Accepted") -> None:
        """Two plans may be alive at once: what a step needs is in its own, not in the backend."""
        batches = [accepted.batch(work, seed=seed) for seed, work in enumerate((SMALL, SMALL[::-1]))]
        for batch in batches:
            batch.write_history()
        plans = [batch.plan() for batch in batches]
        for batch, plan in zip(batches, plans, strict=True):
            found = batch.forward(batch.tensors(), plan).double().cpu().numpy()
            accepted.compare(found, batch.expected(), batch.spec)

    def test_nan_stays_in_its_sequence(self, accepted: "_Accepted") -> None:
        """NaN in one sequence reaches no other: a step has many users."""
        batch = accepted.batch(SMALL)
        batch.write_history()
        tensors = batch.tensors()
        rows = slice(7, 8)  # the second sequence's only token
        for tensor in tensors:
            tensor[rows] = torch.nan
        found = batch.forward(tensors, batch.plan()).double().cpu().numpy()
        kept = np.r_[0:7, 8 : len(found)]
        accepted.compare(found[kept], batch.expected()[kept], batch.spec)

    def test_large_scores(self, accepted: "_Accepted") -> None:
        """Scores in the hundreds overflow nothing: the softmax takes off the largest first."""
        accepted.check([(20, 7), (33, 1)], scale=100.0, far=10.0)


class _Accepted:
    """A backend with the simplest layer that it accepts; `check` skips what it rejects."""

    def __init__(self, backend: Any, device: str) -> None:
        specs = [spec for spec in _plain_specs(device) if backend.supports(spec)]
        if not specs:
            pytest.skip("it rejects every plain layer: see test_serves_something")
        self.backend: Any = backend
        self.spec = specs[0]
        self._made: dict[AttentionSpec, AttentionBackend] = {}

    def batch(
        self, work: Work, *, shuffled: bool = False, block_size: int = 16, seed: int = 0, **changes: Any
    ) -> PagedBatch:
        """Return a batch of a layer that differs from the simplest one, or skip if the backend rejects it."""
        if "dtype" in changes:
            changes.setdefault("kv_cache_dtype", changes["dtype"])
        spec = replace(self.spec, **changes)
        answer = self.backend.supports(spec)
        if isinstance(answer, Rejected):
            pytest.skip(f"it rejects {changes or 'this'}: {answer.reason}")
        return PagedBatch(self._of(spec), spec, work, shuffled=shuffled, block_size=block_size, seed=seed)

    def _of(self, spec: AttentionSpec) -> AttentionBackend:
        """Return the one object for all layers of a kind, made as the engine makes it."""
        if not isinstance(self.backend, type):
            return self.backend
        if spec not in self._made:
            chosen: Any = self.backend
            model = ModelConfig(name="tiny", hf={}, architectures=[], dtype=spec.dtype, max_model_len=256)
            self._made[spec] = chosen.create(spec, EngineConfig.make(model="tiny"), model)
        return self._made[spec]

    def need_blocks_in_one_piece(self) -> None:
        """Skip the test where a block cannot be told from the cache's shape."""
        if not self.backend.blocks_are_contiguous:
            pytest.skip("a block of its cache lies in several pieces")

    def check(self, work: Work, *, forget: bool = False, far: float = 1.0, **options: Any) -> None:
        """Compare a step with float64; the tolerance may be widened `far` times."""
        batch = self.batch(work, **options)
        batch.write_history(forget=forget)
        self.compare(batch.run(), batch.expected(), batch.spec, far)

    def compare(self, found: np.ndarray, wanted: np.ndarray, spec: AttentionSpec, far: float = 1.0) -> None:
        """Fail where they differ by more than the dtypes explain."""
        limit = far * tolerance(spec.dtype, spec.kv_cache_dtype, exact=spec.exact)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=limit)


def _plain(device: str, head_size: int = 16, dtype: str = "float32", *, exact: bool = True) -> AttentionSpec:
    return AttentionSpec(
        num_heads=2, num_kv_heads=2, head_size=head_size, scale=head_size**-0.5, dtype=dtype, kv_cache_dtype=dtype,
        device_type=device, exact=exact,
    )  # fmt: skip


def _plain_specs(device: str) -> list[AttentionSpec]:
    return [
        _plain(device, size, dtype, exact=exact) for dtype, size, exact in product(_DTYPES, _HEAD_SIZES, (True, False))
    ]


def _as_bytes(cache: torch.Tensor) -> np.ndarray:
    """Return the cache's numbers as integers, so that NaN equals itself: a copy, [num_blocks, ...]."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
    return cache.contiguous().view(kinds[cache.element_size()]).cpu().numpy().copy()
