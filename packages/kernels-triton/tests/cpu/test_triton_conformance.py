"""The provider keeps the contract, in Triton's interpreter."""

import pytest

from modulm_kernels_triton.provider import TritonKernels
from modulm_testkit.kernels import KernelConformance


class TestTritonKernels(KernelConformance):
    @pytest.fixture
    def provider(self):
        return TritonKernels
