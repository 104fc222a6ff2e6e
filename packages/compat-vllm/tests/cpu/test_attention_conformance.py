"""The example's backends, through what stands for them, pass the suite for attention backends: numbers in float64."""

import os
import sys

import pytest

from modulm.config import EngineConfig, ModelConfig
from modulm.interfaces.attention import AttentionBackend
from modulm_testkit.attention import AttentionConformance


class ForEachSpec(AttentionBackend):
    """The suite asks one object about many layers; the engine makes one for each kind."""

    def __init__(self, theirs):
        self.adapted, self.name, self.made = theirs.modulm_class(), theirs.get_name(), {}
        self.supports, self.kv_cache_shape = self.adapted.supports, self.adapted.kv_cache_shape

    supports = kv_cache_shape = None

    def plan(self, layout, device):
        return layout, device

    def forward(self, spec, query, key, value, kv_cache, metadata, **others):
        layout, device = metadata
        of = (spec, layout.block_size, id(kv_cache))
        if of not in self.made:
            model = ModelConfig(name="m", hf={}, architectures=["A"], max_model_len=64)
            backend = self.adapted.create(spec, EngineConfig(model="m", block_size=layout.block_size), model)
            self.made[of] = backend, kv_cache
        backend, _ = self.made[of]
        return backend.forward(spec, query, key, value, kv_cache, backend.plan(layout, device), **others)


@pytest.fixture
def examples(monkeypatch, installed):
    for folder in installed.split(os.pathsep):
        monkeypatch.syspath_prepend(folder)
    yield
    for name in [name for name in sys.modules if name.startswith("custom_attention")]:
        del sys.modules[name]


class TestNew(AttentionConformance):
    @pytest.fixture
    def backend(self, examples):
        from custom_attention.kernel import MyFlashAttnBackend

        return ForEachSpec(MyFlashAttnBackend)


@pytest.mark.conformance_xfail("test_reads_nothing_behind_the_window", reason="a block's bytes are not one row")
@pytest.mark.conformance_xfail("test_writes_only_the_slots_of_the_step", reason="a block's bytes are not one row")
class TestOld(AttentionConformance):
    @pytest.fixture
    def backend(self, examples):
        from custom_attention.old_kernel import MyOldAttnBackend

        return ForEachSpec(MyOldAttnBackend)
