"""What stands for a backend written for vLLM: what it is told, how its cache lies in memory, what is refused."""

import numpy as np
import pytest
import torch
from vllm.config import get_current_vllm_config
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionMetadataBuilder, MultipleOf
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheLayout, SlidingWindowSpec

from modulm.config import EngineConfig, ModelConfig
from modulm.errors import Incompatible, Unsupported
from modulm.interfaces.attention import AttentionSpec, BatchLayout

SPEC = AttentionSpec(num_heads=4, num_kv_heads=2, head_size=8, scale=0.5)
LAYOUT = BatchLayout(
    query_start=np.array([0, 3, 4], np.int32),
    seq_lens=np.array([5, 9], np.int32),
    block_table=np.array([[3, 4, 0], [5, 6, 7]], np.int32),
    slot_mapping=np.array([14, 15, 16, 28], np.int64),
    block_size=4,
)


class Builder(AttentionMetadataBuilder):
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        assert get_current_vllm_config() is vllm_config

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        return common_prefix_len, common_attn_metadata


class Impl(AttentionImpl):
    made: list = []

    def __init__(self, *args):
        self.args, self.calls = args, []
        self.made.append(self)

    def process_weights_after_loading(self, act_dtype):
        self.calls.append(("loaded", act_dtype))

    def do_kv_cache_update(self, layer, key, value, kv_cache, slot_mapping):
        self.calls.append(("update", layer, key, value, kv_cache, slot_mapping))

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output):
        self.calls.append(("forward", layer, query, key, value, kv_cache, attn_metadata))
        output.copy_(query + 1)


class Backend(AttentionBackend):
    supported_dtypes = [torch.float32, torch.bfloat16]

    @staticmethod
    def get_name():
        return "THEIRS"

    @staticmethod
    def get_impl_cls():
        return Impl

    @staticmethod
    def get_builder_cls():
        return Builder


@pytest.fixture(autouse=True)
def made(monkeypatch):
    monkeypatch.setattr(Impl, "made", [])
    return Impl.made


def create(theirs=Backend, spec=SPEC, **options):
    config = EngineConfig(model="nobody/asks", **{"block_size": 4, **options})
    model = ModelConfig(name="m", hf={"num_attention_heads": 4}, architectures=["A"], max_model_len=64)
    return theirs.modulm_class().create(spec, config, model)


def cache(theirs=Backend, blocks=10):
    shape = theirs.modulm_class().kv_cache_shape(blocks, 4, 2, 8)
    return torch.arange(float(np.prod(shape))).view(shape)


def step(backend, kv_cache):
    query, key, value = torch.randn(4, 4, 8), torch.randn(4, 2, 8), torch.randn(4, 2, 8)
    plan = backend.plan(LAYOUT, torch.device("cpu"))
    return backend.forward(SPEC, query, key, value, kv_cache, plan), query, key, value


def test_it_is_built_and_called_as_vllm_does(made):
    backend, kv_cache, other = create(), cache(), cache()
    found, query, key, value = step(backend, kv_cache)
    assert torch.equal(found, query + 1)
    step(backend, kv_cache)
    step(backend, other)
    assert len(made) == 2, "an implementation for each layer"
    assert made[0].args == (4, 8, 0.5, 2, None, None, "auto", None, "decoder", None)
    kinds = [call[0] for call in made[0].calls]
    assert kinds == ["loaded", "forward", "forward"] and made[0].calls[0][1] is torch.float32
    _, layer, *tensors, (prefix, common) = made[0].calls[1]
    assert [torch.equal(*pair) for pair in zip(tensors[:3], (query, key, value), strict=True)] == [True] * 3
    assert (layer._k_scale_float, float(layer._v_scale), float(layer._q_scale)) == (1.0, 1.0, 1.0)
    assert prefix == 0
    assert common.query_start_loc.tolist() == common.query_start_loc_cpu.tolist() == [0, 3, 4]
    assert (common.seq_lens.tolist(), common.max_seq_len, common.max_query_len) == ([5, 9], 9, 3)
    assert (common.num_reqs, common.num_actual_tokens, common.causal) == (2, 4, True)
    assert common.block_table_tensor.tolist() == [[3, 4, 0], [5, 6, 7]]
    assert common.slot_mapping.tolist() == [14, 15, 16, 28]
    assert common.compute_num_computed_tokens().tolist() == [2, 8]
    dtypes = (common.seq_lens, common.block_table_tensor, common.slot_mapping)
    assert [t.dtype for t in dtypes] == [torch.int32, torch.int32, torch.int64]
    builder = backend._builder
    assert builder.kv_cache_spec == FullAttentionSpec(block_size=4, num_kv_heads=2, head_size=8, dtype=torch.float32)
    assert builder.vllm_config.model_config.get_num_attention_heads() == 4
    assert (builder.vllm_config.cache_config.block_size, builder.device.type) == (4, "cpu")


def test_a_cache_that_is_written_apart(made):
    class Apart(Backend):
        forward_includes_kv_cache_update = False

    kv_cache = cache(Apart)
    _, _, key, value = step(create(Apart), kv_cache)
    assert [call[0] for call in made[0].calls] == ["loaded", "update", "forward"]
    _, _, key_seen, value_seen, cache_seen, slots = made[0].calls[1]
    assert torch.equal(key_seen, key) and torch.equal(value_seen, value) and slots.tolist() == [14, 15, 16, 28]
    assert cache_seen.data_ptr() == kv_cache.data_ptr()


class Heads(Backend):
    @classmethod
    def supported_kv_cache_layouts(cls):
        return (KVCacheLayout.BHLNC, KVCacheLayout.LBHNC)


class Pieces(Backend):
    get_kv_cache_shape = staticmethod(lambda blocks, size, heads, width: (2, blocks, size, heads, width))


class Whole(Backend):
    get_kv_cache_shape = staticmethod(lambda blocks, size, heads, width, dtype="auto": (blocks, 2, size, heads, width))


class Ordered(Pieces):
    get_kv_cache_stride_order = staticmethod(lambda: (1, 0, 2, 3, 4))


@pytest.mark.parametrize(
    ("theirs", "memory", "seen", "strides", "is_by_block"),
    [
        (Backend, (10, 4, 2, 16), (10, 2, 4, 16), (128, 16, 32, 1), True),
        (Heads, (10, 2, 4, 16), (10, 2, 4, 16), (128, 64, 16, 1), True),
        (Pieces, (10, 2, 4, 2, 8), (2, 10, 4, 2, 8), (640, 64, 16, 8, 1), False),
        (Whole, (10, 2, 4, 2, 8), (10, 2, 4, 2, 8), (128, 64, 16, 8, 1), True),
        (Ordered, (10, 2, 4, 2, 8), (2, 10, 4, 2, 8), (64, 128, 16, 8, 1), True),
    ],
)
def test_the_cache_is_seen_as_the_backend_wants_it(made, theirs, memory, seen, strides, is_by_block):
    kv_cache = cache(theirs)
    assert tuple(kv_cache.shape) == memory
    assert theirs.modulm_class().blocks_are_contiguous is is_by_block
    step(create(theirs), kv_cache)
    found = made[0].calls[1][5]
    assert (tuple(found.shape), found.stride()) == (seen, strides)
    assert found.data_ptr() == kv_cache.data_ptr()
    assert theirs.modulm_class().kv_cache_shape(1, 4, 2, 8)[0] == 1


def test_a_backend_that_returns_its_result(made):
    class Returning(Impl):
        def forward(self, layer, query, key, value, kv_cache, attn_metadata):
            return (query - 1).flatten(1)

    class Old(Backend):
        get_impl_cls = staticmethod(lambda: Returning)

    found, query, _, _ = step(create(Old), cache())
    assert torch.equal(found, query - 1)


def test_windows_and_caps_are_handed_over(made):
    class Windowed(Backend):
        supports_sliding_window = classmethod(lambda cls: True)

    spec = AttentionSpec(num_heads=4, num_kv_heads=2, head_size=8, scale=0.5, sliding_window=6, soft_cap=30.0)
    assert Windowed.modulm_class().supports(spec)
    backend = create(Windowed, spec)
    step(backend, cache())
    assert made[0].args == (4, 8, 0.5, 2, None, 6, "auto", 30.0, "decoder", None)
    assert isinstance(backend._builder.kv_cache_spec, SlidingWindowSpec)
    assert backend._builder.kv_cache_spec.sliding_window == 6


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": "float16", "kv_cache_dtype": "float16"}, "it does not support dtype torch.float16"),
        ({"dtype": "float8", "kv_cache_dtype": "float8"}, "dtype 'float8' is none of float32, bfloat16, float16"),
        ({"sliding_window": 3}, "it does not support sliding windows"),
        ({"has_alibi": True}, "sinks and ALiBi slopes are not handed to backends written for vLLM"),
        ({"has_sinks": True}, "sinks and ALiBi"),
        ({"kv_cache_dtype": "int8_per_token_head"}, "a KV cache of 'int8_per_token_head' is not laid out as vLLM's"),
        ({"kv_cache_dtype": "bfloat16", "head_size": 7}, ""),
    ],
)
def test_its_own_answer_is_given_with_reasons(changes, reason):
    from dataclasses import replace

    answer = Backend.modulm_class().supports(replace(SPEC, **changes))
    assert bool(answer) is not bool(reason)
    assert reason in getattr(answer, "reason", "")


def test_what_modulm_cannot_offer_is_refused():
    class Layers(Backend):
        supported_kv_cache_layouts = classmethod(lambda cls: (KVCacheLayout.BLNHC,))

    class Shapeless(Backend):
        get_kv_cache_shape = staticmethod(lambda blocks, size, heads, width: (2, size, heads, width))

    class Sorting(Builder):
        def __init__(self, *args):
            super().__init__(*args)
            self._init_reorder_batch_threshold(1)

    class Sorted(Backend):
        get_builder_cls = staticmethod(lambda: Sorting)

    class Large(Backend):
        get_supported_kernel_block_sizes = staticmethod(lambda spec=None: [MultipleOf(32), 16])

    with pytest.raises(Incompatible, match=r"BLNHC.*each layer has memory of its own, so only LBNHC, LBHNC can"):
        Layers.modulm_class()
    with pytest.raises(Incompatible, match="exactly one dimension must be their number"):
        Shapeless.modulm_class()
    with pytest.raises(Unsupported, match=r"reorder_batch_threshold=1.*modulm does not order them"):
        create(Sorted)
    with pytest.raises(
        Unsupported, match=r"block_size=8 does not work with attention backend 'THEIRS', which supports"
    ):
        create(Large, block_size=8)
    assert create(Large, block_size=16)
