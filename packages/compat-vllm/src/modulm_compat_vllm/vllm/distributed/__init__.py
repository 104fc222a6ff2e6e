"""One process on one device: every group has one member, and what is reduced or gathered stays as it is."""

from vllm.distributed.parallel_state import (
    get_pp_group,
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    get_tp_group,
    get_world_group,
)
from vllm.distributed.utils import divide, split_tensor_along_last_dim

__all__ = [
    "divide",
    "get_pp_group",
    "get_tensor_model_parallel_rank",
    "get_tensor_model_parallel_world_size",
    "get_tp_group",
    "get_world_group",
    "split_tensor_along_last_dim",
    "tensor_model_parallel_all_gather",
    "tensor_model_parallel_all_reduce",
]


def tensor_model_parallel_all_reduce(input_: object) -> object:
    """Return the sum over one member."""
    return input_


def tensor_model_parallel_all_gather(input_: object, dim: int = -1) -> object:
    """Return the parts of one member."""
    return input_
