"""Sampling kernels that are wrong in one way each, made of core's."""

from dataclasses import replace

import numpy as np
from contract import Contract

from modulm.reference.sampling_numpy import NumpySampling
from modulm_testkit.sampling import SamplingConformance

sampling = Contract("sampling", SamplingConformance, "kernels", NumpySampling, wrap=lambda made: made())
mutant = sampling.mutant


@mutant("test_argmax")
class TakesTheLast(NumpySampling):
    """Of equal logits the last counts."""

    def argmax(self, logits, rows):
        found = super().argmax(logits, rows)
        last = logits.shape[1] - 1 - super().argmax(logits[:, ::-1], rows)
        return np.where(found < 0, found, last)


@mutant("test_no_token_where_none_can_be")
class DrawsWhereNothingIs(NumpySampling):
    """A row without a finite best gives the first token."""

    def draw(self, logits, rows, parameters, numbers):
        return super().draw(logits, rows, parameters, numbers).clip(min=0)


@mutant("test_mask")
class NeedsWholeWords(NumpySampling):
    """The last word of a mask counts only if the vocabulary fills it."""

    def mask(self, logits, rows, bitmask):
        bitmask = bitmask.copy()
        if logits.shape[1] % 32 and logits.shape[1] > 1 and logits.shape[1] != 50:
            bitmask[:, -1] = 0xFFFFFFFF
        super().mask(logits, rows, bitmask)


@mutant("test_bias")
class AddsMinusInfinity(NumpySampling):
    """-inf is added like any other value, which makes NaN of +inf."""

    def bias(self, logits, rows, ids, values):
        with np.errstate(invalid="ignore"):
            logits[rows, ids] += values


@mutant("test_penalties")
class DividesAlways(NumpySampling):
    """Repetition divides what is negative as well."""

    def penalise(self, logits, rows, penalties):
        at = np.repeat(rows, np.diff(penalties.starts))
        repetition = np.repeat(penalties.factors[0], np.diff(penalties.starts))
        values = logits[at, penalties.ids].astype(np.float64)
        logits[at, penalties.ids] = np.where(values > 0, values, values / repetition**2)
        super().penalise(logits, rows, penalties)


@mutant("test_draw")
class KeepsOneMore(NumpySampling):
    """Top-k keeps k + 1, where k is at least 5."""

    def draw(self, logits, rows, parameters, numbers):
        large = np.where(parameters.top_k >= 5, parameters.top_k + 1, parameters.top_k)
        return super().draw(logits, rows, replace(parameters, top_k=large), numbers)


@mutant("test_every_row_has_its_own_parameters")
class TakesTheFirstRows(NumpySampling):
    """All rows are drawn with the temperature of the first."""

    def draw(self, logits, rows, parameters, numbers):
        first = np.full_like(parameters.temperature, parameters.temperature[:1].sum())
        return super().draw(logits, rows, replace(parameters, temperature=first), numbers)


@mutant("test_scores")
class CountsFromZero(NumpySampling):
    """The likeliest token has rank 0."""

    def scores(self, logits, rows, token_ids, num_top):
        found = super().scores(logits, rows, token_ids, num_top)
        return found._replace(ranks=found.ranks - 1)


@mutant("test_leaves_logits_as_they_are")
class ShiftsInPlace(NumpySampling):
    """Scores take off each row's largest logit where it stands."""

    def scores(self, logits, rows, token_ids, num_top):
        found = super().scores(logits, rows, token_ids, num_top)
        logits[rows] -= logits[rows].max(-1, keepdims=True)
        return found


@mutant("test_no_rows_are_no_work")
class NeedsARow(NumpySampling):
    """A call of no rows raises."""

    def argmax(self, logits, rows):
        if not len(rows):
            raise IndexError("index 0 is out of bounds for axis 0 with size 0")
        return super().argmax(logits, rows)
