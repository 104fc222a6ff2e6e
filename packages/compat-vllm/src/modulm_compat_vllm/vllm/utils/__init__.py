"""Small functions that plugins import from `vllm.utils`, those of them that mean the same here."""

import uuid

from vllm.utils.collection_utils import is_list_of
from vllm.utils.import_utils import import_from_path, resolve_obj_by_qualname
from vllm.utils.math_utils import cdiv, next_power_of_2, prev_power_of_2, round_down, round_up

__all__ = [
    "cdiv",
    "import_from_path",
    "is_list_of",
    "next_power_of_2",
    "prev_power_of_2",
    "random_uuid",
    "resolve_obj_by_qualname",
    "round_down",
    "round_up",
]


def random_uuid() -> str:
    """Return 32 random hexadecimal digits."""
    return uuid.uuid4().hex
