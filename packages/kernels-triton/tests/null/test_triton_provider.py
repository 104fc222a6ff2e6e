"""What the provider answers, and that neither answering nor being listed imports Triton or torch."""

import subprocess
import sys
from dataclasses import replace

import pytest

from modulm.interfaces.quantization import Dense
from modulm.interfaces.support import Rejected
from modulm_kernels_triton.provider import TritonKernels
from modulm_kernels_triton.steps import Tile, tile

ASKED = """
import sys
import numpy as np
from modulm.interfaces.quantization import Float8, GroupedInt
from modulm.interfaces.support import Rejected
from modulm.plugins.registry import registry
one = np.ones((16, 1), np.float32)
weights = [
    GroupedInt(out_features=16, in_features=64, bits=8, group_size=64, codes=np.ones((16, 64), np.uint8), scales=one,
               minimums=one),
    Float8(out_features=16, in_features=64, data=np.ones((16, 64), np.uint8), scales=one, block=(1, 64)),
]
provider = registry("modulm.kernels").get("triton")()
provider.configure(num_threads=1, precision="fast")
for weight in weights:
    assert provider.supports("linear", weight, "cuda"), provider.supports("linear", weight, "cuda")
    answer = provider.supports("linear", weight, "cpu")
    assert answer == Rejected("device type 'cpu' is no GPU"), answer
assert provider.describe() == ""
print(*({"torch", "triton"} & set(sys.modules)))
"""


def test_answers_without_triton_and_torch(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


@pytest.mark.parametrize(
    ("size", "is_served"), [(16, True), (32, True), (48, True), (128, True), (-1, True), (8, False)]
)
def test_groups(grouped, size, is_served):
    answer = TritonKernels().supports("linear", grouped(8, 384, 4, size), "cuda")
    assert bool(answer) is is_served
    assert is_served or answer.reason == "groups of 8 inputs are no multiple of 16"


@pytest.mark.parametrize(("block", "is_served"), [((0, 0), True), ((1, 0), True), ((128, 128), True), ((5, 24), False)])
def test_blocks(floats, block, is_served):
    answer = TritonKernels().supports("embedding", floats(8, 384, block), "cuda")
    assert bool(answer) is is_served
    assert is_served or answer.reason == "scales of 24 inputs are for no multiple of 16"


def test_what_others_serve(grouped, floats):
    kernels = TritonKernels()
    reordered = grouped(8, 64, 4, 32, reordered=True)
    assert kernels.supports("linear", reordered, "cuda")
    strange = replace(reordered, weight=floats(8, 64, (1, 0)))
    plain = Dense(out_features=1, in_features=2, data=None)
    for weight, op, device, reason in (
        (plain, "linear", "cuda", "Dense has no kernel here"),
        (strange, "linear", "cuda", "Reordered has no kernel here"),
        (reordered, "convolution", "cuda", "op 'convolution' is unknown; it has linear and embedding"),
        (reordered, "linear", "xpu", "device type 'xpu' is no GPU"),
    ):
        assert kernels.supports(op, weight, device) == Rejected(reason)


def test_few_tokens_are_split_until_the_device_is_full():
    """As many programs as multiprocessors, twice, as far as parts have four steps."""
    assert tile(1, 4096, 64, 132) == Tile(16, 64, 8, 4)  # 64 tiles of rows, 512 programs, 8 steps each
    assert tile(16, 128, 16, 132).split == 4  # 16 steps are no more than four times four
    assert tile(1, 151_936, 64, 132).split == 1  # a vocabulary fills any device
    assert tile(17, 4096, 64, 132).split == 1
    assert tile(1, 64, 1, 1).split == 1
