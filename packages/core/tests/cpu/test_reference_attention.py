"""What the contract does not ask of core's attention: it computes in pieces of bounded size.

That it keeps the contract, against dense attention in float64, says `test_core_conformance.py`.
"""

import numpy as np
import pytest

from modulm.interfaces.attention import AttentionSpec
from modulm.reference import attention_torch
from modulm.reference.attention_torch import TorchAttention
from modulm_testkit.paged import PagedBatch

WORK = [(20, 7), (33, 1), (12, 12), (1, 1), (18, 1), (40, 39)]
SPECS = {
    "plain": {},
    "window": {"sliding_window": 5},
    "everything": {"sliding_window": 7, "soft_cap": 2.0, "has_sinks": True, "has_alibi": True},
}


def spec_of(**changes):
    return AttentionSpec(**{"num_heads": 6, "num_kv_heads": 2, "head_size": 10, "scale": 0.41, **changes})


@pytest.mark.parametrize("name", SPECS)
def test_equals_dense_attention_when_cut_into_pieces(name, monkeypatch):
    monkeypatch.setattr(attention_torch, "_PIECE", 100)
    batch = PagedBatch(TorchAttention(), spec_of(**SPECS[name]), WORK, block_size=8, shuffled=True)
    batch.write_history(forget=True)
    np.testing.assert_allclose(batch.run(), batch.expected(), rtol=1e-5, atol=1e-5)


def test_refuses_heads_that_are_no_whole_groups():
    answer = TorchAttention.supports(spec_of(kv_cache_dtype="nvfp4"))
    assert not answer and "head size 10 is no multiple of the 16 numbers" in answer.reason
