"""What commands tell the user beside the answer: loading progress on a terminal, a failure, one line at the end."""

import resource
import sys
import time
from typing import TYPE_CHECKING, Any

from modulm.errors import EngineError

if TYPE_CHECKING:
    from modulm.config import EngineConfig
    from modulm.llm import LLM
    from modulm.outputs import RequestOutput

_BAR_WIDTH = 24
_REDRAW_S = 0.1


class LoadProgress:
    """A bar on stderr while weights load. Writes nothing when stderr is not a terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._drawn_at = 0.0

    def __enter__(self) -> "LoadProgress":
        return self

    def update(self, done: int, total: int) -> None:
        """Draw the bar; at most ten times a second."""
        now = time.monotonic()
        if not self._shown or (now - self._drawn_at < _REDRAW_S and done < total):
            return
        self._drawn_at = now
        filled = _BAR_WIDTH * done // max(total, 1)
        bar = "#" * filled + "-" * (_BAR_WIDTH - filled)
        sys.stderr.write(f"\rLoading weights [{bar}] {done}/{total}")
        sys.stderr.flush()

    def __exit__(self, *exc: Any) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def load_llm(config: "EngineConfig") -> "LLM":
    """Build the engine, with a `LoadProgress` meanwhile."""
    from modulm.llm import LLM

    with LoadProgress() as progress:
        return LLM.from_config(config, progress=progress.update)


def raise_if_failed(output: "RequestOutput") -> None:
    """Raise `EngineError` with what the engine says where it refused or failed the request."""
    if output.error is not None:
        raise EngineError(output.error)


def summary_line(llm: "LLM", num_tokens: int, seconds: float) -> str:
    """Return one line: model, plugins used, tokens per second, peak memory."""
    plugins = ", ".join(llm.plugins_used()) or "none"
    rate = num_tokens / seconds if seconds else 0.0
    return (
        f"[model {llm.config.model} | plugins {plugins} | {num_tokens} tokens at {rate:.1f} tok/s "
        f"| peak memory {peak_memory_bytes() / 1e6:.0f} MB]"
    )


def peak_memory_bytes() -> int:
    """Return the largest resident size this process has had (Linux counts in KiB, macOS in bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
