"""Activations in 8-bit floats, a scale for each token: which ones a device multiplies, what weights' bits mean there.

AMD's gfx942 has e4m3 without a negative zero and without infinities ("fnuz"), whose numbers are half of what the same
bits are in e4m3fn: weights keep their bits, and twice the scale makes up for it. Source: the OCP 8-bit floating point
specification, and "FP8 numbers" in the HIP documentation.
"""

from dataclasses import dataclass

import torch

_NVIDIA_SINCE = (8, 9)
_FNUZ = ("gfx940", "gfx941", "gfx942")
_OCP = ("gfx95", "gfx12")
_NAN, _NEGATIVE_ZERO = 0x7F, 0x80
_SMALLEST = 1e-12
"""What a token of zeros has for its largest number."""


@dataclass(frozen=True)
class Rounding:
    """How a device has 8-bit floats: torch's type, the largest number, and what weights of the same bits are worth."""

    dtype: torch.dtype
    largest: float
    factor: float

    def rounded(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return activations [num_tokens, in_features] in 8 bits, and scales float32 [num_tokens], by `factor` wider.

        In torch, since Triton's interpreter rounds to 8 bits wrongly: a few passes beside a product of many tokens.
        """
        scales = x.abs().amax(1, keepdim=True).float().clamp_(min=_SMALLEST) / self.largest
        rounded = (x.float() / scales).clamp_(-self.largest, self.largest).to(self.dtype)
        return rounded, (scales * self.factor).flatten()


OCP = Rounding(torch.float8_e4m3fn, 448.0, 1.0)
FNUZ = Rounding(torch.float8_e4m3fnuz, 240.0, 2.0)


def rounding(data: torch.Tensor) -> Rounding | None:
    """Return how the device of e4m3fn bytes multiplies 8-bit floats; None where it does not.

    May change `data` so that both readings of it agree: a negative zero becomes a zero where its bits mean NaN.
    """
    if not data.is_cuda:
        return OCP  # the interpreter
    properties = torch.cuda.get_device_properties(data.device)
    if torch.version.hip is None:
        return OCP if (properties.major, properties.minor) >= _NVIDIA_SINCE else None
    architecture = str(properties.gcnArchName)
    if architecture.startswith(_OCP):
        return OCP
    return FNUZ if architecture.startswith(_FNUZ) and made_fnuz(data) else None


def made_fnuz(data: torch.Tensor) -> bool:
    """Make e4m3fn bytes, in place, such that fnuz has half of each; False where one is NaN: its bits differ."""
    if bool(((data & _NAN) == _NAN).any()):
        return False
    data[data == _NEGATIVE_ZERO] = 0
    return True
