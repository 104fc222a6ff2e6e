"""Platforms that are wrong in one way each, made of core's processor."""

import torch
from contract import Contract

from modulm.reference.platform_cpu import CPUPlatform
from modulm_testkit.platform import PlatformConformance

platform = Contract("platform", PlatformConformance, "platform_class", CPUPlatform)
mutant = platform.mutant


@mutant("test_has_a_name")
class HasNoName(CPUPlatform):
    """Its name is a blank."""

    name = " "


@mutant("test_device_is_of_its_type")
class NamesAnotherDevice(CPUPlatform):
    """`device_name` names another device."""

    def device_name(self, index=0):
        return "meta"


@mutant("test_device_computes")
class CannotWait(CPUPlatform):
    """`synchronize` raises."""

    def synchronize(self):
        raise AssertionError("Torch not compiled with CUDA enabled")


@mutant("test_memory_adds_up")
class CountsInKilobytes(CPUPlatform):
    """The total is in other units."""

    def total_memory_bytes(self, index=0):
        return super().total_memory_bytes() >> 20


@mutant("test_chooses_a_supported_dtype")
class TakesAnyDtype(CPUPlatform):
    """A checkpoint's dtype is taken as it is."""

    def default_dtype(self, checkpoint_dtype):
        return checkpoint_dtype


@mutant("test_names_what_serves_it")
class HasNoKernels(CPUPlatform):
    """There is no kernel provider to choose."""

    kernels = ()


@mutant("test_answers_about_quantization")
class AnswersWithBooleans(CPUPlatform):
    """`supports_quantization` answers True."""

    def supports_quantization(self, name):
        return True


@mutant("test_keeps_the_configuration_valid")
class SetsWhatMayNotBe(CPUPlatform):
    """It turns off what it does not like with a word."""

    def check_and_update_config(self, config):
        config.kv_cache_dtype = "native"


@mutant("test_respects_what_the_user_said")
class KnowsBetter(CPUPlatform):
    """The user's number of tokens per step is overwritten."""

    def check_and_update_config(self, config):
        config.max_num_batched_tokens = 512


@mutant("test_may_look_twice")
class DoublesEachTime(CPUPlatform):
    """Every look doubles the tokens of a step, if the user has not said."""

    def check_and_update_config(self, config):
        if config.max_num_batched_tokens != 77:
            config.max_num_batched_tokens = 2 * (config.max_num_batched_tokens or 256)


@mutant("test_seeds_its_generators")
class SeedsOneOfMany(CPUPlatform):
    """The seed is the number of the call."""

    calls = 0

    def manual_seed(self, seed):
        SeedsOneOfMany.calls += 1
        torch.manual_seed(SeedsOneOfMany.calls)
