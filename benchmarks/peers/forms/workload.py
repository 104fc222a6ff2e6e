"""The forms, and what a child measures of each. Imported by each engine's own Python: no libraries, no engine.

All forms but "long text" can be had from every backend. Each asks for more than fits, so that all outputs have the same
length. A form is compiled for the first time after the backend itself is ready: the figure is a request of one token
under it, less one without a form.
"""

import argparse
import statistics
import time
from typing import Any, Protocol

from peers.workload import BATCH, PROMPT_LEN, emit, prompts

_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]{1,20}$"},
        "age": {"type": "integer"},
        "mood": {"enum": ["glad", "calm", "tired", "cross"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 4},
    },
    "required": ["name", "age", "mood", "tags"],
    "additionalProperties": False,
}
FORMS: dict[str, dict[str, Any]] = {
    "numbers": {"json": {"type": "array", "items": {"type": "integer"}, "minItems": 80}},
    "texts": {"json": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 130}},
    "people": {"json": {"type": "array", "items": _PERSON, "minItems": 12}},
    "long text": {"json": {"type": "string", "minLength": 5000}},
    "regex": {"regex": "([a-z]{1,8} ){200}"},
}
PLAIN = "none"
_TRIVIAL = {"choice": ["yes"]}


class Refused(Exception):
    """The backend does not take the form; the text is its reason."""


class Engine(Protocol):
    """A loaded model."""

    def seconds(self, batch: list[list[int]], num_tokens: int, form: dict[str, Any] | None) -> float:
        """Time sampling at temperature 0.8, end-of-sequence ignored. Raises `Refused`."""


def measure(engine: Engine, num_tokens: int, repeats: int) -> None:
    """Print figures: `ready`, and for each form `cold` and `cached` in seconds, `rate` in tokens a second."""
    one = prompts(1, 1, 0)
    engine.seconds(one, 1, None)
    base = statistics.median(engine.seconds(one, 1, None) for _ in range(5))
    emit("ready", timed(lambda: _get_ready(engine)) - base)
    taken = []
    for name, form in FORMS.items():
        try:
            cold = engine.seconds(one, 1, form)
        except Refused as error:
            emit("refused", 0.0, form=name, reason=str(error))
            continue
        taken.append(name)
        emit("cold", cold - base, form=name)
        emit("cached", statistics.median(engine.seconds(one, 1, form) for _ in range(5)) - base, form=name)
    rates: dict[str, list[float]] = {name: [] for name in (PLAIN, *taken)}
    for number in range(repeats + 1):
        batch = prompts(BATCH, PROMPT_LEN, number)
        for name, values in rates.items():
            values.append(BATCH * num_tokens / engine.seconds(batch, num_tokens, FORMS.get(name)))
    for name, values in rates.items():
        emit("rate", statistics.median(values[1:]), form=name, all=values[1:])  # the first warms up


def _get_ready(engine: Engine) -> None:
    """Ask for a form until the backend is there: on a slow machine its library takes longer than a form may."""
    for attempt in range(10):
        try:
            engine.seconds(prompts(1, 1, 0), 1, _TRIVIAL)
            return
        except Refused:
            if attempt == 9:
                raise


def arguments(description: str | None) -> argparse.Namespace:
    """Parse what every child is given."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", required=True)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--output-len", type=int, required=True)
    parser.add_argument("--repeats", type=int, required=True)
    return parser.parse_args()


def timed(generate: Any) -> float:
    """Return the seconds that a call takes."""
    started = time.perf_counter()
    generate()
    return time.perf_counter() - started
