"""`SamplingKernels` in native code: the arguments are checked there, the arithmetic is in `native/sampling_row.hpp`.

Imports no torch.
"""

import numpy as np

from modulm.interfaces.sampling import DrawParameters, Penalties, Scores
from modulm_kernels_cpu.library import native


class NativeSampling:
    """See `SamplingKernels`.

    Args:
        isa: Instruction set, for tests; the best one by default.
    """

    def __init__(self, isa: str = "") -> None:
        self._native = native()
        self._isa = isa

    def argmax(self, logits: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """See `SamplingKernels`."""
        out = np.empty(len(rows), np.int64)
        self._native.sampling_argmax(logits, rows, out, self._isa)
        return out

    def mask(self, logits: np.ndarray, rows: np.ndarray, bitmask: np.ndarray) -> None:
        """See `SamplingKernels`."""
        self._native.sampling_mask(logits, rows, bitmask, self._isa)

    def bias(self, logits: np.ndarray, rows: np.ndarray, ids: np.ndarray, values: np.ndarray) -> None:
        """See `SamplingKernels`."""
        self._native.sampling_bias(logits, rows, ids, values)

    def penalise(self, logits: np.ndarray, rows: np.ndarray, penalties: Penalties) -> None:
        """See `SamplingKernels`."""
        self._native.sampling_penalise(logits, rows, *penalties)

    def draw(self, logits: np.ndarray, rows: np.ndarray, parameters: DrawParameters, numbers: np.ndarray) -> np.ndarray:
        """See `SamplingKernels`."""
        out = np.empty(len(rows), np.int64)
        self._native.sampling_draw(
            logits,
            rows,
            parameters.temperature,
            parameters.log_min_p,
            parameters.top_k,
            parameters.top_p,
            numbers,
            out,
            self._isa,
        )
        return out

    def scores(self, logits: np.ndarray, rows: np.ndarray, token_ids: np.ndarray, num_top: np.ndarray) -> Scores:
        """See `SamplingKernels`."""
        count, width = len(rows), int(num_top.max(initial=0))
        scores = Scores(
            logprobs=np.empty(count, np.float32),
            ranks=np.empty(count, np.int64),
            top_ids=np.zeros((count, width), np.int64),
            top_logprobs=np.zeros((count, width), np.float32),
        )
        self._native.sampling_scores(logits, rows, token_ids, num_top, *scores, self._isa)
        return scores
