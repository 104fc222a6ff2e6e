"""Repetition, presence and frequency penalties: which tokens of which rows, as sampling kernels take them.

Repetition (CTRL, arXiv 1909.05858) counts prompt and output: positive logits are divided, others multiplied. Frequency
and presence (OpenAI) count the output only.
"""

from collections.abc import Sequence

import numpy as np

from modulm.interfaces.sampling import Penalties, SamplingKernels
from modulm.worker.token_counts import TokenCounts

_FLOAT32 = np.finfo(np.float32)


class PenalisedRows:
    """Those rows that penalise.

    Args:
        at: Rows of the logits that it changes.
        counts: Their token counts; live.
        parameters: Their rows of `PARAMETERS`.
    """

    def __init__(self, at: Sequence[int], counts: Sequence[TokenCounts], parameters: np.ndarray) -> None:
        self._at = np.asarray(at, dtype=np.int64)
        self._counts = counts
        names = ("repetition_penalty", "frequency_penalty", "presence_penalty")
        factors = np.stack([parameters[name] for name in names])
        # A repetition penalty of 0 or infinity would make NaN of a forbidden token's -inf, or of a logit of 0.
        factors[0] = factors[0].clip(_FLOAT32.tiny, _FLOAT32.max)
        self._factors = factors.astype(np.float32)

    def apply(self, kernels: SamplingKernels, logits: object) -> None:
        """Change logits in place."""
        starts = np.zeros(len(self._at) + 1, dtype=np.int64)
        ids = [counts.token_ids for counts in self._counts]
        starts[1:] = np.cumsum([len(each) for each in ids])
        occurred = np.concatenate([counts.output_counts for counts in self._counts])
        kernels.penalise(logits, self._at, Penalties(starts, np.concatenate(ids), occurred, self._factors))
