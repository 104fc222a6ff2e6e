"""The load: requests sent to a server when their time has come, whatever became of those before (an open loop).

Streams are read by aiohttp on uvloop, as much at once as has come, and chunks are decoded by type: the client takes its
24 us a chunk (on a core of 2.7 GHz) from the server, where both share a machine. Knows no options and no statistics;
`report.py` makes those of the outcomes.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from modulm.cli.bench.dataset import Sample

_TIMEOUT_S = 6 * 3600
_MOST_SAID = 300


@dataclass(kw_only=True)
class Target:
    """Where requests go, and what they have in common: `body` holds further fields of each."""

    url: str
    model: str
    is_chat: bool
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass(kw_only=True)
class Outcome:
    """What became of one request; times in seconds.

    Attributes:
        started: When it was sent, since the start of the run.
        waited: How long it had been due by then.
        ttft: From sending to the first text; None when there was none.
        itl: Between one piece of text and the next.
        latency: From sending to the end of the stream.
        num_prompt, num_output: Tokens, as the server counts them; pieces of text where it does not say.
        error: Why it failed.
    """

    started: float = 0.0
    waited: float = 0.0
    ttft: float | None = None
    itl: list[float] = field(default_factory=list)
    latency: float = 0.0
    num_prompt: int = 0
    num_output: int = 0
    text: list[str] = field(default_factory=list)
    error: str | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


def due_times(number: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """Return when each of `number` requests is due, in seconds: gaps drawn from a gamma distribution of mean 1/rate.

    With a burstiness of 1 arrivals are a Poisson process; below, they come in bursts.
    """
    if rate == float("inf"):
        return [0.0] * number
    chance, due, times = random.Random(seed), 0.0, []
    for _ in range(number):
        times.append(due)
        due += chance.gammavariate(burstiness, 1 / (rate * burstiness))
    return times


async def run(
    target: Target, samples: Sequence[Sample], due: Sequence[float], max_concurrency: int | None
) -> tuple[list[Outcome], float]:
    """Send every sample when it is due, and no more than `max_concurrency` at once; return outcomes and seconds."""
    gate = asyncio.Semaphore(max_concurrency or len(samples))
    async with aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
        connector=aiohttp.TCPConnector(limit=0),
        json_serialize=lambda body: msgspec.json.encode(body).decode(),
    ) as session:
        start = time.perf_counter()

        async def one(sample: Sample, when: float) -> Outcome:
            await asyncio.sleep(start + when - time.perf_counter())
            async with gate:
                sent = time.perf_counter()
                outcome = Outcome(started=sent - start, waited=sent - start - when)
                await _send(session, target, sample, outcome, sent)
                outcome.latency = time.perf_counter() - sent
                return outcome

        outcomes = await asyncio.gather(*map(one, samples, due))
        return list(outcomes), time.perf_counter() - start


async def first_model(base_url: str, headers: dict[str, str]) -> str:
    """Return the name of the first model that the server says it has."""
    async with aiohttp.ClientSession(headers=headers) as session, session.get(f"{base_url}/v1/models") as answer:
        answer.raise_for_status()
        name: str = (await answer.json())["data"][0]["id"]
        return name


async def _send(session: aiohttp.ClientSession, target: Target, sample: Sample, outcome: Outcome, sent: float) -> None:
    asked = {"messages": [{"role": "user", "content": sample.prompt}]} if target.is_chat else {"prompt": sample.prompt}
    body = {
        "model": target.model,
        **asked,
        "max_tokens": sample.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        **target.body,
    }
    try:
        async with session.post(target.url, json=body, headers=target.headers) as answer:
            if answer.status != 200:
                outcome.error = f"HTTP {answer.status}: {(await answer.text())[:_MOST_SAID]}"
                return
            await _read(answer.content, outcome, sent)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        outcome.error = f"{type(error).__name__}: {error}"[:_MOST_SAID]


async def _read(content: aiohttp.StreamReader, outcome: Outcome, sent: float) -> None:
    """Read server-sent events until [DONE]."""
    last, num_pieces = sent, 0
    async for data in _events(content):
        if data == b"[DONE]":
            outcome.num_output = outcome.num_output or num_pieces
            return
        chunk = _decode(data)
        if chunk.error is not None:
            outcome.error = f"The stream ended with an error: {chunk.error}"[:_MOST_SAID]
            return
        if chunk.usage is not None:
            outcome.num_prompt, outcome.num_output = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
        text = "".join(map(_text, chunk.choices))
        if text:
            now = time.perf_counter()
            if num_pieces:
                outcome.itl.append(now - last)
            else:
                outcome.ttft = now - sent
            last, num_pieces = now, num_pieces + 1
            outcome.text.append(text)
    outcome.error = "The stream ended without [DONE]."


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield what events hold, as many at once as have come: a wait for each line would be a second one for each."""
    rest = b""
    async for piece in content.iter_any():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


def _text(choice: _Choice) -> str:
    if choice.delta is None:
        return choice.text or ""
    return (choice.delta.reasoning_content or choice.delta.reasoning or "") + (choice.delta.content or "")
