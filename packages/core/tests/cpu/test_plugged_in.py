"""What is registered in a process is what the engine runs: model, attention backend, kernel, quantization, logits.

Each plug-in is a small real one, and the engine's output with it equals what core's own parts or arithmetic say.
"""

import dataclasses
import shutil
from typing import ClassVar

import numpy as np
import pytest
import torch

from modulm import LLM, ModelRegistry, SamplingParams
from modulm.errors import Broken, Unsupported
from modulm.interfaces.kernels import KernelProvider
from modulm.interfaces.logits import AdapterLogitsProcessor
from modulm.interfaces.quantization import ChannelInt8, QuantizationScheme
from modulm.interfaces.support import Accepted, Rejected
from modulm.models.llama import LlamaForCausalLM
from modulm.plugins.registry import registry
from modulm.reference.attention_torch import TorchAttention
from modulm.reference.linear_torch import TorchKernels
from modulm.reference.platform_cpu import CPUPlatform

PROMPT = {"prompt_token_ids": list(range(10, 40))}
GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)


@pytest.fixture(autouse=True)
def clean_registries():
    """Take back what a test registered."""
    yield
    for family in ("modulm.models", "modulm.attention", "modulm.kernels", "modulm.quantization"):
        held = registry(family)
        for name in list(held.registrations()):
            held.restore(name, None)


def tokens(llm):
    return llm.generate(PROMPT, GREEDY)[0].outputs[0].token_ids


class CountingModel(LlamaForCausalLM):
    """Llama under another name."""

    calls = 0

    def forward(self, token_ids, batch):
        CountingModel.calls += 1
        return super().forward(token_ids, batch)


class CountingAttention(TorchAttention):
    """Core's attention, counted."""

    name = "counting"
    calls = 0

    def forward(self, *args, **kwargs):
        CountingAttention.calls += 1
        return super().forward(*args, **kwargs)


class PickyAttention(TorchAttention):
    """Accepts no layer."""

    name = "picky"

    @classmethod
    def supports(cls, spec):
        return Rejected(f"head size {spec.head_size} is above its limit of 4")


def test_a_model_registered_by_string(tiny_llm, tiny_folder, tmp_path, monkeypatch):
    (tmp_path / "my_models.py").write_text(
        "from modulm.models.llama import LlamaForCausalLM\nclass MyLlama(LlamaForCausalLM):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    ModelRegistry.register_model("MyLlamaForCausalLM", "my_models:MyLlama")
    folder = shutil.copytree(tiny_folder, tmp_path / "checkpoint")
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace("LlamaForCausalLM", "MyLlamaForCausalLM"))
    llm = LLM(model=str(folder), num_kv_blocks=200)
    assert llm._launched.resolution.model_class().__name__ == "MyLlama"
    assert tokens(llm) == tokens(tiny_llm())


def test_a_model_registered_as_a_class_replaces_core_s(tiny_llm):
    want = tokens(tiny_llm())
    ModelRegistry.register_model("LlamaForCausalLM", CountingModel)
    assert tokens(tiny_llm()) == want and CountingModel.calls == 10


def test_a_model_that_does_not_import_is_broken_not_unknown(tiny_llm):
    ModelRegistry.register_model("LlamaForCausalLM", "no_such_module:Llama")
    with pytest.raises(Broken, match="no_such_module") as broken:
        tiny_llm()
    assert isinstance(broken.value.__cause__, ModuleNotFoundError)


def test_an_attention_backend_by_name(tiny_llm):
    want = tokens(tiny_llm())
    registry("modulm.attention").register("counting", CountingAttention)
    assert tokens(tiny_llm(attention_backend="counting")) == want
    assert CountingAttention.calls == 2 * 10  # layers times steps


def test_the_variable_names_an_attention_backend_where_no_option_does(tiny_llm, monkeypatch):
    registry("modulm.attention").register("counting", CountingAttention)
    monkeypatch.setenv("VLLM_ATTENTION_BACKEND", "COUNTING")
    before = CountingAttention.calls
    tokens(tiny_llm())
    assert CountingAttention.calls - before == 2 * 10
    tokens(tiny_llm(attention_backend="torch"))
    assert CountingAttention.calls - before == 2 * 10


class OldAttention(TorchAttention):
    """Core's attention as of a time before sinks, ALiBi and caches of other types."""

    name = "old"
    calls = 0

    @classmethod
    def kv_cache_shape(cls, num_blocks, block_size, num_kv_heads, head_size):
        return super().kv_cache_shape(num_blocks, block_size, num_kv_heads, head_size)

    def forward(self, spec, query, key, value, kv_cache, metadata):
        OldAttention.calls += 1
        return super().forward(spec, query, key, value, kv_cache, metadata)


class OldKernels(TorchKernels):
    """Core's kernels as of a time before precision could be asked for."""

    name = "old"
    asked: ClassVar[list[int | None]] = []

    def configure(self, *, num_threads):
        OldKernels.asked.append(num_threads)


def test_what_is_older_than_optional_arguments_runs_without_them(tiny_llm):
    want = tokens(tiny_llm())
    registry("modulm.attention").register("old", OldAttention)
    registry("modulm.kernels").register("old", OldKernels)
    assert tokens(tiny_llm(attention_backend="old", kernels="old", cpu_threads=1, kernel_precision="exact")) == want
    assert OldAttention.calls == 2 * 10 and OldKernels.asked == [1]
    with pytest.raises(
        Unsupported, match=r"'old' cannot serve here: its kv_cache_shape\(\) does not take kv_cache_dtype"
    ):
        tiny_llm(attention_backend="old", kv_cache_dtype="int8_per_token_head")


def test_a_platform_says_for_each_layer_which_attention_is_best(tiny_llm, monkeypatch):
    registry("modulm.attention").register("counting", CountingAttention)
    monkeypatch.setattr(CPUPlatform, "attention_backends_for", lambda self, spec: ("counting",) * (spec.head_size == 8))
    before = CountingAttention.calls
    tokens(tiny_llm())
    assert CountingAttention.calls - before == 2 * 10


def test_an_attention_backend_that_refuses(tiny_llm):
    registry("modulm.attention").register("picky", PickyAttention)
    with pytest.raises(Unsupported, match="head size 8 is above its limit of 4.*Accepted instead: torch"):
        tiny_llm(attention_backend="picky")
    assert len(tokens(tiny_llm())) == 10  # merely installed: passed over


class CountingKernels(KernelProvider):
    """Serves linear layers through core's reference and leaves embeddings to others."""

    name = "counting"
    packed = 0

    def supports(self, op, weight, device_type):
        return Accepted() if op == "linear" else Rejected("it has no embedding")

    def pack(self, weight, device, dtype):
        CountingKernels.packed += 1
        return TorchKernels().pack(weight, device, dtype)


def test_a_kernel_provider_is_asked_before_the_reference(tiny_llm):
    want = tokens(tiny_llm())
    registry("modulm.kernels").register("counting", CountingKernels)
    llm = tiny_llm()
    assert tokens(llm) == want and CountingKernels.packed >= 2 * 4
    assert any("counting" in name for name in llm.explain()["worker"]["weights by kernel"])


class ThreadedKernels(TorchKernels):
    """Core's reference, which remembers what it was told, in order."""

    name = "threaded"
    told = []

    def configure(self, *, num_threads, precision):
        self.told.append((num_threads, precision))

    def supports(self, op, weight, device_type):
        self.told.append("supports")
        return super().supports(op, weight, device_type)


@pytest.mark.parametrize(("num_threads", "precision"), [(2, "exact"), (None, "auto")])
def test_threads_are_counted_before_anything_is_packed(tiny_llm, monkeypatch, num_threads, precision):
    before = torch.get_num_threads()
    monkeypatch.setattr(ThreadedKernels, "told", [])
    registry("modulm.kernels").register("threaded", ThreadedKernels)
    try:
        torch.set_num_threads(3)
        tiny_llm(cpu_threads=num_threads, kernel_precision=precision)
        assert torch.get_num_threads() == (num_threads or 3)
        asked = (num_threads, None if precision == "auto" else precision)
        assert ThreadedKernels.told[:2] == [asked, "supports"]
        assert ThreadedKernels.told.count(asked) == 1
    finally:
        torch.set_num_threads(before)


def test_a_kernel_provider_that_is_broken(tiny_llm, monkeypatch):
    registry("modulm.kernels").register("broken", "no_such_module:Kernels")
    monkeypatch.setenv("MODULM_STRICT_PLUGINS", "0")
    assert len(tokens(tiny_llm())) == 10  # merely installed: passed over
    monkeypatch.setenv("MODULM_STRICT_PLUGINS", "true")
    with pytest.raises(Broken, match="no_such_module"):
        tiny_llm()


class RoundedInt8(QuantizationScheme):
    """Quantises linear layers of any checkpoint to int8 per channel while loading."""

    name = "rounded_int8"

    @classmethod
    def matches(cls, checkpoint):
        return Accepted()

    @classmethod
    def from_checkpoint(cls, checkpoint):
        return cls()

    def weight(self, checkpoint, module, out_features, in_features):
        data = checkpoint.tensor(f"{module}.weight")
        scales = np.abs(data).max(axis=1) / np.float32(127)
        codes = np.rint(data / scales[:, None]).astype(np.int8)
        return ChannelInt8(out_features=out_features, in_features=in_features, codes=codes, scales=scales)


def test_a_quantization_scheme(tiny_llm, tiny_folder):
    """Against transformers with the same weights rounded the same way."""
    from transformers import AutoModelForCausalLM

    registry("modulm.quantization").register("rounded_int8", RoundedInt8)
    llm = tiny_llm(quantization="rounded_int8")
    assert "ChannelInt8" in str(llm.explain()["worker"])
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    with torch.inference_mode():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                scales = parameter.abs().amax(dim=1, keepdim=True) / 127
                parameter.copy_((parameter / scales).round() * scales)
        ids = list(PROMPT["prompt_token_ids"])
        for _ in range(10):
            ids.append(model(torch.tensor([ids])).logits[0, -1].argmax().item())
    assert tokens(llm) == ids[-10:]


class ForceToken(AdapterLogitsProcessor):
    """Forces the token that a request names in `extra_args`, every second step."""

    @classmethod
    def validate_params(cls, sampling_params):
        if (sampling_params.extra_args or {}).get("force", 0) < 0:
            raise ValueError("force must be a token id")

    def is_argmax_invariant(self):
        return False

    def new_req_logits_processor(self, params):
        force = (params.extra_args or {}).get("force")
        return None if force is None else lambda output_ids, row: self.forced(row, force, output_ids)

    @staticmethod
    def forced(row, force, output_ids):
        if len(output_ids) % 2 == 0:
            row.fill_(-torch.inf)
            row[force] = 0.0
        return row


def test_a_logits_processor_changes_only_its_requests(tiny_llm):
    plain = tokens(tiny_llm())
    llm = tiny_llm(logits_processors=[ForceToken])
    forced = dataclasses.replace(GREEDY, extra_args={"force": 77})
    outputs = llm.generate([PROMPT, PROMPT, PROMPT], [GREEDY, forced, GREEDY])
    ids = [output.outputs[0].token_ids for output in outputs]
    assert ids[0] == ids[2] == plain
    assert ids[1][::2] == [77] * 5
    with pytest.raises(ValueError, match="force must be a token id"):
        llm.generate(PROMPT, dataclasses.replace(GREEDY, extra_args={"force": -1}))
