"""Conformance of platforms (`modulm.interfaces.platform`): a device as the engine sees it.

The class is made where the tests run, so that device must be there. What `check_and_update_config` makes of a
configuration is looked at; no model runs.
"""

import copy
import dataclasses
from typing import Any

import pytest
import torch

from modulm.config import EngineConfig
from modulm.interfaces.attention import AttentionSpec
from modulm.interfaces.platform import Platform
from modulm.interfaces.support import Accepted, Rejected
from modulm_testkit.suite import Conformance, ask_for

_DTYPES = ("bfloat16", "float16", "float32")


class PlatformConformance(Conformance):
    """Give `platform_class`: the class whose path the entry point's function returns."""

    @pytest.fixture(name="platform_class")
    def _platform_class(self) -> Any:
        """Return the class."""
        ask_for("platform_class", "MyPlatform")

    @pytest.fixture
    def platform(self, platform_class: Any) -> Platform:
        """The platform, made without arguments, as on first use."""
        made: Platform = platform_class()
        return made

    def test_has_a_name(self, platform: Platform) -> None:
        """`name` and `device_type` are words: users choose the one, torch knows the other."""
        assert isinstance(platform.name, str)
        assert platform.name.strip()
        assert platform.device_type.isidentifier()

    def test_device_is_of_its_type(self, platform: Platform) -> None:
        """`device` is torch's device of `device_type`, and `device_name` is torch's name of it."""
        device = platform.device()
        assert isinstance(device, torch.device)
        assert device.type == platform.device_type
        assert torch.device(platform.device_name()) == device

    def test_device_computes(self, platform: Platform) -> None:
        """Tensors can be made on the device, and `synchronize` waits for it."""
        ones = torch.ones(3, device=platform.device())
        platform.synchronize()
        assert float((ones + ones).sum()) == 6

    def test_memory_adds_up(self, platform: Platform) -> None:
        """Some memory is available, at most all of it: the KV cache is cut from this."""
        available, total = platform.available_memory_bytes(), platform.total_memory_bytes()
        assert isinstance(available, int)
        assert 0 < available <= total, f"{available} of {total} bytes are available"

    def test_chooses_a_supported_dtype(self, platform: Platform) -> None:
        """Whatever a checkpoint is stored in, `default_dtype` names one of `supported_dtypes`."""
        assert platform.supported_dtypes
        assert set(platform.supported_dtypes) <= set(_DTYPES)
        for stored in (*_DTYPES, "float64", "float8_e4m3fn", "unheard-of"):
            assert platform.default_dtype(stored) in platform.supported_dtypes, stored

    def test_names_what_serves_it(self, platform: Platform) -> None:
        """`attention_backends` (also those for a layer) and `kernels` are names, best first, none twice; never none."""
        spec = AttentionSpec(num_heads=4, num_kv_heads=2, head_size=64, scale=0.125, device_type=platform.device_type)
        for names in (platform.attention_backends, platform.attention_backends_for(spec), platform.kernels):
            assert isinstance(names, tuple | list), f"{names!r} is no sequence of names"
            assert names, "automatic choice needs a name"
            assert all(isinstance(name, str) and name for name in names)
            assert len(set(names)) == len(names)

    def test_answers_about_quantization(self, platform: Platform) -> None:
        """`supports_quantization` answers `Accepted`, or `Rejected` with a reason, for any name."""
        for name in ("gguf", "awq", "of next year", ""):
            answer = platform.supports_quantization(name)
            assert isinstance(answer, Accepted | Rejected), f"it answers {answer!r} about {name!r}"
            assert isinstance(answer, Accepted) or answer.reason, f"it rejects {name!r} without a reason"

    def test_keeps_the_configuration_valid(self, platform: Platform) -> None:
        """After `check_and_update_config` the options are still those that may be given."""
        config = EngineConfig.make(model="m")
        platform.check_and_update_config(config)
        EngineConfig.make(**{each.name: getattr(config, each.name) for each in dataclasses.fields(config)})

    def test_respects_what_the_user_said(self, platform: Platform) -> None:
        """Options that the user gave stay, or are refused with `ConfigError`; only what is left open is chosen."""
        given: dict[str, Any] = {"max_num_batched_tokens": 77, "max_num_seqs": 3, "block_size": 16}
        config = EngineConfig.make(model="m", **given)
        platform.check_and_update_config(config)
        assert {name: getattr(config, name) for name in given} == given

    def test_may_look_twice(self, platform: Platform) -> None:
        """A configuration that it has seen is not changed again: an engine may be started anew."""
        config = EngineConfig.make(model="m")
        platform.check_and_update_config(config)
        once = copy.copy(config)
        platform.check_and_update_config(config)
        assert config == once

    def test_seeds_its_generators(self, platform: Platform) -> None:
        """After `manual_seed`, where there is one, the same numbers are drawn on the device."""
        if type(platform).manual_seed is Platform.manual_seed:
            pytest.skip("it leaves generators as they are")
        drawn = []
        for _ in range(2):
            platform.manual_seed(11)
            drawn.append(torch.rand(4, device=platform.device()).cpu())
        assert torch.equal(*drawn)
