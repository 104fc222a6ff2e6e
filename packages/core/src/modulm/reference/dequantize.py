"""Every canonical kind of weight -> plain numbers, in a few lines of torch each. Knows no kernel and no format.

Weights come with arrays (`dequantize`), or with tensors in their place (`as_tensors`) where rows are wanted often.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch

from modulm.interfaces.quantization import (
    BlockFloat4,
    ChannelInt8,
    Codebook4,
    Dense,
    Encoded,
    Float8,
    GroupedInt,
    Reordered,
    VectorCodebook,
    Weight,
)
from modulm.reference.tensors import to_torch

Rows = slice | torch.Tensor
"""Which rows of a weight: a slice, or int64 indices."""

_ALL = slice(None)
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def dequantize(weight: Weight, dtype: torch.dtype, rows: Rows = _ALL) -> torch.Tensor:
    """Return the rows as [n, in_features]; computed in float32. Raises `TypeError` on a kind that is not canonical."""
    return dequantized_rows(as_tensors(weight, "cpu"), dtype, rows)


def dequantized_rows(weight: Any, dtype: torch.dtype, rows: Rows) -> torch.Tensor:
    """Return what `dequantize` does, of a weight that `as_tensors` made."""
    return KINDS[type(weight)](weight, rows).to(dtype)


def as_tensors(weight: Weight, device: str) -> Any:
    """Return a weight of the same kind with tensors on `device` in place of arrays. Raises `TypeError` as above."""
    if type(weight) not in KINDS:
        raise TypeError(f"{type(weight).__name__} is no canonical kind of weight; there are: {_names()}")
    arrays = {field.name: getattr(weight, field.name) for field in fields(weight)}
    made: Any = {name: to_torch(array, device) for name, array in arrays.items() if isinstance(array, np.ndarray)}
    made |= {name: as_tensors(inner, device) for name, inner in arrays.items() if isinstance(inner, Weight)}
    return replace(weight, **made)


def tensors_of(weight: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a weight that `as_tensors` made, by field; of one within it, by "weight.field"."""
    values = {field.name: getattr(weight, field.name) for field in fields(weight)}
    inner = tensors_of(values["weight"]) if "weight" in values else {}
    found = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    return found | {f"weight.{name}": value for name, value in inner.items()}


def unpack4(codes: torch.Tensor) -> torch.Tensor:
    """Return uint8 [n, 2 * bytes] for packed codes [n, bytes]: the low nibble first."""
    return torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2)


def _dense(weight: Any, rows: Rows) -> torch.Tensor:
    return weight.data[rows]


def _grouped_int(weight: Any, rows: Rows) -> torch.Tensor:
    codes = weight.codes[rows]
    values = torch.empty(*codes.shape[:-1], weight.in_features, device=codes.device)
    if weight.bits <= 4:  # in place: fresh memory for every step costs more than the arithmetic
        values[..., 0::2], values[..., 1::2] = codes & 15, codes >> 4
    else:
        values.copy_(codes)
    grouped = values.unflatten(-1, (-1, weight.group_size))
    grouped.mul_(weight.scales[rows].float()[..., None]).add_(weight.minimums[rows].float()[..., None])
    return values


def _channel_int8(weight: Any, rows: Rows) -> torch.Tensor:
    return weight.codes[rows].float() * weight.scales[rows].float()[:, None]


def _float8(weight: Any, rows: Rows) -> torch.Tensor:
    # torch indexes bytes everywhere, 8-bit floats not on every device
    data = weight.data.view(torch.uint8)[rows].view(weight.data.dtype).float()
    index = torch.arange(weight.out_features, device=data.device)[rows]
    high, wide = weight.block
    scales = weight.scales.float().reshape(-(-weight.out_features // high), -(-weight.in_features // wide))
    return data * scales[index // high].repeat_interleave(wide, dim=1)[:, : weight.in_features]


def _codebook4(weight: Any, rows: Rows) -> torch.Tensor:
    values = weight.codebook.float()[unpack4(weight.codes[rows]).int()]
    return _scaled(values, weight.scales[rows].float(), weight.group_size)


def _vector_codebook(weight: Any, rows: Rows) -> torch.Tensor:
    codes = weight.codes.view(torch.int16)[rows].int() & 0xFFFF  # torch indexes uint16 nowhere
    values = weight.codebook[codes].flatten(-2)
    if weight.signs.shape[-1]:
        bits = torch.arange(8, dtype=torch.uint8, device=values.device)
        values = torch.where((weight.signs[rows][..., None] >> bits & 1).bool().flatten(-2), -values, values)
    return _scaled(values, weight.scales[rows].float(), weight.group_size)


def _block_float4(weight: Any, rows: Rows) -> torch.Tensor:
    table = torch.tensor(_E2M1, device=weight.codes.device)
    scales = weight.scales[rows] if weight.scales.itemsize > 1 else _byte_scales(weight.scales, rows)
    return _scaled(table[unpack4(weight.codes[rows]).int()], scales.float(), weight.group_size)


def _byte_scales(scales: torch.Tensor, rows: Rows) -> torch.Tensor:
    """8-bit scales: floats of that size, or raw bytes, which are exponents (E8M0 of the OCP specification)."""
    chosen = scales.view(torch.uint8)[rows]
    if scales.dtype == torch.uint8:
        return torch.exp2(chosen.float() - 127)
    return chosen.view(scales.dtype).float()


def _encoded(weight: Any, rows: Rows) -> torch.Tensor:
    data = weight.data[rows]
    return to_torch(weight.decode(data.cpu().numpy()), data.device)


def _reordered(weight: Any, rows: Rows) -> torch.Tensor:
    stored = KINDS[type(weight.weight)](weight.weight, rows)
    return torch.empty_like(stored).index_copy_(-1, weight.order.long(), stored)


def _scaled(values: torch.Tensor, scales: torch.Tensor, group_size: int) -> torch.Tensor:
    return (values.unflatten(-1, (-1, group_size)) * scales[..., None]).flatten(-2)


KINDS: dict[type[Weight], Callable[[Any, Rows], torch.Tensor]] = {
    Dense: _dense,
    GroupedInt: _grouped_int,
    ChannelInt8: _channel_int8,
    Float8: _float8,
    Codebook4: _codebook4,
    VectorCodebook: _vector_codebook,
    BlockFloat4: _block_float4,
    Encoded: _encoded,
    Reordered: _reordered,
}


def _names() -> str:
    return ", ".join(sorted(kind.__name__ for kind in KINDS))
