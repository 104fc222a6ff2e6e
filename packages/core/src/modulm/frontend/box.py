"""What a reader has not taken yet of a request's outputs, as one: a slow reader holds what is new, not every step.

Belongs to one event loop. Knows outputs only; who puts them there is `streams.py`.
"""

import asyncio

from modulm.outputs import RequestOutput


class Box:
    """Holds at most one output.

    Args:
        joins: Whether outputs tell what is new, so that two become one by joining them; else the later one counts.
    """

    def __init__(self, *, joins: bool) -> None:
        self._joins = joins
        self._held: RequestOutput | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, output: RequestOutput) -> None:
        """Add an output; it is not changed by others any more."""
        if self._held is None:
            self._held = output
        else:
            self._held.add(output, aggregate=self._joins)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def empty(self) -> bool:
        """Whether there is nothing to take."""
        return self._held is None

    async def get(self) -> RequestOutput:
        """Return what there is as soon as there is something; for one reader."""
        while self._held is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        held, self._held = self._held, None
        return held
