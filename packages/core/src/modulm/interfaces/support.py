"""`Accepted` or `Rejected(reason)`: the answer of a candidate that is asked whether it can serve.

A rejection is a value, not an exception, so that "why was X not used?" always has an answer.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Accepted:
    """The candidate can serve; `note` may say how well (shown in `modulm config --explain`)."""

    note: str = ""

    def __bool__(self) -> bool:
        return True


@dataclass(frozen=True)
class Rejected:
    """The candidate cannot serve; `reason` is a clause such as "head size 320 is above its limit of 256"."""

    reason: str

    def __bool__(self) -> bool:
        return False


Support = Accepted | Rejected
