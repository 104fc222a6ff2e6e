"""Keys and values as a narrow cache holds them, in plain torch: numbers become stored ones, and these numbers again.

Slow and obvious: what `interfaces/kv_cache.py` says of each dtype, number by number. A head's scales of its own follow
its codes in memory. Knows no blocks and no attention: `attention_torch.py` does.
"""

import torch

from modulm.interfaces.kv_cache import KV_CACHE_DTYPES, KVScales

_FLOAT8 = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
_GROUP = 16
"""Numbers of a head that share a scale in `nvfp4`."""
_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
"""Magnitudes of 4-bit floats by code; code 8 and above are negative."""
_FROM, _ABOVE = torch.tensor([0.75, 1.75, 3.5]), torch.tensor([0.25, 1.25, 2.5, 5.0])
"""Where the next magnitude begins: ties go to the even code."""


def width(dtype: str, head_size: int) -> int:
    """Return how many numbers of the cache's type in memory one head of a token takes."""
    if dtype == "int8_per_token_head":
        return head_size + 4  # one float32
    return head_size // 2 + head_size // _GROUP if dtype == "nvfp4" else head_size


def layer_scales(scales: KVScales | None, device: torch.device) -> torch.Tensor:
    """Return float32 [2, heads or 1, 1], keys' before values'."""
    found = ((1.0,), (1.0,)) if scales is None else (scales.key, scales.value)
    return torch.tensor(found, device=device).unsqueeze(2)


def stored(numbers: torch.Tensor, dtype: str, scales: torch.Tensor) -> torch.Tensor:
    """Return [..., 2, heads, `width`] in the cache's type in memory, for numbers [..., 2, heads, head_size].

    Rounds to nearest even and cuts off what is too large. What is not a number stays none.
    """
    if dtype in _FLOAT8:
        return _float8(numbers.float() / scales, _FLOAT8[dtype])
    if dtype == "int8_per_token_head":
        return _with_token_scales(numbers.float())
    if dtype == "nvfp4":
        return _float4(numbers.float(), scales)
    return numbers.to(getattr(torch, KV_CACHE_DTYPES[dtype].tensor))


def restored(cached: torch.Tensor, dtype: str, scales: torch.Tensor) -> torch.Tensor:
    """Return float32 [..., 2, heads, head_size] of what `stored` returned."""
    if dtype in _FLOAT8:
        return cached.view(_FLOAT8[dtype]).float() * scales
    if dtype == "int8_per_token_head":
        return cached[..., :-4].float() * cached[..., -4:].contiguous().view(torch.float32)
    if dtype == "nvfp4":
        size = cached.shape[-1] * 16 // 9
        pairs, groups = cached[..., : size // 2], cached[..., size // 2 :]
        codes = torch.stack((pairs & 15, pairs >> 4), -1).flatten(-2).long()
        signed = torch.cat((_E2M1, -_E2M1)).to(cached.device)[codes]
        factors = groups.contiguous().view(torch.float8_e4m3fn).float() * scales
        return (signed.unflatten(-1, (-1, _GROUP)) * factors.unsqueeze(-1)).flatten(-2)
    return cached.float()


def _float8(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    largest = torch.finfo(dtype).max
    return numbers.clamp(-largest, largest).to(dtype).view(torch.uint8)


def _with_token_scales(numbers: torch.Tensor) -> torch.Tensor:
    """Infinite where some number is not finite, so that all are not a number then."""
    scale = numbers.abs().amax(-1, keepdim=True) / 127
    scale = torch.where(scale.isfinite(), scale, torch.inf)
    is_usual = (scale > 0) & scale.isfinite()
    codes = torch.where(is_usual, numbers / scale, 0.0).round().clamp(-127, 127).to(torch.int8)
    return torch.cat((codes, scale.contiguous().view(torch.int8)), -1)


def _float4(numbers: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Two codes in a byte, the first in its low half, then the groups' scales."""
    groups = numbers.unflatten(-1, (-1, _GROUP))
    scale = _float8(groups.abs().amax(-1) / 6 / scales, torch.float8_e4m3fn)
    factors = (scale.view(torch.float8_e4m3fn).float() * scales).unsqueeze(-1)
    size = torch.where(factors > 0, groups / factors, 0.0).abs().unsqueeze(-1)
    codes = (size > _ABOVE.to(size.device)).sum(-1) + (size >= _FROM.to(size.device)).sum(-1)
    codes = (codes + 8 * (groups < 0)).flatten(-2).to(torch.uint8)
    return torch.cat((codes[..., ::2] | codes[..., 1::2] << 4, scale), -1)
