"""Damaged and contradictory MXFP4 checkpoints are refused by name."""

import numpy as np
import pytest

from modulm.errors import CheckpointError
from modulm_quant_mxfp4.scheme import MXFP4
from modulm_testkit.fakes import MemoryCheckpoint

LAYER, EXPERTS = "model.layers.3.mlp.up_proj", "model.layers.3.mlp.experts.down_proj"
BLOCKS, SCALES = np.zeros((16, 2, 16), np.uint8), np.full((16, 2), 127, np.uint8)
NAN = np.full((16, 2), 255, np.uint8)


def opened(tensors, **declared):
    checkpoint = MemoryCheckpoint({"quantization_config": {"quant_method": "mxfp4", **declared}}, tensors)
    return MXFP4.from_checkpoint(checkpoint), checkpoint


REFUSED = {
    "no scales": ({"weight_blocks": BLOCKS}, (16, 64), "weight_scales"),
    "no blocks": ({"weight_scales": SCALES}, (16, 64), "weight_blocks"),
    "short blocks": ({"weight_blocks": BLOCKS[:, :, :8], "weight_scales": SCALES}, (16, 64), r"\[16, 2, 8\]"),
    "fewer scales": ({"weight_blocks": BLOCKS, "weight_scales": SCALES[:, :1]}, (16, 64), r"\[16, 1\]"),
    "floats": ({"weight_blocks": BLOCKS, "weight_scales": SCALES.astype(np.float32)}, (16, 64), "float32"),
    "another width": ({"weight_blocks": BLOCKS, "weight_scales": SCALES}, (16, 96), r"\[16, 3, 16\]"),
    "no whole groups": ({"weight_blocks": BLOCKS, "weight_scales": SCALES}, (16, 48), "groups of 32"),
    "NaN": ({"weight_blocks": BLOCKS, "weight_scales": NAN}, (16, 64), r"NaN \(255\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_name(case):
    tensors, shape, said = REFUSED[case]
    scheme, checkpoint = opened({f"{LAYER}.{last}": array for last, array in tensors.items()})
    for ask in (scheme.rule, scheme.weight):
        with pytest.raises(CheckpointError, match=f"(?s){LAYER}.*{said}|{said}.*{LAYER}"):
            ask(checkpoint, LAYER, *shape)


@pytest.mark.parametrize(
    ("shape", "index", "said"),
    [
        ((3, 16, 64), 0, r"\[2, 16, 2, 16\]"),
        ((None, 16, 64), 2, "no matrix 2 of 2"),
        ((None, 16, 64), -1, "no matrix -1"),
    ],
)
def test_stacks_of_another_size(shape, index, said):
    stack = {f"{EXPERTS}_blocks": np.stack([BLOCKS] * 2), f"{EXPERTS}_scales": np.stack([SCALES] * 2)}
    scheme, checkpoint = opened(stack)
    with pytest.raises(CheckpointError, match=f"(?s)experts.down_proj.*{said}"):
        scheme.stacked(checkpoint, EXPERTS, shape, index)


def test_one_expert_with_a_scale_that_is_no_number():
    stack = {f"{EXPERTS}_blocks": np.stack([BLOCKS] * 2), f"{EXPERTS}_scales": np.stack([SCALES, NAN])}
    scheme, checkpoint = opened(stack)
    scheme.stacked(checkpoint, EXPERTS, (2, 16, 64), 0)
    with pytest.raises(CheckpointError, match="experts.down_proj_scales.*NaN"):
        scheme.stacked(checkpoint, EXPERTS, (2, 16, 64), 1)


@pytest.mark.parametrize("name", [LAYER, "up_proj", "model.layers.*.mlp", "*up_proj", "gate_up_proj"])
def test_stored_though_left_out(name):
    scheme, checkpoint = opened(
        {f"{LAYER}.weight_blocks": BLOCKS, f"{LAYER}.weight_scales": SCALES}, modules_to_not_convert=[name]
    )
    with pytest.raises(CheckpointError, match="leaves it out"):
        scheme.rule(checkpoint, LAYER, 16, 64)


def test_lists_are_lists_of_names():
    with pytest.raises(CheckpointError, match="modules_to_not_convert='lm_head'"):
        opened({}, modules_to_not_convert="lm_head")
