"""Choosing one implementation of a family, by name or automatically, with the reason of every candidate.

An explicit name is used or the run stops; automatic choice takes the first that accepts. Knows nothing of what is
asked: the caller's `ask` puts the question.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from modulm.errors import (
    ConfigError,
    Incompatible,
    ModulmError,
    NotInstalled,
    PluginError,
    SettingError,
    UnknownName,
    Unsupported,
)
from modulm.interfaces.support import Accepted, Rejected, Support
from modulm.log import logger, warn_once
from modulm.plugins import discovery, loading, refs
from modulm.plugins.families import NOUNS, describe
from modulm.plugins.policy import matches
from modulm.plugins.records import LoadRecord, is_strict
from modulm.plugins.registry import registry

_log = logger("plugins")
_logged: set[str] = set()
_PASSING = (ModulmError, *refs.PASSING)
T = TypeVar("T")


@dataclass(frozen=True)
class Choice:
    """What was chosen, and why not the others.

    `trace` has the answer of each candidate that was asked, in order; `str()` is one line for the log.
    """

    family: str
    name: str
    value: Any
    trace: list[tuple[str, Support]] = field(default_factory=list)

    def __str__(self) -> str:
        others = [f"{name}: {a.reason}" for name, a in self.trace if isinstance(a, Rejected)]
        notes = [a.note for name, a in self.trace if name == self.name and isinstance(a, Accepted) and a.note]
        reasons = "; ".join([*notes, *(f"not {other}" for other in others)])
        return f"{self.family}={self.name}" + (f" ({reasons})" if reasons else "")


def choose(family: str, asked: str | None, candidates: Sequence[str], ask: Callable[[Any], Support]) -> Choice:
    """Choose an implementation of `family`.

    Args:
        family: Such as "modulm.attention".
        asked: A name, `distribution:name`, or None or "auto" for automatic choice.
        candidates: Names for automatic choice, best first; also what an error offers instead.
        ask: Gets the implementation (usually a class) and says whether it can serve.

    Raises:
        Unsupported: What was asked for refuses, or everything does; with reasons and what would be accepted.
        UnknownName, NotInstalled, Broken, Incompatible, ConfigError: What was asked for cannot be had.
    """
    if asked is None or asked == "auto":
        choice = _automatic(family, candidates, ask)
    else:
        choice = _explicit(family, asked, candidates, ask)
    if (line := str(choice)) not in _logged:
        _logged.add(line)
        _log.info("Chosen: %s", line)
    return choice


def _explicit(family: str, asked: str, candidates: Sequence[str], ask: Callable[[Any], Support]) -> Choice:
    if asked not in registry(family):  # vLLM's names are in capitals
        asked = next((name for name in registry(family).names() if name.lower() == asked.lower()), asked)
    value = registry(family).get(asked)
    answer = _question(family, asked, value, ask)
    if isinstance(answer, Accepted):
        return Choice(family, asked, value, [(asked, Accepted(answer.note or "asked for"))])
    others = [name for name in candidates if name != asked]
    accepted = [name for name in others if _answer(family, name, ask)[1]]
    advice = "Leave the choice to 'auto', or name one of those." if accepted else "No other candidate accepts either."
    raise Unsupported(
        f"{NOUNS[family]} {asked!r} cannot serve here: {answer.reason}. Accepted instead: "
        f"{', '.join(accepted) or 'none'}. {advice}"
    )


def _automatic(family: str, candidates: Sequence[str], ask: Callable[[Any], Support]) -> Choice:
    trace: list[tuple[str, Support]] = []
    for name in candidates:
        value, answer = _answer(family, name, ask)
        trace.append((name, answer))
        if isinstance(answer, Accepted):
            return Choice(family, name, value, trace)
    reasons = "; ".join(f"{name}: {answer.reason}" for name, answer in trace if isinstance(answer, Rejected))
    raise Unsupported(
        f"No {NOUNS[family].lower()} can serve here. Asked: {reasons or 'none, as none is installed'}. Install one "
        "that can, or change what it refuses."
    )


def _answer(family: str, name: str, ask: Callable[[Any], Support]) -> tuple[Any, Support]:
    """Ask a candidate nobody named: one that fails is a rejection, or an error if strict."""
    try:
        value = registry(family).get(name)
        return value, _question(family, name, value, ask)
    except (NotInstalled, UnknownName):
        return None, Rejected("not installed")
    except SettingError:
        raise
    except ConfigError as error:
        return None, Rejected(str(error))
    except PluginError as error:
        if is_strict():
            raise
        if record := record_of(family, name):
            loading.failed(record, error)
        warn_once(_log, f"{error} Another one is used. MODULM_STRICT_PLUGINS=1 makes this an error.")
        return None, Rejected(str(error))


def _question(family: str, name: str, value: Any, ask: Callable[[Any], Support]) -> Support:
    answer = run(family, name, "asking whether it can serve", ask, value)
    if not isinstance(answer, Accepted | Rejected):
        raise Incompatible(
            f"{NOUNS[family]} {name!r} answered {describe(answer)}, but must answer Accepted or Rejected."
        )
    return answer


def make(family: str, name: str, *args: Any) -> Any:
    """Return an object of the implementation that has the name; raises what `Registry.get` and `run` raise."""
    return run(family, name, "making it", registry(family).get(name), *args)


def run(group: str, name: str, doing: str, function: Callable[..., T], *args: Any) -> T:
    """Call into what was chosen ("making it"). Raises `Broken` with the cause chained; our own errors as they are."""
    record = record_of(group, name)
    if record is not None:
        return loading.run(record, doing, function, *args, passing=_PASSING)
    try:
        return function(*args)
    except _PASSING:
        raise
    except BaseException as error:
        raise refs.broken(f"{NOUNS[group]} {name!r}", doing, error) from error


def record_of(group: str, name: str) -> LoadRecord | None:
    """Return the plugin that has the name; None where it is built in or registered."""
    return next((each for each in discovery.records(group) if each.usable and matches(name, each)), None)
