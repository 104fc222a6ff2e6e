"""Core's reference implementations keep the contracts, by the suites that plugin authors run on theirs."""

import pytest
import torch

from modulm.checkpoints.safetensors import SafetensorsCheckpoint
from modulm.models.gemma2 import Gemma2ForCausalLM
from modulm.models.llama import LlamaForCausalLM
from modulm.reference.attention_torch import TorchAttention
from modulm.reference.linear_torch import TorchKernels
from modulm.reference.platform_cpu import CPUPlatform
from modulm.reference.sampling_numpy import NumpySampling
from modulm.reference.sampling_torch import TorchSampling
from modulm.worker.executors import InProcessExecutor
from modulm_testkit.attention import AttentionConformance
from modulm_testkit.checkpoint import CheckpointConformance
from modulm_testkit.checkpoints import random_llama, write_folder, write_tokenizer
from modulm_testkit.executor import ExecutorConformance
from modulm_testkit.kernels import KernelConformance
from modulm_testkit.model import ModelConformance
from modulm_testkit.platform import PlatformConformance
from modulm_testkit.samples import CheckpointSample
from modulm_testkit.sampling import SamplingConformance


class TestTorchAttention(AttentionConformance):
    @pytest.fixture
    def backend(self):
        return TorchAttention


class TestTorchKernels(KernelConformance):
    @pytest.fixture
    def provider(self):
        return TorchKernels


class TestNumpySampling(SamplingConformance):
    @pytest.fixture
    def kernels(self):
        return NumpySampling()


class TestTorchSampling(SamplingConformance):
    device = "cpu"

    @pytest.fixture
    def kernels(self):
        return TorchSampling(torch.device(self.device))


class TestCPUPlatform(PlatformConformance):
    @pytest.fixture
    def platform_class(self):
        return CPUPlatform


class TestInProcessExecutor(ExecutorConformance):
    @pytest.fixture
    def executor_class(self):
        return InProcessExecutor


class TestSafetensors(CheckpointConformance):
    @pytest.fixture
    def checkpoint(self, tmp_path):
        config, tensors = random_llama()
        write_tokenizer(tmp_path)
        path = write_folder(tmp_path, config, tensors)
        return CheckpointSample(
            reader=SafetensorsCheckpoint, path=path, config={"hidden_size": config["hidden_size"]}, tensors=tensors
        )


class TestLlama(ModelConformance):
    config = {"attention_bias": True, "mlp_bias": True}

    @pytest.fixture
    def model_class(self):
        return LlamaForCausalLM


class TestGemma2(ModelConformance):
    reference = "Gemma2ForCausalLM"
    config = {"sliding_window": 9, "head_dim": 32, "query_pre_attn_scalar": 24}

    @pytest.fixture
    def model_class(self):
        return Gemma2ForCausalLM
