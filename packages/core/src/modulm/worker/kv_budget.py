"""How many KV blocks there will be: from the options, or from what memory the device has left.

Counts bytes and blocks; allocates nothing. Where the options leave no room for one sequence it says so, with numbers.
"""

from bisect import bisect_right

from modulm.config import EngineConfig
from modulm.errors import ConfigError
from modulm.interfaces.platform import Platform
from modulm.worker.groups import Grouping

_CPU_DEFAULT_BYTES = 4 << 30
"""On a CPU the cache competes with everything else on the machine, so more than this must be asked for."""
_HEADROOM = 0.9
"""Share of the memory now free that may be taken; the rest is for activations."""


def num_blocks(
    config: EngineConfig, grouping: Grouping, *, max_model_len: int, platform: Platform, weights_bytes: int
) -> int:
    """Return the number of blocks, the null block included.

    Raises `ConfigError` when one sequence of `max_model_len` does not fit, or the device is too small.
    """
    count, source = _count(config, grouping, max_model_len, platform, weights_bytes)
    size_bytes, total = count * grouping.block_bytes, platform.total_memory_bytes()
    if size_bytes > total:
        raise ConfigError(
            f"The KV cache does not fit: {source} gives {count:,} blocks of {config.block_size:,} tokens "
            f"({_size(size_bytes)}), and the device has {_size(total)} of memory. Lower "
            f"{'num_kv_blocks' if config.num_kv_blocks else 'kv_cache_memory_bytes'} or block_size."
        )
    least = 1 + _peak(config, grouping, max_model_len)
    if count >= least:
        return count
    longest = bisect_right(range(1, max_model_len + 1), count - 1, key=lambda n: _peak(config, grouping, n))
    raise ConfigError(
        f"max_model_len={max_model_len!r} does not fit: one sequence of that length needs {least:,} KV blocks of "
        f"{config.block_size} tokens ({_size(least * grouping.block_bytes)}), and {source} gives {max(count, 0):,} "
        f"({_size(max(count, 0) * grouping.block_bytes)}). The longest that fits has {longest:,} tokens. "
        f"Lower max_model_len or raise {'num_kv_blocks' if config.num_kv_blocks else 'kv_cache_memory_bytes'}."
    )


def _count(
    config: EngineConfig, grouping: Grouping, max_model_len: int, platform: Platform, weights_bytes: int
) -> tuple[int, str]:
    """Return the number of blocks and the words for where it comes from."""
    block_bytes = max(1, grouping.block_bytes)
    if config.num_kv_blocks is not None:
        return config.num_kv_blocks, f"num_kv_blocks={config.num_kv_blocks!r}"
    if config.kv_cache_memory_bytes is not None:
        return config.kv_cache_memory_bytes // block_bytes, f"kv_cache_memory_bytes={config.kv_cache_memory_bytes!r}"
    total, free = platform.total_memory_bytes(), platform.available_memory_bytes()
    budget = int(min(config.gpu_memory_utilization * total - weights_bytes, _HEADROOM * free))
    source = (
        f"gpu_memory_utilization={config.gpu_memory_utilization!r} of {_size(total)}, with {_size(free)} free and "
        f"{_size(weights_bytes)} taken by weights,"
    )
    if platform.device_type != "cpu":
        return budget // block_bytes, source
    most = 1 + config.max_num_seqs * _peak(config, grouping, max_model_len)
    if budget > _CPU_DEFAULT_BYTES:
        budget, source = _CPU_DEFAULT_BYTES, f"the default of at most {_size(_CPU_DEFAULT_BYTES)} on a CPU"
    return min(most, budget // block_bytes), source


def _peak(config: EngineConfig, grouping: Grouping, num_tokens: int) -> int:
    """Return the most blocks that one sequence of `num_tokens` holds at once."""
    size, total = config.block_size, 0
    for group in grouping.groups:
        held = -(-num_tokens // size)
        if group.sliding_window is not None:
            # The window and one step's tokens, starting anywhere in a block.
            visible = group.sliding_window - 1 + min(num_tokens, config.tokens_per_step)
            held = min(held, (visible + size - 2) // size + 1)
        total += held
    return total


def _size(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:.2f} GiB" if size_bytes >= 2**28 else f"{size_bytes / 2**20:.1f} MiB"
