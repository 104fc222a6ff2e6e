"""Logits processors that are wrong in one way each: a request may ban its last token, or its prompt's first."""

import torch
from contract import Contract

from modulm.interfaces.logits import AdapterLogitsProcessor, LogitsProcessor, MoveDirectionality, follow_rows
from modulm_testkit.logits import LogitsProcessorConformance

PARAMS = [{"extra_args": {"ban": "last"}}, {"extra_args": {"ban": "first"}}]
BAD = [{"extra_args": {"ban": "nothing"}}]


def kind(params):
    return (params.extra_args or {}).get("ban")


class Bans(LogitsProcessor):
    """Keeps, for each row that bans something, parameters, prompt and output."""

    @classmethod
    def validate_params(cls, sampling_params):
        if kind(sampling_params) not in (None, "last", "first"):
            raise ValueError(f"ban={kind(sampling_params)!r} is unknown. There are: last, first.")

    def __init__(self, config, device, is_pin_memory):
        self.rows = {}

    def is_argmax_invariant(self):
        return False

    def update_state(self, batch_update):
        if batch_update is not None:
            follow_rows(self.rows, batch_update, self.new)

    def new(self, params, prompt, output):
        return (params, prompt, output) if kind(params) else None

    def apply(self, logits):
        for row, (params, prompt, output) in self.rows.items():
            if kind(params) == "last" and output:
                logits[row, output[-1]] = -torch.inf
            if kind(params) == "first" and prompt:
                logits[row, prompt[0]] = -torch.inf
        return logits


class Sharpens(Bans):
    """Takes half off all but the likeliest, so that it may say that the likeliest stays."""

    def is_argmax_invariant(self):
        return True

    def apply(self, logits):
        rows = list(self.rows)
        best = logits[rows].max(-1, keepdim=True).values
        logits[rows] = torch.where(logits[rows] == best, logits[rows], logits[rows] - 0.5)
        return logits


class Adapted(AdapterLogitsProcessor):
    """The same bans, one callable for each request."""

    validate_params = Bans.validate_params

    def is_argmax_invariant(self):
        return False

    def new_req_logits_processor(self, params):
        if not kind(params):
            return None

        def ban(prompt, output, row):
            token = output[-1:] if kind(params) == "last" else (prompt or [])[:1]
            row[token] = -torch.inf
            return row

        return ban


logits = Contract(
    "logits", LogitsProcessorConformance, "processor_class", Bans, params=PARAMS, bad_params=BAD,
)  # fmt: skip
logits.also("sharpens", Sharpens)
logits.also("adapted", Adapted)


def by_the_book(self, row, params, prompt, output):
    token = {"last": output[-1:], "first": (prompt or [])[:1], None: []}[kind(params)]
    row[token] = float("-inf")
    return row


logits.also("by expected", Bans, expected=by_the_book)
mutant = logits.mutant


@mutant("test_follows_its_rows")
class IgnoresMoves(Bans):
    """One-way moves are not heard."""

    def update_state(self, batch_update):
        if batch_update is not None:
            swaps = [move for move in batch_update.moved if move[2] is MoveDirectionality.SWAP]
            super().update_state(type(batch_update)(**{**vars(batch_update), "moved": swaps}))


@mutant("test_follows_swaps")
class MovesOneWay(Bans):
    """A swap moves one of the two."""

    def update_state(self, batch_update):
        if batch_update is not None:
            moved = [(a, b, MoveDirectionality.UNIDIRECTIONAL) for a, b, _ in batch_update.moved]
            super().update_state(type(batch_update)(**{**vars(batch_update), "moved": moved}))


@mutant("test_a_new_request_replaces_the_old")
class KeepsTheOld(Bans):
    """Where a plain request replaces another that was not announced as removed, the old bans stay."""

    def update_state(self, batch_update):
        if batch_update is None:
            return
        plain = {row for row, params, *_ in batch_update.added if not kind(params)} - set(batch_update.removed)
        before = dict(self.rows)
        super().update_state(batch_update)
        self.rows.update({row: before[row] for row in plain & set(before)})


@mutant("test_sees_new_tokens")
class CopiesTheOutput(Bans):
    """The output is copied when the request comes."""

    def new(self, params, prompt, output):
        return super().new(params, prompt, list(output))


@mutant("test_prompts_may_be_unknown")
class NeedsAPrompt(Bans):
    """A request without prompt tokens raises TypeError."""

    def new(self, params, prompt, output):
        return super().new(params, prompt[:], output)


@mutant("test_rows_are_independent")
class ScalesTheBatch(Bans):
    """Where one row has a logit above 15 all rows are scaled down."""

    def apply(self, logits):
        largest = logits.abs().max()
        out = super().apply(logits)
        return out * 15 / largest if largest > 15 else out


@mutant("test_returns_logits")
class ReturnsFloat64(Bans):
    """The result is float64."""

    def apply(self, logits):
        return super().apply(logits).double()


@mutant("test_nothing_may_have_changed")
class WantsToHearFirst(Bans):
    """None as the first update raises."""

    heard = False

    def update_state(self, batch_update):
        if batch_update is None and not self.heard:
            raise AttributeError("'NoneType' object has no attribute 'removed'")
        self.heard = True
        super().update_state(batch_update)


@mutant("test_says_whether_the_likeliest_stays")
class ClaimsTooMuch(Bans):
    """It bans what may be the likeliest, and says that the likeliest stays."""

    def is_argmax_invariant(self):
        return True


@mutant("test_validates_parameters")
class RaisesKeyError(Bans):
    """Bad parameters raise KeyError."""

    @classmethod
    def validate_params(cls, sampling_params):
        {None: 0, "last": 1, "first": 2}[kind(sampling_params)]
