"""The native kernels keep the contracts, by the suites that plugin authors run on theirs."""

import pytest

from modulm_kernels_cpu.attention import CPUAttention
from modulm_kernels_cpu.provider import CPUKernels
from modulm_testkit.attention import AttentionConformance
from modulm_testkit.kernels import KernelConformance
from modulm_testkit.program import ProgramConformance
from modulm_testkit.sampling import SamplingConformance


class TestCPUAttention(AttentionConformance):
    @pytest.fixture
    def backend(self):
        return CPUAttention


class TestCPUKernels(KernelConformance):
    @pytest.fixture
    def provider(self):
        return CPUKernels


class TestCPUPrograms(ProgramConformance):
    backend = CPUAttention

    @pytest.fixture
    def provider(self):
        return CPUKernels


class TestNativeSampling(SamplingConformance):
    @pytest.fixture
    def kernels(self):
        return CPUKernels().sampling()
