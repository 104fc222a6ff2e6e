"""How many inputs a kernel takes at once, and how a product is cut into programs. Plain numbers: no torch, no Triton.

A step's inputs share a scale, so that a kernel loads one for each row. Tiles are chosen by rule: nothing has been timed
on a GPU yet.
"""

from typing import NamedTuple

from modulm.interfaces.quantization import Float8, GroupedInt

_STEPS = (64, 32, 16)
_FEW_TOKENS = 16
"""Up to as many tokens a product waits for memory: weights are split along inputs, to keep the whole device loading."""
_MAX_SPLIT = 16
_STEPS_EACH = 4
"""Steps that a split part has at least: fewer, and adding the parts up costs more than it saves."""


class Tile(NamedTuple):
    """How a product is cut.

    Attributes:
        tokens: Of one program.
        rows: Of the weight, of one program.
        split: Programs that share a tile's inputs; their results are added up afterwards, in a fixed order.
        num_warps: Threads of a program, by 32 (64 on AMD's).
    """

    tokens: int
    rows: int
    split: int
    num_warps: int


def grouped_step(weight: GroupedInt) -> int | None:
    """Return the inputs of a step that lie within a group; None where a group is no multiple of any."""
    return _step(weight.group_size, weight.in_features)


def float8_step(weight: Float8) -> int | None:
    """Return the inputs of a step that lie within a block of scales; None where there is none."""
    return _step(weight.block[1], weight.in_features)


def _step(shared: int, in_features: int) -> int | None:
    if shared >= in_features:
        return _STEPS[0]
    return next((step for step in _STEPS if shared % step == 0), None)


def tile(num_tokens: int, out_features: int, num_steps: int, num_processors: int) -> Tile:
    """Return how to cut a product with a weight of `num_steps` steps on a device of so many multiprocessors."""
    if num_tokens <= _FEW_TOKENS:
        rows = 64
        programs = -(-out_features // rows)
        split = 1
        while split < _MAX_SPLIT and programs * split < 2 * num_processors and num_steps >= 2 * split * _STEPS_EACH:
            split *= 2
        return Tile(_FEW_TOKENS, rows, split, 4)
    if num_tokens <= 64:
        return Tile(32 if num_tokens <= 32 else 64, 64, 1, 4)
    return Tile(128, 64, 1, 8)  # of 128 rows, a 4-bit weight's tile does not fit the registers of sm_80
