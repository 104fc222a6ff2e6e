"""Groups of processes, each of which has one member here."""

from dataclasses import dataclass


@dataclass(frozen=True)
class GroupCoordinator:
    """A group of one."""

    rank: int = 0
    rank_in_group: int = 0
    local_rank: int = 0
    world_size: int = 1
    is_first_rank: bool = True
    is_last_rank: bool = True


_ALONE = GroupCoordinator()


def get_world_group() -> GroupCoordinator:
    """Return the group of all processes."""
    return _ALONE


def get_tp_group() -> GroupCoordinator:
    """Return the group that shares layers."""
    return _ALONE


def get_pp_group() -> GroupCoordinator:
    """Return the group that has the layers one after the other."""
    return _ALONE


def get_tensor_model_parallel_world_size() -> int:
    """Return how many share a layer."""
    return _ALONE.world_size


def get_tensor_model_parallel_rank() -> int:
    """Return which of them this is."""
    return _ALONE.rank_in_group
