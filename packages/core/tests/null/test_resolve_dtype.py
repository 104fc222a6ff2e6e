"""`dtype="auto"`: the checkpoint's where the processor is fast in it, but what programs compute in where they run."""

import pytest

from modulm.config import EngineConfig
from modulm.errors import ConfigError
from modulm.interfaces.kernels import KernelProvider
from modulm.reference import platform_cpu
from modulm.reference.platform_cpu import CPUPlatform
from modulm.resolve import model_config

HF = {"architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16", "max_position_embeddings": 64}


class Plain(KernelProvider):
    name = "plain"

    def supports(self, op, weight, device_type): ...
    def pack(self, weight, device, dtype): ...


class Programs(Plain):
    name = "programs"
    runs_programs = True


class HalfPrograms(Programs):
    program_dtypes = ("float16", "bfloat16")


@pytest.fixture(params=[{"amx_bf16"}, set()], ids=["fast in bfloat16", "slow in it"])
def fast(request, monkeypatch):
    monkeypatch.setattr(platform_cpu, "cpu_flags", lambda: request.param)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    return bool(request.param)


def dtype(kernels, **options):
    return model_config(EngineConfig(model="m", **options), HF, CPUPlatform(), kernels).dtype


def test_without_programs_it_is_what_torch_is_fast_in(fast):
    wanted = "bfloat16" if fast else "float32"
    assert dtype([]) == dtype([Plain()]) == dtype([Programs()], enforce_eager=True) == wanted


def test_programs_decide_where_they_run(fast):
    assert dtype([Plain(), Programs()]) == "float32"
    assert dtype([HalfPrograms()]) == ("bfloat16" if fast else "float16")


def test_an_explicit_wish_is_honoured_or_refused(fast):
    assert dtype([Programs()], dtype="bfloat16") == "bfloat16"
    with pytest.raises(ConfigError, match="float64"):
        dtype([Programs()], dtype="float64")
