"""Outputs sorted by request, so that several streams, calls and threads can wait for theirs at one front end.

Whoever waits makes the engine run, one at a time; what comes for others is put into their boxes, and they are woken.
Knows labels and outputs only; the requests themselves are `frontend.py`'s.
"""

import threading
from collections.abc import Iterable
from typing import Any

from modulm.errors import EngineError
from modulm.frontend.frontend import Frontend
from modulm.interrupts import held, let_through, released
from modulm.outputs import RequestOutput
from modulm.sampling_params import SamplingParams


class Mailboxes:
    """One box per open request. All calls may come from any thread, `close` also from a garbage collection."""

    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self._boxes: dict[str, list[RequestOutput]] = {}
        self._condition = threading.Condition()
        self._is_polling = False

    def open(self, prompt: Any, params: SamplingParams, **options: Any) -> str:
        """Submit a request (see `Frontend.submit`) and return the label to wait for; `close` must follow."""
        with held(), self._condition:  # nobody may sort its first output before it has a box
            label = self._frontend.submit(prompt, params, **options)
            self._boxes[label] = []
        return label

    def close(self, label: str) -> None:
        """Throw the box away; a request that has not ended is aborted. Takes no lock of ours."""
        with held():
            if self._boxes.pop(label, None) is not None:
                self._frontend.abort(label)

    def wait(self, labels: Iterable[str]) -> list[RequestOutput]:
        """Return what has come for any of these open requests, at least one output.

        Raises whatever the engine raises, and `EngineError` when nothing can come any more.
        """
        with held(), self._condition:
            while not (news := [output for label in labels for output in self._empty(label)]):
                if not self._is_polling:
                    self._poll()
                    continue
                with released():
                    self._condition.wait()
        return news

    def _empty(self, label: str) -> list[RequestOutput]:
        box = self._boxes[label]
        if not box:
            return box
        self._boxes[label] = []
        return box

    def _poll(self) -> None:
        """Let the engine run, with the lock given back meanwhile, until it says something; sort what it says."""
        self._is_polling = True
        outputs: list[RequestOutput] = []
        self._condition.release()
        try:
            while not outputs:
                let_through()
                self._check_work()
                outputs = self._frontend.poll()
        finally:
            self._condition.acquire()
            self._is_polling = False
            for output in outputs:
                box = self._boxes.get(output.request_id)
                if box is not None:
                    box.append(output)
            self._condition.notify_all()

    def _check_work(self) -> None:
        if not self._frontend.has_work():
            raise EngineError(
                "The engine has nothing left to do, yet a request that has not ended is waited for. "
                "This is a fault of the engine; submit the request again."
            )
