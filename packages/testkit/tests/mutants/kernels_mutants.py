"""Kernel providers that are wrong in one way each, made of core's."""

import torch
from contract import Contract

from modulm.interfaces.quantization import Dense, GroupedInt
from modulm.interfaces.support import Rejected
from modulm.reference.linear_torch import TorchKernels
from modulm_testkit.kernels import KernelConformance

kernels = Contract("kernels", KernelConformance, "provider", TorchKernels)
kernels.also("an object", TorchKernels())
mutant = kernels.mutant


class Wrong(TorchKernels):
    """Core's provider; `linear` and `rows` of its packed weights go through the methods of that name here."""

    precision = None

    def configure(self, *, num_threads, precision):
        self.precision = precision

    def pack(self, weight, device, dtype):
        return Packed(self, weight, super().pack(weight, device, dtype))

    def linear(self, packed, x):
        return packed.inner.linear(x)

    def rows(self, packed, index, dtype):
        return packed.inner.rows(index, dtype)

    def size_bytes(self, packed):
        return packed.inner.size_bytes


class Packed:
    def __init__(self, provider, weight, inner):
        self.provider, self.weight, self.inner = provider, weight, inner

    def linear(self, x):
        return self.provider.linear(self, x)

    def rows(self, index, dtype):
        return self.provider.rows(self, index, dtype)

    @property
    def size_bytes(self):
        return self.provider.size_bytes(self)


@mutant("test_supports_always_answers")
class LooksKindsUp(TorchKernels):
    """`supports` raises KeyError for a kind that it does not know."""

    def supports(self, op, weight, device_type):
        {"_Strange": 0, "Weight": 1}.get(type(weight).__name__) == 0 and {}[type(weight)]
        return super().supports(op, weight, device_type)


@mutant("test_serves_something")
class ServesNothing(TorchKernels):
    """It rejects every weight."""

    def supports(self, op, weight, device_type):
        return Rejected("no kernel was built")


@mutant("test_describes_itself")
class DescribesNothing(TorchKernels):
    """`describe` returns None."""

    def describe(self):
        return None


@mutant("test_linear")
class LosesHalfPrecision(Wrong):
    """Weights stored in float16 count a tenth less."""

    def linear(self, packed, x):
        is_narrow = isinstance(packed.weight, Dense) and packed.weight.data.dtype.name == "float16"
        return 0.9 * packed.inner.linear(x) if is_narrow else packed.inner.linear(x)


@mutant("test_group_sizes")
class KnowsOneGroupSize(Wrong):
    """Groups are taken to have 32 or 64 inputs."""

    def linear(self, packed, x):
        is_other = getattr(packed.weight, "group_size", 32) not in (32, 64)
        return 2 * packed.inner.linear(x) if is_other else packed.inner.linear(x)


@mutant("test_rows")
class SortsRows(Wrong):
    """Rows come in ascending order."""

    def rows(self, packed, index, dtype):
        return packed.inner.rows(index.sort().values, dtype)


@mutant("test_numbers_of_tokens")
class WorksInTiles(Wrong):
    """Of more than 16 tokens those of the last tile are left out."""

    def linear(self, packed, x):
        out = packed.inner.linear(x)
        if len(x) > 16:
            out[len(x) // 16 * 16 :] = 0
        return out


@mutant("test_odd_sizes")
class NeedsWholeVectors(Wrong):
    """Outputs past the last multiple of 8 stay zero."""

    def linear(self, packed, x):
        out = packed.inner.linear(x)
        out[:, out.shape[1] // 8 * 8 :] = 0
        return out


@mutant("test_results_have_the_dtype_of_activations")
class AnswersInFloat32(Wrong):
    """Results are float32, whatever activations are."""

    def linear(self, packed, x):
        return packed.inner.linear(x).float()


@mutant("test_takes_views")
class IgnoresStrides(Wrong):
    """Activations are read as if they were contiguous."""

    def linear(self, packed, x):
        return packed.inner.linear(x.as_strided(x.shape, (x.shape[1], 1)))


@mutant("test_leaves_activations_as_they_are")
class ClearsActivations(Wrong):
    """Activations are zero after the product."""

    def linear(self, packed, x):
        out = packed.inner.linear(x)
        x.zero_()
        return out


@mutant("test_packs_read_only_arrays")
class ShiftsCodesInPlace(TorchKernels):
    """Packing works in the weight's own arrays."""

    def pack(self, weight, device, dtype):
        if isinstance(weight, GroupedInt):
            codes = weight.codes
            codes ^= 0x88
            codes ^= 0x88
        return super().pack(weight, device, dtype)


@mutant("test_counts_its_bytes")
class CountsRows(Wrong):
    """`size_bytes` is the number of rows."""

    def size_bytes(self, packed):
        return packed.weight.out_features


@mutant("test_weights_do_not_share_memory")
class ReusesItsBuffer(Wrong):
    """All weights are unpacked into one buffer, the last one's."""

    def pack(self, weight, device, dtype):
        self.last = super().pack(weight, device, dtype)
        return self.last

    def linear(self, packed, x):
        return self.last.inner.linear(x)


@mutant("test_nan_stays_in_its_row")
class ScalesByTheBatch(Wrong):
    """Activations are scaled by the largest of the whole batch."""

    def linear(self, packed, x):
        if not x.numel():
            return packed.inner.linear(x)
        return packed.inner.linear(x) * (x.abs().max() / x.abs().max()).to(x.dtype)


@mutant("test_fast_is_close_enough")
class RoundsToFourBits(Wrong):
    """When told to be fast it rounds activations to 4 bits."""

    def linear(self, packed, x):
        if self.precision == "fast":
            step = x.abs().amax(-1, keepdim=True) / 7
            x = torch.round(x / step) * step
        return packed.inner.linear(x)
