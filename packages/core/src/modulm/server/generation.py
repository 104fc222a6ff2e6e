"""The engine's outputs for one HTTP request, which may bring several prompts; and the end of them when its client goes.

Knows prompts, outputs and connections; not what is written of them (`reply.py`).
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from starlette.types import Receive

from modulm.errors import EngineError, RequestError
from modulm.outputs import RequestOutput
from modulm.sampling_params import SamplingParams
from modulm.server.errors import GenerationFailed

if TYPE_CHECKING:
    from modulm.async_llm import AsyncLLM

Numbered = tuple[int, RequestOutput]
"""An output and the number of its prompt."""


async def outputs(
    llm: "AsyncLLM", prompts: Sequence[Any], params: SamplingParams, **options: Any
) -> AsyncGenerator[list[Numbered], None]:
    """Yield what is new of all prompts, as much at once as there is; close it to abort them all.

    Raises `RequestError` before the first output when any prompt is refused, and `EngineError` when one fails.
    """
    if len(prompts) == 1:
        stream = llm.generate(prompts[0], params, **options)
        async with aclosing(stream):  # type: ignore[type-var]
            async for output in stream:
                _check(output)
                yield [(0, output)]
        return
    box: asyncio.Queue[Numbered | Exception | None] = asyncio.Queue(len(prompts))
    pumps = [asyncio.create_task(_pump(box, i, llm.generate(p, params, **options))) for i, p in enumerate(prompts)]
    try:
        num_open = len(pumps)
        while num_open:
            news = [await box.get()]
            while not box.empty():
                news.append(box.get_nowait())
            num_open -= news.count(None)
            for item in news:
                if isinstance(item, Exception):
                    raise item
            if batch := [item for item in news if isinstance(item, tuple)]:
                yield batch
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(
    box: "asyncio.Queue[Numbered | Exception | None]", number: int, stream: AsyncIterator[RequestOutput]
) -> None:
    """Carry one prompt's outputs into the common box; its end is None, its failure the exception."""
    try:
        async with aclosing(stream):  # type: ignore[type-var]
            async for output in stream:
                _check(output)
                await box.put((number, output))
        await box.put(None)
    except Exception as error:
        await box.put(error)


def _check(output: RequestOutput) -> None:
    """Raise for a request that the engine could not finish: no client asked for that end."""
    if output.refused is not None:
        raise RequestError(output.error or "", parameter=output.refused)
    if output.error is not None:
        raise GenerationFailed(output.error)
    for completion in output.outputs:
        if completion.finish_reason in ("abort", "error"):
            raise EngineError("The request was ended early, as this server is shutting down. Send it again elsewhere.")


async def until_closed(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do the work; cancel it as soon as the client has closed its connection. The body must have been read.

    The work has a task of its own: what a token wakes is then no deeper than it must be, and not all middleware.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_end_when_closed(working, receive))
    try:
        await working
    except asyncio.CancelledError:
        here = asyncio.current_task()
        if here is None or here.cancelling():
            raise
    finally:
        watching.cancel()


async def _end_when_closed(working: "asyncio.Task[None]", receive: Receive) -> None:
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    finally:
        working.cancel()
