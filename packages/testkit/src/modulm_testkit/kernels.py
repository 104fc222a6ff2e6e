"""Conformance of kernel providers (`modulm.interfaces.kernels`): packed weights against float64.

Which weights it serves a provider says itself, through `supports`, as the loader asks it: others are skipped with the
reason. Errors are measured against |x| |W|, so that sizes of numbers do not matter. Where to look next: `weights.py`.
"""

from dataclasses import fields, replace
from itertools import product
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from modulm.interfaces.kernels import KernelProvider, PackedWeight
from modulm.interfaces.quantization import Weight
from modulm.interfaces.support import Accepted, Rejected
from modulm_testkit.oracles.weights import dequantised
from modulm_testkit.suite import Conformance, ask_for
from modulm_testkit.weights import KINDS, RandomWeights

_ERROR = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2}
"""Share of |x| |W|, by the dtype of activations."""
_FAST = 2e-2
"""Where activations may be rounded."""
_OPS = ("linear", "embedding")


class KernelConformance(Conformance):
    """Give `provider`: the class that the entry point of `modulm.kernels` names, or an object of it.

    Attributes:
        device: torch's device type that the kernels run on.
    """

    device: ClassVar[str] = "cpu"

    @pytest.fixture(name="provider")
    def _provider(self) -> Any:
        """Return the class, or an object of it."""
        ask_for("provider", "MyKernels")

    @pytest.fixture
    def exact(self, provider: Any) -> "_Kernels":
        """The provider, told to round no activations."""
        return _Kernels(provider, self.device, "exact")

    def test_supports_always_answers(self, provider: Any) -> None:
        """`supports` answers `Accepted` or `Rejected` with a reason for any op, weight and device; it never raises.

        The loader asks every provider about every weight. What breaks it: a kind of weight that came later.
        """
        asked = _Kernels(provider, self.device, "exact").provider
        strange = _Strange(out_features=4, in_features=4)
        weights = [strange, *(RandomWeights().make(kind) for kind in KINDS)]
        for op, weight, device in product(("convolution", *_OPS), weights, ("cpu", "oven")):
            answer, what = asked.supports(op, weight, device), f"{op} of {type(weight).__name__} on {device}"
            assert isinstance(answer, Accepted | Rejected), f"{what}: {answer!r}"
            assert isinstance(answer, Accepted) or answer.reason, f"{what}: rejected without a reason"
            assert not (answer and (op == "convolution" or weight is strange)), f"{what}: accepted"

    def test_serves_something(self, provider: Any) -> None:
        """It accepts some weight on its device; one that accepts nothing would pass everything below."""
        kernels = _Kernels(provider, self.device, "exact")
        answers = [kernels.answer(op, RandomWeights().make(kind)) for op in _OPS for kind in KINDS]
        assert any(answers), f"every weight is rejected: {answers[0]}"

    def test_describes_itself(self, exact: "_Kernels") -> None:
        """`describe` returns a string for the start-up line, empty for nothing to say."""
        assert isinstance(exact.provider.describe(), str)

    @pytest.mark.parametrize("kind", KINDS)
    def test_linear(self, exact: "_Kernels", kind: str) -> None:
        """The product x W^T in float32, for every kind of weight that is accepted."""
        exact.check_linear(exact.need("linear", RandomWeights().make(kind)), num_tokens=4)

    @pytest.mark.parametrize("group_size", [16, 64, 128])
    def test_group_sizes(self, exact: "_Kernels", group_size: int) -> None:
        """Groups may have any size that is accepted; a row has several, or one."""
        for kind in ("GroupedInt 4", "GroupedInt 8", "Codebook4", "BlockFloat4, float8_e4m3fn"):
            weight = RandomWeights(group_size=group_size).make(kind)
            if exact.answer("linear", weight):
                exact.check_linear(weight, num_tokens=4)

    @pytest.mark.parametrize("kind", KINDS)
    def test_rows(self, exact: "_Kernels", kind: str) -> None:
        """Rows of the matrix (an embedding's look-up): in the order asked for, one as often as it is asked for."""
        weight = exact.need("embedding", RandomWeights().make(kind))
        index = torch.tensor([7, 7, 12, 0, 15], device=self.device)
        found = exact.pack(weight).rows(index, torch.float32)
        assert found.dtype == torch.float32
        wanted = dequantised(weight)[index.cpu().numpy()]
        np.testing.assert_allclose(found.cpu().numpy(), wanted, rtol=2e-6, atol=2e-6)

    @pytest.mark.parametrize("num_tokens", [0, 1, 2, 3, 17, 70])
    def test_numbers_of_tokens(self, exact: "_Kernels", num_tokens: int) -> None:
        """A step has any number of tokens, also none."""
        for weight in exact.one_of_each():
            exact.check_linear(weight, num_tokens=num_tokens)

    @pytest.mark.parametrize("out_features", [1, 13, 67])
    def test_odd_sizes(self, exact: "_Kernels", out_features: int) -> None:
        """The number of outputs need not be a multiple of anything: a vocabulary is not."""
        for weight in exact.one_of_each(out_features):
            exact.check_linear(weight, num_tokens=4)

    @pytest.mark.parametrize("dtype", _ERROR)
    def test_results_have_the_dtype_of_activations(self, exact: "_Kernels", dtype: str) -> None:
        """Activations come in the model's dtype, and so do results and looked-up rows."""
        for weight in exact.one_of_each():
            packed = exact.pack(weight, dtype)
            wanted = getattr(torch, dtype)
            assert packed.linear(torch.ones(2, weight.in_features, dtype=wanted, device=self.device)).dtype == wanted
            assert packed.rows(torch.tensor([1], device=self.device), wanted).dtype == wanted
            exact.check_linear(weight, num_tokens=4, dtype=dtype)

    def test_takes_views(self, exact: "_Kernels") -> None:
        """Activations may be columns of a wider tensor, so not contiguous."""
        for weight in exact.one_of_each():
            exact.check_linear(weight, num_tokens=4, as_view=True)

    def test_leaves_activations_as_they_are(self, exact: "_Kernels") -> None:
        """Activations are only read: a residual connection still needs it."""
        for weight in exact.one_of_each():
            x = torch.randn(4, weight.in_features, device=self.device)
            before = x.clone()
            exact.pack(weight).linear(x)
            assert torch.equal(x, before)

    def test_packs_read_only_arrays(self, exact: "_Kernels") -> None:
        """A weight's arrays are views on a mapped file: packing reads them and never writes."""
        for weight in exact.one_of_each():
            arrays = {f.name: v.copy() for f in fields(weight) if isinstance(v := getattr(weight, f.name), np.ndarray)}
            for array in arrays.values():
                array.flags.writeable = False
            exact.check_linear(replace(weight, **arrays), num_tokens=4)  # type: ignore[arg-type]

    def test_counts_its_bytes(self, exact: "_Kernels") -> None:
        """`size_bytes` is what the packed weight holds: the KV cache gets what is left."""
        for weight in exact.one_of_each(67):
            size, numbers = exact.pack(weight).size_bytes, weight.out_features * weight.in_features
            assert numbers // 4 <= size <= 8 * numbers + 65536, f"{type(weight).__name__} says {size} bytes"

    def test_weights_do_not_share_memory(self, exact: "_Kernels") -> None:
        """Two packed weights are used in turn, and each stays what it is."""
        for weights in zip(exact.one_of_each(), exact.one_of_each(seed=1), strict=True):
            packed = [exact.pack(weight) for weight in weights]
            for weight, each in zip(weights, packed, strict=True):
                exact.check_linear(weight, num_tokens=3, packed=each)

    def test_nan_stays_in_its_row(self, exact: "_Kernels") -> None:
        """NaN in one token's activations reaches no other token: a step has many users."""
        for weight in exact.one_of_each():
            x = torch.randn(5, weight.in_features, device=self.device)
            packed = exact.pack(weight)
            wanted = packed.linear(x.clone()).clone()
            x[2] = torch.nan
            found = packed.linear(x)
            assert torch.isfinite(found[[0, 1, 3, 4]]).all()
            kept, before = (tensor[[0, 1, 3, 4]].cpu().numpy() for tensor in (found, wanted))
            np.testing.assert_allclose(kept, before, rtol=1e-4, atol=1e-4)

    def test_fast_is_close_enough(self, provider: Any) -> None:
        """With precision "fast" activations may be rounded, but results stay within 2 % of |x| |W|."""
        fast = _Kernels(provider, self.device, "fast")
        for weight in fast.one_of_each():
            fast.check_linear(weight, num_tokens=4)


class _Strange(Weight):
    """A kind that nobody knows."""


class _Kernels:
    """A provider that was told how exact to be; `need` skips what it rejects."""

    def __init__(self, provider: Any, device: str, precision: str) -> None:
        self.provider: KernelProvider = provider() if isinstance(provider, type) else provider
        self.device, self.precision = device, precision
        self.provider.configure(num_threads=None, precision=precision)

    def answer(self, op: str, weight: Weight) -> Accepted | Rejected:
        """Ask the provider."""
        return self.provider.supports(op, weight, self.device)

    def need(self, op: str, weight: Weight) -> Weight:
        """Return the weight, or skip the test."""
        answer = self.answer(op, weight)
        if isinstance(answer, Rejected):
            pytest.skip(f"it rejects {op} of this: {answer.reason}")
        return weight

    def one_of_each(self, out_features: int = 16, seed: int = 0) -> list[Weight]:
        """Return a weight of each kind that is served; skip the test if there is none."""
        made = [RandomWeights(out_features, seed=seed).make(kind) for kind in KINDS]
        by_type = {(type(w), getattr(w, "bits", 0)): w for w in made if self.answer("linear", w)}
        if not by_type:
            pytest.skip("it rejects every weight: see test_serves_something")
        return list(by_type.values())

    def pack(self, weight: Weight, dtype: str = "float32") -> PackedWeight:
        """Pack a weight."""
        return self.provider.pack(weight, self.device, dtype)

    def check_linear(
        self,
        weight: Weight,
        *,
        num_tokens: int,
        dtype: str = "float32",
        as_view: bool = False,
        packed: PackedWeight | None = None,
    ) -> None:
        """Compare x W^T with float64."""
        rng = np.random.default_rng(num_tokens)
        wide = torch.from_numpy(rng.normal(size=(num_tokens, weight.in_features + 5))).to(
            self.device, getattr(torch, dtype)
        )
        x = wide[:, 2 : 2 + weight.in_features]
        if not as_view:
            x = x.contiguous()
        numbers, matrix = x.double().cpu().numpy(), dequantised(weight)
        found = (packed or self.pack(weight, dtype)).linear(x).double().cpu().numpy()
        wanted, size = numbers @ matrix.T, np.abs(numbers) @ np.abs(matrix).T
        assert found.shape == wanted.shape
        limit = _ERROR[dtype] if self.precision == "exact" else max(_FAST, _ERROR[dtype])
        error = float((np.abs(found - wanted) / size).max(initial=0.0))
        kind = f"{type(weight).__name__} {getattr(weight, 'bits', '')}".strip()
        assert error <= limit, f"{kind}, {num_tokens} tokens of {dtype}: {error:.1e} of |x| |W|, allowed {limit:.1e}"
