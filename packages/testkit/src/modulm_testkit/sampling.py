"""Conformance of sampling kernels (`modulm.interfaces.sampling`): what a sampler does with whole rows of logits.

Rows are few, and shorter and longer than any vector. What is drawn is compared with shares in float64; where rules
decide by less than float32 can tell, nothing is compared.
"""

from typing import Any, ClassVar

import numpy as np
import pytest

from modulm.interfaces.sampling import NO_TOKEN, DrawParameters, Penalties
from modulm_testkit.oracles.sampling import Shares, descending, log_probabilities, penalised
from modulm_testkit.suite import Conformance, ask_for

_SIZES = (1, 2, 31, 32, 33, 513, 1500)
_OPTIONS: tuple[dict[str, Any], ...] = (
    {}, {"temperature": 0.05}, {"temperature": 30.0}, {"min_p": 0.13}, {"top_k": 1}, {"top_k": 3}, {"top_k": 40},
    {"top_p": 0.03}, {"top_p": 0.913}, {"top_k": 5, "top_p": 0.5}, {"min_p": 1e-3, "top_k": 20, "top_p": 0.9},
    {"temperature": 0.7, "min_p": 0.05, "top_p": 0.8}, {"top_k": 10**6},
)  # fmt: skip


class SamplingConformance(Conformance):
    """Give `kernels`: an object, as `KernelProvider.sampling` returns it.

    Attributes:
        device: torch's device type of the logits it works on; None: arrays on the host.
    """

    device: ClassVar[str | None] = None

    @pytest.fixture(name="kernels")
    def _kernels(self) -> Any:
        """Return the object."""
        ask_for("kernels", "MyKernels().sampling()")

    @pytest.fixture
    def given(self, kernels: Any) -> "_Kernels":
        """The kernels under arrays, wherever they work."""
        return _Kernels(kernels, self.device)

    @pytest.mark.parametrize("size", _SIZES)
    def test_argmax(self, given: "_Kernels", size: int) -> None:
        """Of equal logits the first counts; rows come in any order, and need not be all."""
        logits = random_logits(7, size, step=0.5)
        rows = np.array([6, 0, 3])
        assert given.call("argmax", logits, rows).tolist() == [descending(logits[row])[0] for row in rows]

    def test_no_token_where_none_can_be(self, given: "_Kernels") -> None:
        """A row with NaN or +inf, or of nothing but -inf, gives `NO_TOKEN`; its neighbours give theirs."""
        for spoiling in (np.nan, np.inf, -np.inf):
            logits = random_logits(3, 40)
            logits[1, slice(None) if spoiling == -np.inf else 17] = spoiling
            found = given.call("argmax", logits, np.arange(3))
            assert (found == NO_TOKEN).tolist() == [False, True, False], f"argmax beside {spoiling}: {found}"
            for options in ({}, {"top_k": 3}, {"top_p": 0.5}):
                drawn = given.call("draw", logits, np.arange(3), parameters(3, **options), np.full(3, 0.5))
                assert (drawn == NO_TOKEN).tolist() == [False, True, False], f"draw beside {spoiling}: {drawn}"

    @pytest.mark.parametrize("size", _SIZES)
    def test_mask(self, given: "_Kernels", size: int) -> None:
        """A token whose bit is 0 is forbidden: bit t % 32 of word t // 32, whatever the bits behind the last one."""
        rng = np.random.default_rng(size)
        logits = random_logits(3, size)
        bitmask = rng.integers(0, 2**32, (2, -(-size // 32)), dtype=np.uint32)
        wanted = logits.copy()
        for at, row in enumerate((2, 0)):
            for token in range(size):
                if not int(bitmask[at, token // 32]) >> (token % 32) & 1:
                    wanted[row, token] = -np.inf
        np.testing.assert_array_equal(given.change("mask", logits, np.array([2, 0]), bitmask), wanted)

    def test_bias(self, given: "_Kernels") -> None:
        """Values are added to single tokens; -inf forbids, whatever stands there."""
        logits = random_logits(3, 20)
        logits[1, 4], logits[1, 5] = np.inf, np.nan
        rows, ids = np.array([0, 0, 1, 1, 2]), np.array([3, 19, 4, 5, 0])
        values = np.array([2.5, -np.inf, -np.inf, -np.inf, 1.0], np.float32)
        wanted = logits.copy()
        for row, token, value in zip(rows, ids, values, strict=True):
            wanted[row, token] = value if value == -np.inf else wanted[row, token] + value
        np.testing.assert_array_equal(given.change("bias", logits, rows, ids, values), wanted)

    def test_penalties(self, given: "_Kernels") -> None:
        """Repetition divides what is positive and multiplies the rest; frequency and presence are taken off."""
        rng = np.random.default_rng(5)
        logits = random_logits(4, 50)
        logits[2, 7], logits[0, 0] = -np.inf, 3e38
        rows, starts = np.array([2, 0, 3]), np.array([0, 5, 14, 14])
        ids = np.concatenate([[7], 8 + rng.permutation(42)[:4], [0], 1 + rng.permutation(49)[:8]])
        counts = rng.integers(0, 4, 14).astype(np.float32)
        factors = np.array([[1.3, 0.5, 2.0], [0.5, -0.25, 1.0], [1.5, -1.0, 1.0]], np.float32)
        wanted = logits.astype(np.float64)
        for at, row in enumerate(rows):
            for place in range(starts[at], starts[at + 1]):
                wanted[row, ids[place]] = penalised(wanted[row, ids[place]], counts[place], *factors[:, at])
        found = given.change("penalise", logits, rows, Penalties(starts, ids, counts, factors))
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize("options", _OPTIONS, ids=str)
    def test_draw(self, given: "_Kernels", options: dict[str, Any]) -> None:
        """The drawn token is the one in whose share of the cumulated weight the number falls."""
        rng = np.random.default_rng(3)
        for size, step in ((5, 0.25), (33, None), (513, 0.25), (1500, None)):
            logits = random_logits(4, size, step=step)
            logits[1, rng.random(size) < 0.5] = -np.inf
            logits[1, 0] = 1.0
            numbers = rng.random(4)
            drawn = given.call("draw", logits, np.arange(4), parameters(4, **options), numbers)
            for row, token, number in zip(logits, drawn.tolist(), numbers, strict=True):
                shares = Shares(row, **{"temperature": 1.0, "min_p": 0.0, "top_k": 0, "top_p": 1.0, **options})
                if shares.is_clear:
                    assert shares.allows(token, number), f"{options}, {size} tokens: {token} for {number}"

    def test_every_row_has_its_own_parameters(self, given: "_Kernels") -> None:
        """Rows of one call may be drawn in different ways: each as if it were alone."""
        logits, numbers = random_logits(4, 100), np.array([0.999, 0.2, 0.7, 0.4])
        several = DrawParameters(
            temperature=np.array([1.0, 0.5, 2.0, 1.0], np.float32),
            log_min_p=np.array([-np.inf, -2.0, -np.inf, -np.inf], np.float32),
            top_k=np.array([0, 0, 3, 0]),
            top_p=np.array([1.0, 1.0, 1.0, 0.4]),
        )
        together = given.call("draw", logits, np.arange(4), several, numbers)
        alone = []
        for row in range(4):
            own = DrawParameters(**{name: value[[row]] for name, value in vars(several).items()})
            alone += given.call("draw", logits, np.array([row]), own, numbers[[row]]).tolist()
        assert together.tolist() == alone

    def test_scores(self, given: "_Kernels") -> None:
        """Log-probabilities and ranks of given tokens, and of as many of the likeliest as each row asks for."""
        logits = random_logits(4, 300, step=0.5)
        rows, tokens, num_top = np.array([3, 0, 2]), np.array([7, 299, 0]), np.array([5, 0, 2])
        found = given.call("scores", logits, rows, tokens, num_top)
        for at, row in enumerate(rows):
            logs, order = log_probabilities(logits[row]), descending(logits[row])
            assert abs(found.logprobs[at] - logs[tokens[at]]) < 1e-5
            assert found.ranks[at] == 1 + (logits[row] > logits[row, tokens[at]]).sum()
            count = num_top[at]
            assert found.top_ids[at, :count].tolist() == order[:count]
            np.testing.assert_allclose(found.top_logprobs[at, :count], logs[order[:count]], rtol=0, atol=1e-5)

    def test_leaves_logits_as_they_are(self, given: "_Kernels") -> None:
        """`argmax`, `draw` and `scores` only read; `mask`, `bias` and `penalise` touch no other row."""
        logits, rows = random_logits(4, 50), np.array([1])
        for call in (
            ("argmax", rows),
            ("draw", rows, parameters(1, top_p=0.5), np.array([0.3])),
            ("scores", rows, np.array([3]), np.array([2])),
        ):
            np.testing.assert_array_equal(given.change(call[0], logits, *call[1:]), logits, err_msg=call[0])
        changed = given.change("mask", logits, rows, np.zeros((1, 2), np.uint32))
        np.testing.assert_array_equal(changed[[0, 2, 3]], logits[[0, 2, 3]])

    def test_no_rows_are_no_work(self, given: "_Kernels") -> None:
        """A call may be of no rows at all."""
        logits, none = random_logits(2, 50), np.empty(0, np.int64)
        assert len(given.call("argmax", logits, none)) == 0
        assert len(given.call("draw", logits, none, parameters(0), np.empty(0))) == 0


class _Kernels:
    """Calls the kernels with arrays, also those that work on tensors."""

    def __init__(self, kernels: Any, device: str | None) -> None:
        self._kernels, self._device = kernels, device

    def call(self, name: str, logits: np.ndarray, *rest: Any) -> Any:
        """Return the answer; the logits are a copy."""
        return getattr(self._kernels, name)(self._placed(logits), *rest)

    def change(self, name: str, logits: np.ndarray, *rest: Any) -> np.ndarray:
        """Return what became of a copy of the logits."""
        placed = self._placed(logits)
        getattr(self._kernels, name)(placed, *rest)
        changed: np.ndarray = placed if self._device is None else placed.cpu().numpy()
        return changed

    def _placed(self, logits: np.ndarray) -> Any:
        if self._device is None:
            return logits.copy()
        import torch

        return torch.from_numpy(logits.copy()).to(self._device)


def random_logits(rows: int, size: int, step: float | None = None) -> np.ndarray:
    """Return float32 logits; rounded to `step`, so that there are equal ones."""
    numbers = np.random.default_rng([rows, size]).normal(0, 3, (rows, size))
    return (numbers if step is None else np.round(numbers / step) * step).astype(np.float32)


def parameters(
    count: int, temperature: float = 1.0, min_p: float = 0.0, top_k: int = 0, top_p: float = 1.0
) -> DrawParameters:
    """Return the same parameters for so many rows."""
    with np.errstate(divide="ignore"):
        log_min_p = np.log(np.full(count, min_p)).astype(np.float32)
    return DrawParameters(
        temperature=np.full(count, temperature, np.float32),
        log_min_p=log_min_p,
        top_k=np.full(count, top_k, np.int64),
        top_p=np.full(count, top_p, np.float64),
    )
