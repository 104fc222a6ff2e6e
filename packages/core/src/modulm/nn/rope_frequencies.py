"""Inverse frequencies of every kind of rotary embedding, computed as transformers 5 does (`modeling_rope_utils.py`).

Two kinds depend on how long the sequence is: dynamic NTK and LongRoPE. See `rotary.py` for what "how long" means.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from modulm.errors import CheckpointError, did_you_mean
from modulm.interfaces.program import DynamicNTK as DynamicNTKSettings
from modulm.nn.rope import Rope

_CPU = torch.device("cpu")  # models are built under a meta device, and these are numbers, not weights


class Frequencies:
    """`inverse` float32 [dim / 2], radians per position, and the factor `scaling` on cos and sin."""

    by_length = False

    def __init__(self, inverse: torch.Tensor, scaling: float = 1.0) -> None:
        self.inverse = inverse
        self.scaling = scaling

    def of(self, lengths: torch.Tensor) -> torch.Tensor:
        """Return frequencies for sequences that are `lengths` (int64 [n]) long, broadcastable to [n, dim / 2]."""
        return self.inverse

    def recorded(self) -> dict[str, Any]:
        """Return the attributes of a recorded `RotaryTables`."""
        return {"inverse": tuple(self.inverse.tolist()), "scaling": self.scaling}

    def to(self, device: torch.device) -> None:
        """Move to `device`, where that is not where they are."""
        for name, value in list(vars(self).items()):
            if isinstance(value, torch.Tensor) and value.device != device:
                setattr(self, name, value.to(device))


class DynamicNTK(Frequencies):
    """Past the stated length the base grows with the sequence (bloc97 and emozilla, LocalLLaMA 2023)."""

    by_length = True

    def __init__(self, rope: Rope) -> None:
        super().__init__(_plain(rope))
        self._rope = rope
        self._factor = float(rope.need("factor"))
        self._exponents = _exponents(rope.dim)

    def of(self, lengths: torch.Tensor) -> torch.Tensor:
        """See base class."""
        stated, dim = self._rope.max_position_embeddings, self._rope.dim
        growth = self._factor * lengths.clamp(min=stated).float() / stated - (self._factor - 1)
        base = self._rope.theta * growth ** (dim / (dim - 2))
        return 1.0 / base[:, None] ** self._exponents

    def recorded(self) -> dict[str, Any]:
        """See base class."""
        stated = self._rope.max_position_embeddings
        settings = DynamicNTKSettings(theta=self._rope.theta, factor=self._factor, stated=stated)
        return {**super().recorded(), "dynamic": settings}


class LongRoPE(Frequencies):
    """One set of factors up to the pretrained length, another past it (Ding et al. 2024, arXiv:2402.13753)."""

    by_length = True

    def __init__(self, rope: Rope) -> None:
        steps = rope.theta ** _exponents(rope.dim)
        short, long = (_factors(rope, key) for key in ("short_factor", "long_factor"))
        super().__init__(1.0 / (short * steps), _longrope_scaling(rope))
        self._long = 1.0 / (long * steps)
        self._pretrained = rope.pretrained_length

    def of(self, lengths: torch.Tensor) -> torch.Tensor:
        """See base class."""
        is_long = (lengths > self._pretrained)[:, None]
        return torch.where(is_long, self._long, self.inverse)

    def recorded(self) -> dict[str, Any]:
        """See base class."""
        return {**super().recorded(), "long_inverse": tuple(self._long.tolist()), "long_from": self._pretrained}


def frequencies(rope: Rope) -> Frequencies:
    """Return the frequencies of `rope`. Raises `CheckpointError` on an unknown kind or a missing parameter."""
    if rope.kind not in KINDS:
        raise CheckpointError(
            f"rope_type {rope.kind!r} is not implemented.{did_you_mean(rope.kind, KINDS)} "
            f"There are: {', '.join(KINDS)}. The model's config.json asks for it; use a model without it."
        )
    return KINDS[rope.kind](rope)


def _exponents(dim: int) -> torch.Tensor:
    return torch.arange(0, dim, 2, dtype=torch.int64, device=_CPU).float() / dim


def _plain(rope: Rope) -> torch.Tensor:
    """Su et al. 2021, arXiv:2104.09864."""
    return 1.0 / rope.theta ** _exponents(rope.dim)


def _linear(rope: Rope) -> Frequencies:
    """Position interpolation (Chen et al. 2023, arXiv:2306.15595)."""
    return Frequencies(_plain(rope) / float(rope.need("factor")))


def _llama3(rope: Rope) -> Frequencies:
    """Long waves are stretched, short ones kept, those between blended (Llama 3.1)."""
    inverse, factor = _plain(rope), float(rope.need("factor"))
    low, high = float(rope.need("low_freq_factor")), float(rope.need("high_freq_factor"))
    waves = 2 * math.pi / inverse
    blend = (rope.pretrained_length / waves - low) / (high - low)
    blended = (1 - blend) * inverse / factor + blend * inverse
    is_long, is_short = waves > rope.pretrained_length / low, waves < rope.pretrained_length / high
    return Frequencies(torch.where(is_long, inverse / factor, torch.where(is_short, inverse, blended)))


def _yarn(rope: Rope) -> Frequencies:
    """Peng et al. 2023, arXiv:2309.00071."""
    dim, factor, given = rope.dim, rope.extension, rope.parameters
    extrapolated = _plain(rope)

    def dimension(rotations: float) -> float:
        return dim * math.log(rope.pretrained_length / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(given.get("beta_fast") or 32), dimension(given.get("beta_slow") or 1)
    if given.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    span = high - low if high != low else 0.001
    ramp = ((torch.arange(dim // 2, dtype=torch.float32, device=_CPU) - low) / span).clamp(0, 1)
    return Frequencies(extrapolated / factor * ramp + extrapolated * (1 - ramp), _yarn_scaling(rope))


def _yarn_scaling(rope: Rope) -> float:
    given = rope.parameters
    if given.get("attention_factor") is not None:
        return float(given["attention_factor"])

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(rope.extension) + 1.0 if rope.extension > 1 else 1.0

    mscale, all_dim = given.get("mscale"), given.get("mscale_all_dim")
    return scale(mscale) / scale(all_dim) if mscale and all_dim else scale(1.0)


def _factors(rope: Rope, key: str) -> torch.Tensor:
    factors = torch.tensor(rope.need(key), dtype=torch.float32, device=_CPU)
    if factors.shape != (rope.dim // 2,):
        raise CheckpointError(
            f"{key!r} of the model's rope_parameters has {len(factors)} numbers, and {rope.dim // 2} are needed: "
            f"half of the {rope.dim} rotated dimensions."
        )
    return factors


def _longrope_scaling(rope: Rope) -> float:
    given = rope.parameters.get("attention_factor")
    if given is not None:
        return float(given)
    if rope.extension <= 1.0:
        return 1.0
    return math.sqrt(1 + math.log(rope.extension) / math.log(rope.pretrained_length))


KINDS: dict[str, Callable[[Rope], Frequencies]] = {
    "default": lambda rope: Frequencies(_plain(rope)),
    "linear": _linear,
    "dynamic": DynamicNTK,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": LongRoPE,
}
