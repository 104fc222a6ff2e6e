"""Parameters of pooling, for IO processors that name them. modulm pools nothing, so nobody asks for them."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class PoolingParams:
    """What is to be pooled."""

    task: str | None = None
    dimensions: int | None = None
    skip_reading_prefix_cache: bool | None = None
    extra_kwargs: dict[str, Any] | None = field(default=None)
