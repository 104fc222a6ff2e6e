"""How one group of layers is quantized: the keys of `config_groups`, checked.

Knows no layers and no tensors. Source: `QuantizationArgs` and `QuantizationScheme` of compressed-tensors.
"""

from dataclasses import dataclass
from typing import Any

from modulm.interfaces.quantization_config import QuantizationConfig

PACKED, NVFP4, MXFP4, MXFP8 = "pack-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized"
_NAIVE = {"int-quantized": "int", "float-quantized": "float", "naive-quantized": None, MXFP8: "float"}
FORMATS = (PACKED, *_NAIVE, NVFP4, MXFP4)
"""Those that are read here: of `CompressionFormat`, without what its library no longer writes, and MXFP6."""
_STRATEGIES = {"int": ("tensor", "channel", "group"), "float": ("tensor", "channel", "group", "block", "tensor_group")}
_ORDERS = (None, False, "weight", "static", "group", "dynamic")
_ARGUMENTS = frozenset(
    ("num_bits", "type", "symmetric", "strategy", "group_size", "block_structure", "dynamic", "actorder", "observer")
) | {"observer_kwargs", "scale_dtype", "zp_dtype"}


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """How weights of a group of layers are stored.

    Attributes:
        format: Of `FORMATS`.
        kind: "int" or "float".
        bits: Of one number.
        symmetric: Whether all zero points are zero.
        strategy: What shares a scale: "tensor", "channel", "group", "block", "tensor_group".
        group_size: Inputs that share one, for both kinds of groups.
        block: Rows and columns that share one.
        reordered: Whether groups may be of inputs that lie apart.
    """

    format: str
    kind: str
    bits: int
    symmetric: bool
    strategy: str
    group_size: int = 0
    block: tuple[int, int] = (0, 0)
    reordered: bool = False

    def __str__(self) -> str:
        shared = {
            "channel": "a scale per row",
            "tensor": "one scale",
            "block": f"blocks of {self.block[0]} x {self.block[1]}",
        }
        how = shared.get(self.strategy, f"groups of {self.group_size}")
        zeros = "" if self.symmetric else ", zero points"
        return f"{self.format}, {self.kind}{self.bits}, {how}{zeros}"


def read_arguments(group: QuantizationConfig, format_of_all: str | None) -> Arguments:
    """Return what one of the `config_groups` says of weights. Raises `CheckpointError` naming the key."""
    weights = group.keys.get("weights")
    if not isinstance(weights, dict):
        raise group.refused("weights", "it must be an object that says how weights are quantized")
    keys = QuantizationConfig(weights, f"weights of the {group.where}")
    for key, value in weights.items():
        if key not in _ARGUMENTS and value:
            raise keys.refused(key, f"there are {', '.join(sorted(_ARGUMENTS))}")
    form = group.keys.get("format") or format_of_all
    if form not in FORMATS:
        raise group.refused("format", f"{form!r} is none of {', '.join(FORMATS)}")
    kind = keys.value("type", "int", among=("int", "float"))
    bits = keys.whole("num_bits", 8, least=1)
    _check_format(keys, form, kind, bits)
    strategy, size = _strategy(keys, kind)
    symmetric = keys.flag("symmetric", True)
    if kind == "float" and not symmetric:
        raise keys.refused("symmetric", "floats are stored without zero points")
    order = keys.value("actorder", None, among=_ORDERS) or None
    return Arguments(
        format=form,
        kind=kind,
        bits=bits,
        symmetric=symmetric,
        strategy=strategy,
        group_size=size,
        block=_block(keys) if strategy == "block" else (0, 0),
        reordered=order in ("group", "dynamic") and strategy == "group",
    )


def _check_format(keys: QuantizationConfig, form: str, kind: str, bits: int) -> None:
    wanted = _NAIVE.get(form, "int" if form == PACKED else "float")
    if wanted not in (None, kind):
        raise keys.refused("type", f"format {form!r} stores {wanted}s")
    allowed = (4,) if form in (NVFP4, MXFP4) else (8,) if kind == "float" else range(1, 9)
    if bits not in allowed:
        raise keys.refused("num_bits", f"format {form!r} stores {kind}s of {', '.join(map(str, allowed))} bits")
    if keys.keys.get("dynamic") not in (None, False):
        raise keys.refused("dynamic", "weights are stored, so that their scales are too")


def _strategy(keys: QuantizationConfig, kind: str) -> tuple[str, int]:
    """Return the strategy, which follows from `group_size` where it is missing, and the size of groups."""
    size = keys.keys.get("group_size")
    inferred = "tensor" if size is None else "channel" if size == -1 else "group"
    strategy: str = keys.value("strategy", inferred, among=_STRATEGIES[kind])
    if strategy not in ("group", "tensor_group"):
        return strategy, 0
    return strategy, keys.whole("group_size", None, least=1)


def _block(keys: QuantizationConfig) -> tuple[int, int]:
    found: Any = keys.keys.get("block_structure")
    sides = found.split("x") if isinstance(found, str) else found
    try:
        high, wide = (int(side) for side in sides)
    except (TypeError, ValueError):
        high = wide = 0
    if high < 1 or wide < 1:
        raise keys.refused("block_structure", "it must be two whole numbers above 0, rows and columns")
    return high, wide
