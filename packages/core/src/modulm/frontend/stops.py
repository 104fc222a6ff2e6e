"""Stop strings over text that comes in pieces: nothing of a stop string is sent, however it is cut.

The match that is complete first wins; of those complete at the same character, the longest. So the result depends on
the text alone, never on its pieces. Works with a Knuth-Morris-Pratt state per stop string, which is both the search and
the number of characters that might still become a match. Knows no tokens.
"""


class StopStrings:
    """Watches one text.

    Attributes:
        matched: The stop string that ended the text, or None; nothing may be fed once it is set.
    """

    def __init__(self, stops: list[str], *, include_in_output: bool = False) -> None:
        self.matched: str | None = None
        self._include = include_in_output
        self._machines = [_Matcher(stop) for stop in stops]
        self._held = ""
        self._first = {stop[0] for stop in stops}

    def feed(self, text: str, *, armed: bool = True) -> str:
        """Return the text that is certain to be output. Matches that are complete while not `armed` do not count."""
        if not self._machines:
            return text
        if not self._held and self._first.isdisjoint(text) and not any(each.length for each in self._machines):
            return text
        for position, character in enumerate(text):
            complete = [machine.stop for machine in self._machines if machine.advance(character)]
            if complete and armed:
                self.matched = max(complete, key=len)
                whole = self._held + text[: position + 1]
                self._held = ""
                return whole if self._include else whole[: len(whole) - len(self.matched)]
        whole = self._held + text
        num_held = 0 if self._include else max(machine.length for machine in self._machines)
        certain = len(whole) - num_held
        self._held = whole[certain:]
        return whole[:certain]

    def flush(self) -> str:
        """Return what was held back, when the text ended without a match."""
        held, self._held = self._held, ""
        return held


class _Matcher:
    """One stop string. `length` is that of its longest beginning with which the text so far ends."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = 0
        self._fallback = [0] * len(stop)
        """For each beginning, the longest shorter one with which it ends."""
        for position in range(1, len(stop)):
            self._fallback[position] = self._extend(self._fallback[position - 1], stop[position])

    def advance(self, character: str) -> bool:
        """Take the next character; return whether it completes the stop string."""
        self.length = self._extend(self.length, character)
        if self.length < len(self.stop):
            return False
        self.length = self._fallback[-1]
        return True

    def _extend(self, length: int, character: str) -> int:
        while length and self.stop[length] != character:
            length = self._fallback[length - 1]
        return length + 1 if self.stop[length] == character else 0
