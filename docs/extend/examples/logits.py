"""Forbids the tokens that a request lists in `extra_args={"forbid": [ids]}`."""

from modulm.interfaces.logits import AdapterLogitsProcessor


class Forbid(AdapterLogitsProcessor):
    """Works row by row; derive from `LogitsProcessor` to work on the whole batch at once."""

    @classmethod
    def validate_params(cls, sampling_params):
        """Called in the front end: what is refused here is answered with status 400 and never reaches the engine."""
        ids = (sampling_params.extra_args or {}).get("forbid", [])
        if not isinstance(ids, list) or not all(isinstance(each, int) and each >= 0 for each in ids):
            raise ValueError(f"forbid={ids!r} is refused: it must be a list of token ids.")

    def is_argmax_invariant(self):
        return False  # the likeliest token may be forbidden

    def new_req_logits_processor(self, params):
        ids = (params.extra_args or {}).get("forbid")
        return None if not ids else lambda output_ids, row: row.index_fill(0, row.new_tensor(ids).long(), -float("inf"))
