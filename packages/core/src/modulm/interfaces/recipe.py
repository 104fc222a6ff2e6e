"""Where a packed weight comes from, as data: what a saved step program keeps in place of the weight itself.

`worker/load.py` writes one for every weight that it packs, and packs the same again from it. Knows no tensors.
"""

import msgspec


class Recipe(msgspec.Struct, frozen=True):
    """The arguments of `WeightSource.packed`, or of `packed_slice`.

    Attributes:
        modules: Checkpoint names of the layers whose weights are stacked along the output.
        out_features: Of each of `modules`.
        in_features: Of all.
        op: "linear" or "embedding".
        slice: Where not None, `modules` names one tensor [count, out_features, in_features], and this is the matrix.
        transposed, in_turn: See `packed_slice`.
    """

    modules: tuple[str, ...]
    out_features: tuple[int, ...]
    in_features: int
    op: str
    slice: int | None = None
    transposed: bool = False
    in_turn: bool = False
