"""Attention backends that are wrong in one way each, made of core's."""

from dataclasses import replace

import numpy as np
import torch
from contract import Contract

from modulm.interfaces.support import Rejected
from modulm.reference.attention_torch import TorchAttention
from modulm_testkit.attention import AttentionConformance

attention = Contract("attention", AttentionConformance, "backend", TorchAttention)
attention.also("an object", TorchAttention())
mutant = attention.mutant


class Wrong(TorchAttention):
    """Core's backend, with `change(spec, layout)` of the layer and `spoil` of the result."""

    def forward(self, spec, query, key, value, kv_cache, metadata, *, sinks=None, alibi_slopes=None):
        changed, tables = self.change(spec, metadata.layout), self.tables(spec, metadata.layout)
        if tables is not None:
            metadata = self.plan(replace(metadata.layout, block_table=tables), metadata.device)
        if not changed.has_sinks:
            sinks = None
        if not changed.has_alibi:
            alibi_slopes = None
        out = super().forward(changed, query, key, value, kv_cache, metadata, sinks=sinks, alibi_slopes=alibi_slopes)
        return self.spoil(out, spec, metadata.layout, query, kv_cache)

    def change(self, spec, layout):
        return spec

    def tables(self, spec, layout):
        return None

    def spoil(self, out, spec, layout, query, kv_cache):
        return out


def options(spec):
    return {
        name
        for name in ("sliding_window", "soft_cap", "has_sinks", "has_alibi")
        if getattr(spec, name) not in (None, False)
    }


def counts(layout):
    return np.diff(layout.query_start)


def is_forgotten(layout):
    """Whether some sequence's first block is the null block."""
    return bool((layout.block_table[:, 0] == 0).any())


@mutant("test_supports_always_answers")
class LooksDtypesUp(TorchAttention):
    """`supports` raises KeyError for a dtype that it does not know."""

    @classmethod
    def supports(cls, spec):
        {"float32": 4, "bfloat16": 2, "float16": 2}[spec.dtype]
        return super().supports(spec)


@mutant("test_serves_something")
class ServesNothing(TorchAttention):
    """It rejects every layer."""

    @classmethod
    def supports(cls, spec):
        return Rejected("no kernel was built")


@mutant("test_cache_has_a_row_for_each_block")
class TwoBlocksAtLeast(TorchAttention):
    """The cache of one block has room for two."""

    @classmethod
    def kv_cache_shape(cls, num_blocks, *args, **options):
        return super().kv_cache_shape(max(2, num_blocks), *args, **options)


@mutant("test_prefers_a_cache_that_it_supports")
class PrefersWhatItRejects(TorchAttention):
    """It prefers a cache of 8-bit floats, which it rejects."""

    @classmethod
    def preferred_kv_cache_dtype(cls, spec):
        return "float8"


@mutant("test_prefill")
class ReversesPrompts(Wrong):
    """A step of nothing but prompts gives its results in reverse order."""

    def spoil(self, out, spec, layout, query, kv_cache):
        return out.flip(0) if (layout.seq_lens == counts(layout)).all() else out


@mutant("test_decode")
class ForgetsTheFirstToken(Wrong):
    """A step of nothing but single tokens leaves out the longest sequence's first position."""

    def change(self, spec, layout):
        alone = (counts(layout) == 1).all() and not options(spec)
        return replace(spec, sliding_window=int(layout.seq_lens.max()) - 1) if alone else spec


@mutant("test_chunked_prefill")
class SeesOnlyTheChunk(Wrong):
    """Parts of prompts do not see what earlier steps left in the cache."""

    def change(self, spec, layout):
        are_parts = (counts(layout) > 1).all() and (counts(layout) < layout.seq_lens).all()
        return replace(spec, sliding_window=1) if are_parts and not options(spec) else spec


@mutant("test_mixed_batch")
class SortsDecodingFirst(Wrong):
    """In large batches the results of decoding sequences come first."""

    def spoil(self, out, spec, layout, query, kv_cache):
        each = counts(layout)
        if len(each) < 5 or len(set(each)) < 3 or (each == layout.seq_lens).all():
            return out
        return out[np.argsort(np.repeat(each, each) > 1, kind="stable")]


@mutant("test_grouped_heads")
class InterleavesHeads(TorchAttention):
    """Query head h uses key head h % num_kv_heads."""

    def forward(self, spec, query, *args, **rest):
        if options(spec):
            return super().forward(spec, query, *args, **rest)
        order = np.arange(spec.num_heads).reshape(-1, spec.num_kv_heads).T.reshape(-1)
        return super().forward(spec, query[:, order], *args, **rest)[:, np.argsort(order)]


@mutant("test_head_sizes")
class CutsWideHeads(Wrong):
    """Columns from the 64th on stay zero."""

    def spoil(self, out, spec, layout, query, kv_cache):
        out[..., 64:] = 0
        return out


@mutant("test_scale")
class HasItsOwnScale(Wrong):
    """Scores are multiplied by head_size ** -0.5, whatever the layer says."""

    def change(self, spec, layout):
        return replace(spec, scale=spec.head_size**-0.5) if spec.scale < 1 else spec


@mutant("test_sliding_window")
class SeesOneMore(Wrong):
    """A window of w shows w + 1 positions."""

    def change(self, spec, layout):
        alone = options(spec) == {"sliding_window"} and not is_forgotten(layout)
        return replace(spec, sliding_window=spec.sliding_window + 1) if alone else spec


@mutant("test_reads_nothing_behind_the_window")
class MultipliesByZero(Wrong):
    """What is behind the window is read and has weight 0."""

    def spoil(self, out, spec, layout, query, kv_cache):
        return out + 0 * kv_cache[0].float().sum() if is_forgotten(layout) else out


@mutant("test_soft_cap")
class DoesNotCap(Wrong):
    """Scores are not capped."""

    def change(self, spec, layout):
        return replace(spec, soft_cap=None) if options(spec) == {"soft_cap"} else spec


@mutant("test_sinks")
class HasNoSinks(Wrong):
    """Sinks are left out of the denominator."""

    def change(self, spec, layout):
        return replace(spec, has_sinks=False) if options(spec) == {"has_sinks"} else spec


@mutant("test_alibi")
class LikesTheDistant(TorchAttention):
    """The bias grows with the distance."""

    def forward(self, spec, *args, alibi_slopes=None, **rest):
        if options(spec) == {"has_alibi"}:
            alibi_slopes = -alibi_slopes
        return super().forward(spec, *args, alibi_slopes=alibi_slopes, **rest)


@mutant("test_options_together")
class CapsOrBiases(Wrong):
    """With a soft cap there is no ALiBi."""

    def change(self, spec, layout):
        return replace(spec, has_alibi=False) if {"soft_cap", "has_alibi"} <= options(spec) else spec


@mutant("test_block_sizes")
class NeedsPowersOfTwo(Wrong):
    """Positions are taken apart by shifts: other block sizes give noise."""

    def spoil(self, out, spec, layout, query, kv_cache):
        return 2 * out if layout.block_size & (layout.block_size - 1) else out


@mutant("test_shuffled_blocks")
class TakesBlocksInARow(Wrong):
    """A sequence's blocks are taken to follow its first one."""

    def tables(self, spec, layout):
        table, shared = layout.block_table, len(set(layout.block_table[:, 0])) < len(layout.block_table)
        if options(spec) or shared:
            return None
        used = -(-layout.seq_lens[:, None] // layout.block_size) > np.arange(table.shape[1])
        return np.where(used, np.minimum(table[:, :1] + np.arange(table.shape[1]), table.max()), 0).astype(np.int32)


@mutant("test_shared_blocks")
class OneSequenceAfterTheOther(TorchAttention):
    """Each sequence's keys are written just before it is computed."""

    def forward(self, spec, query, key, value, kv_cache, metadata, **extra):
        layout, out = metadata.layout, []
        for i, (first, last) in enumerate(zip(layout.query_start, layout.query_start[1:], strict=False)):
            one = replace(
                layout, query_start=np.array([0, last - first], np.int32), seq_lens=layout.seq_lens[i : i + 1],
                block_table=layout.block_table[i : i + 1], slot_mapping=layout.slot_mapping[first:last],
            )  # fmt: skip
            parts = (part[first:last] for part in (query, key, value))
            out.append(super().forward(spec, *parts, kv_cache, self.plan(one, metadata.device), **extra))
        return torch.cat(out)


@mutant("test_cache_dtypes")
class LosesNarrowValues(Wrong):
    """Values from a cache narrower than the queries lose a tenth."""

    def spoil(self, out, spec, layout, query, kv_cache):
        return 0.9 * out if spec.kv_cache_dtype != spec.dtype and spec.kv_scales is None else out


@mutant("test_cache_scales")
class HasOneScale(Wrong):
    """The first head's scales serve all heads."""

    def change(self, spec, layout):
        if spec.kv_scales is None:
            return spec
        key, value = spec.kv_scales.key[:1] * spec.num_kv_heads, spec.kv_scales.value[:1] * spec.num_kv_heads
        return replace(spec, kv_scales=replace(spec.kv_scales, key=key, value=value))


@mutant("test_output_has_the_dtype_of_queries")
class AnswersInFloat32(Wrong):
    """The result is float32, whatever the queries are."""

    def spoil(self, out, spec, layout, query, kv_cache):
        return out.float()


@mutant("test_takes_views")
class IgnoresStrides(TorchAttention):
    """Queries are read as if they were contiguous."""

    def forward(self, spec, query, *args, **rest):
        tokens, heads, size = query.shape
        return super().forward(spec, query.as_strided(query.shape, (heads * size, size, 1)), *args, **rest)


@mutant("test_leaves_its_arguments_as_they_are")
class ScalesQueriesInPlace(Wrong):
    """Queries are multiplied by the scale where they are."""

    def spoil(self, out, spec, layout, query, kv_cache):
        query.mul_(spec.scale)
        return out


@mutant("test_writes_only_the_slots_of_the_step")
class UsesTheNullBlock(Wrong):
    """The null block serves as scratch memory."""

    def spoil(self, out, spec, layout, query, kv_cache):
        kv_cache[0] = query.sum()
        return out


@mutant("test_one_plan_serves_all_layers")
class SpendsItsPlan(TorchAttention):
    """A plan is good for one layer; after that the result is zero."""

    def forward(self, spec, query, key, value, kv_cache, metadata, **extra):
        out = super().forward(spec, query, key, value, kv_cache, metadata, **extra)
        spent, metadata.spent = getattr(metadata, "spent", False), True
        return torch.zeros_like(out) if spent else out


@mutant("test_keeps_nothing_of_another_step")
class RemembersTheLastPlan(TorchAttention):
    """The plan that counts is the one made last."""

    def plan(self, layout, device):
        self.last = super().plan(layout, device)
        return self.last

    def forward(self, spec, query, key, value, kv_cache, metadata, **extra):
        return super().forward(spec, query, key, value, kv_cache, self.last, **extra)


@mutant("test_nan_stays_in_its_sequence")
class SpreadsNaN(Wrong):
    """Something of every query gets into every result."""

    def spoil(self, out, spec, layout, query, kv_cache):
        return out + 0 * query.sum()


@mutant("test_large_scores")
class Overflows(Wrong):
    """exp is taken of scores as they are."""

    def spoil(self, out, spec, layout, query, kv_cache):
        return out + 0 * torch.exp(query.abs().nan_to_num().max().float() * spec.scale).to(out.dtype)
