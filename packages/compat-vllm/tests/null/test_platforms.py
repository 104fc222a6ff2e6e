"""Platforms of vLLM's kind: which one is current, and what of it has an effect in modulm."""

import subprocess
import sys

import pytest
from vllm import platforms
from vllm.platforms import resolve_current_platform_cls_qualname
from vllm.platforms.cpu import CpuPlatform
from vllm.platforms.interface import DeviceCapability, Platform, PlatformEnum

from modulm.config import EngineConfig
from modulm.errors import Broken, ConfigError, Incompatible
from modulm.interfaces.attention import AttentionSpec
from modulm.interfaces.support import Rejected
from modulm.plugins.platforms import current_platform

GROUP = "vllm.platform_plugins"
PLUGIN = """
from vllm.platforms import Platform, PlatformEnum
def probe(): return "device.Dummy"
class Dummy(Platform):
    _enum = PlatformEnum.OOT
    device_name = "DummyDevice"
    device_type = "cpu"
"""


@pytest.fixture(autouse=True)
def nothing_current(site, monkeypatch):
    monkeypatch.setattr(platforms, "_current_platform", None)
    monkeypatch.setattr(platforms, "_init_trace", "")


@pytest.fixture
def built_ins(monkeypatch):
    def use(**probes):
        monkeypatch.setattr("vllm.platforms.builtin_platform_plugins", probes)

    return use


def test_the_target_device_cpu_settles_it(monkeypatch, built_ins, site):
    site.install(GROUP, {"dummy": "device:probe"}, device="raise RuntimeError('must not be imported')")
    monkeypatch.setenv("VLLM_TARGET_DEVICE", "CPU")
    built_ins(cuda=lambda: "vllm.platforms.cuda.CudaPlatform", cpu=lambda: "vllm.platforms.cpu.CpuPlatform")
    assert resolve_current_platform_cls_qualname() == "vllm.platforms.cpu.CpuPlatform"


def test_a_plugin_goes_before_ours_and_a_failing_probe_is_none(built_ins, site, caplog):
    built_ins(cuda=lambda: "ours")
    text = PLUGIN + "def absent(): return None\ndef bad(): raise OSError('no driver')\n"
    site.install(GROUP, {"dummy": "device:probe", "absent": "device:absent", "bad": "device:bad"}, device=text)
    assert resolve_current_platform_cls_qualname() == "device.Dummy"
    assert "The probe of platform 'bad' failed" in caplog.text and "no driver" in caplog.text


def test_two_are_an_error_and_none_is_unspecified(built_ins, site):
    built_ins()
    assert resolve_current_platform_cls_qualname() == "vllm.platforms.interface.UnspecifiedPlatform"
    built_ins(a=lambda: "a.A", b=lambda: "b.B")
    with pytest.raises(RuntimeError, match=r"Only one platform plugin can be activated, but got: \['a', 'b'\]"):
        resolve_current_platform_cls_qualname()
    site.install(GROUP, {"one": "device:probe", "two": "device:probe"}, device=PLUGIN)
    with pytest.raises(RuntimeError, match=r"\['one', 'two'\]"):
        resolve_current_platform_cls_qualname()


def test_importing_resolves_nothing_and_the_first_use_is_traced():
    code = """
import vllm, vllm.platforms
assert vllm.platforms._current_platform is None and vllm.platforms._init_trace == ""
def the_first_to_ask(): return vllm.platforms.current_platform
the_first_to_ask()
assert "the_first_to_ask" in vllm.platforms._init_trace
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_current_platform_is_the_plugin_s_own_object(site):
    site.install(GROUP, {"dummy": "device:probe"}, device=PLUGIN)
    found = platforms.current_platform
    assert (found.device_name, found.is_out_of_tree(), found.is_cpu()) == ("DummyDevice", True, False)
    assert type(found).__name__ == "Dummy" and current_platform().plugin is found
    assert (current_platform().name, current_platform().device_type) == ("DummyDevice", "cpu")


def test_modulm_s_own_are_shown(monkeypatch):
    monkeypatch.setenv("VLLM_TARGET_DEVICE", "cpu")
    found = platforms.current_platform
    assert type(found) is CpuPlatform and found.is_cpu() and not found.is_cuda_alike()
    assert found.get_device_total_memory() > found.get_current_memory_usage() > 0
    assert found.get_device_capability() is None and not found.has_device_capability(80)


def test_compute_capabilities_compare():
    class Gpu(Platform):
        get_device_capability = classmethod(lambda cls, device_id=0: DeviceCapability(9, 0))

    assert Gpu.has_device_capability(89) and Gpu.has_device_capability((9, 0)) and not Gpu.has_device_capability((9, 1))
    assert Gpu.is_device_capability(90) and not Gpu.is_device_capability((8, 9))


def adapter(**attributes):
    """modulm's platform that stands for a class with these attributes."""
    said = {"_enum": PlatformEnum.OOT, "device_name": "DummyDevice", "device_type": "cpu", **attributes}
    base = said.pop("base", Platform)
    return type("Made", (base,), {k: v for k, v in said.items() if v is not None}).modulm_class()()


def check(change, **options):
    """Let a platform change the configuration, and return it."""
    config = EngineConfig.make(model="no-such-model", **options)
    adapter(check_and_update_config=classmethod(lambda cls, vllm_config: change(vllm_config))).check_and_update_config(
        config
    )
    return config


def set_to(section, name, value):
    return lambda vllm_config: setattr(getattr(vllm_config, section), name, value)


@pytest.mark.parametrize(
    ("section", "name", "value", "option"),
    [
        ("cache_config", "block_size", 32, "block_size"),
        ("cache_config", "cache_dtype", "bfloat16", "kv_cache_dtype"),
        ("cache_config", "enable_prefix_caching", False, "enable_prefix_caching"),
        ("scheduler_config", "max_num_seqs", 3, "max_num_seqs"),
        ("scheduler_config", "max_num_batched_tokens", 77, "max_num_batched_tokens"),
        ("scheduler_config", "policy", "priority", "scheduling_policy"),
        ("model_config", "max_model_len", 99, "max_model_len"),
        ("model_config", "dtype", "float32", "dtype"),
        ("model_config", "enforce_eager", True, "enforce_eager"),
        ("attention_config", "backend", "TORCH", "attention_backend"),
    ],
)
def test_a_change_is_honoured(section, name, value, option):
    config = check(set_to(section, name, value))
    assert getattr(config, option) == (value.lower() if name == "backend" else value)


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("parallel_config", "tensor_parallel_size", 2),
        ("parallel_config", "distributed_executor_backend", "mp"),
        ("parallel_config", "worker_extension_cls", "a.B"),
        ("cache_config", "num_gpu_blocks", 7),
        ("model_config", "model", "other"),
        ("model_config", "some_new_name", 1),
    ],
)
def test_a_change_that_nothing_would_honour_is_refused_by_name(section, name, value):
    with pytest.raises(ConfigError) as refused:
        check(set_to(section, name, value))
    words = f"Platform 'DummyDevice' sets {section}.{name}={value!r} in check_and_update_config, which nothing"
    assert words in str(refused.value) and "cache_config.block_size" in str(refused.value)


def test_a_value_that_an_option_refuses_is_refused_as_from_the_user():
    with pytest.raises(ConfigError, match="block_size=0 is refused"):
        check(set_to("cache_config", "block_size", 0))


def test_what_makes_no_difference_is_told(caplog):
    caplog.set_level("INFO", "modulm")
    before = vars(EngineConfig.make(model="no-such-model"))
    config = check(set_to("compilation_config", "custom_ops", ["all"]))
    assert "compilation_config.custom_ops=['all'], which makes no difference" in caplog.text
    assert vars(config) == {**before, "max_num_batched_tokens": 512}  # the processor's own default


def test_a_platform_that_raises_refuses():
    def refuse(vllm_config):
        raise ValueError("no float16 here")

    with pytest.raises(
        ConfigError, match="Platform 'DummyDevice' refuses the configuration: ValueError: no float16 here"
    ):
        check(refuse)


@pytest.mark.parametrize("path", [object, "nodot", 3])
def test_a_worker_class_must_be_a_path(path):
    with pytest.raises(ConfigError, match="worker_cls=.* is refused: it must be a class path"):
        check(set_to("parallel_config", "worker_cls", path))


def test_a_worker_class_and_an_executor_exclude_each_other():
    with pytest.raises(ConfigError, match="but executor='ray' was asked for"):
        check(set_to("parallel_config", "worker_cls", "a.B"), executor="ray")
    assert check(set_to("parallel_config", "worker_cls", "a.B")).executor == "a.B"
    assert check(lambda vllm_config: None).executor == "inprocess"
    config = EngineConfig.make(model="no-such-model")
    change = set_to("parallel_config", "worker_cls", "a.B")
    for _ in range(2):  # a configuration may be used again
        made = adapter(check_and_update_config=classmethod(lambda cls, vllm_config: change(vllm_config)))
        made.check_and_update_config(config)
    assert config.executor == "a.B"


def test_memory_dtypes_and_quantization_are_the_plugin_s_to_say():
    plain = adapter(base=CpuPlatform)
    assert 0 < plain.available_memory_bytes() <= plain.total_memory_bytes()
    small = adapter(
        get_device_total_memory=classmethod(lambda cls, device_id=0: 1000),
        supported_dtypes=["torch.float32"],
        supported_quantization=["awq"],
    )
    assert (small.total_memory_bytes(), small.available_memory_bytes()) == (1000, 1000)
    assert small.default_dtype("bfloat16") == "float32"
    assert small.supports_quantization("awq") and isinstance(small.supports_quantization("gguf"), Rejected)


def test_a_device_that_modulm_does_not_know_must_say_its_memory():
    silent = adapter(device_type="other")
    assert silent.plugin.device_name == "DummyDevice", "it can be the current one all the same"
    with pytest.raises(Incompatible, match="device_type='other' and does not say how much memory it has"):
        silent.available_memory_bytes()
    found = adapter(
        device_type="other",
        get_device_total_memory=classmethod(lambda cls, device_id=0: 1000),
        get_current_memory_usage=classmethod(lambda cls, device=None: 300.0),
    )
    assert (found.available_memory_bytes(), found.device_name(1)) == (700, "other:1")


@pytest.mark.parametrize("name", ["_enum", "device_name", "device_type"])
def test_what_every_platform_must_say(name):
    with pytest.raises(Incompatible, match=f"has no {name}"):
        adapter(**{name: None})


def test_it_is_asked_for_attention_unless_the_user_chose():
    asked = []

    def answer(cls, selected_backend, attn_selector_config, num_heads=None):
        asked.append(
            (selected_backend, attn_selector_config.head_size, attn_selector_config.has_sliding_window, num_heads)
        )
        return "vllm.v1.attention.backends.no_such_backend.Backend"

    spec = AttentionSpec(num_heads=4, num_kv_heads=2, head_size=8, scale=0.5, sliding_window=16)
    made = adapter(get_attn_backend_cls=classmethod(answer))
    made.check_and_update_config(EngineConfig.make(model="no-such-model", attention_backend="torch"))
    assert made.attention_backends_for(spec) == () and not asked
    made.check_and_update_config(EngineConfig.make(model="no-such-model"))
    with pytest.raises(Broken, match="no_such_backend"):
        made.attention_backends_for(spec)
    assert asked == [(None, 8, True, 4)]
    assert adapter().attention_backends_for(spec) == ("cpu_attn", "torch"), "the processor's own order"
