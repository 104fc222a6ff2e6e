"""What a worker is told of a step."""

from dataclasses import dataclass
from typing import Any


@dataclass
class SchedulerOutput:
    """How many tokens of which requests the step computes. `plan` is modulm's own account of it."""

    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    plan: Any

    @classmethod
    def of(cls, plan: Any) -> "SchedulerOutput":
        """Return what vLLM's words say of a plan."""
        counts = {each.request_id: each.num_tokens for each in plan.scheduled}
        return cls(counts, sum(counts.values()), plan)
