"""Runs an engine as a child process: reads its figures, notes its peak memory and its exit. Knows no engine by name."""

import json
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

POLL_S = 0.25


@dataclass
class Outcome:
    """What a child printed and how it ended; `reason` is None when it ended well."""

    figures: list[dict[str, Any]] = field(default_factory=list)
    reason: str | None = None


def descendants(pid: int) -> list[int]:
    """Return `pid` and all processes below it."""
    parents: dict[int, list[int]] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        parents.setdefault(int(parent), []).append(int(entry))
    found = [pid]
    for each in found:
        found += parents.get(each, [])
    return found


def peak_bytes(pid: int) -> int:
    """Return VmHWM of one process; 0 once it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:")), 0)


class MemoryWatch:
    """Looks at a process tree four times a second; `peak` is the largest sum of the peaks of those alive together."""

    def __init__(self, pid: int) -> None:
        self.peak = 0
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while True:
            self.peak = max(self.peak, sum(map(peak_bytes, descendants(self._pid))))
            if self._stop.wait(POLL_S):
                return

    def stop(self) -> int:
        """End the watch and return the peak in bytes."""
        self._stop.set()
        self._thread.join()
        return self.peak


def run(command: list[str], variables: dict[str, str], log: Path, timeout_s: float) -> Outcome:
    """Run `command`; its lines other than figures go to `log`. First-token times are from before exec."""
    outcome = Outcome()
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(f"$ {' '.join(command)}\n")
    with log.open("a", buffering=1) as others:  # appending: the child writes to it as well
        started = time.monotonic()
        process = subprocess.Popen(
            command,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=others,
            text=True,
            process_group=0,
        )
        watch = MemoryWatch(process.pid)
        timer = threading.Timer(timeout_s, _end, [process])
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if not _take(line, started, outcome):
                    others.write(line)
            process.wait()
        finally:
            timer.cancel()
            _end(process)
            outcome.figures.append({"figure": "memory", "value": watch.stop() / 1e6})
    if process.returncode:
        outcome.reason = f"exit status {process.returncode}: {_last_line(log)}"
    return outcome


def _end(process: subprocess.Popen[str]) -> None:
    """End the child and all that it started, if it has not ended."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _take(line: str, started: float, outcome: Outcome) -> bool:
    """Keep a line that is a figure."""
    if not line.startswith('{"figure"'):
        return False
    figure = json.loads(line)
    if figure["figure"] == "first_token":
        figure["value"] -= figure.pop("started", started)
    outcome.figures.append(figure)
    return True


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:200]
