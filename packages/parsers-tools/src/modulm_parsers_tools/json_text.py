"""JSON as models write it -> JSON as it should be, passed on while it is read.

Forgiven: single quotes, keys without quotes, Python's True, False and None, commas too many, raw line breaks and wrong
escapes in strings, brackets that are closed wrongly, or not at all before something that is no JSON. Time is linear and
depth costs nothing. Knows no format.
"""

import json
import re

from modulm.interfaces.parsers import Event
from modulm.interfaces.reading import NOTHING, GrowingText, Make, Reading

_PLAIN = {'"': re.compile(r'[^"\\\x00-\x1f]+'), "'": re.compile(r"""[^'"\\\x00-\x1f]+""")}
"""What stands for itself between quotes of each kind."""
_WORD = re.compile(r"[\w.+$-]+")
_KEY, _BARE = re.compile(r"[^:,{}\[\]<]+"), re.compile(r"[^,{}\[\]<]+")
_CLOSING = {"{": "}", "[": "]"}
_PYTHON = {"True": "true", "False": "false", "None": "null", "NaN": "null"}
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_HALF = re.compile("[\ud800-\udfff]")


def copy_value(text: GrowingText, make: Make, quote: str = "") -> Reading[bool]:
    """Report the next value as JSON text; returns whether it has ended. White space before it must have been read.

    Args:
        quote: Where a format has a word of its own for quotes: strings between two of it have no escapes, and what
            stands without is one item up to the next comma or bracket, spaces included.
    """
    written = _Structure()
    while True:
        yield make(written.space((yield from text.skip_space())))
        found = yield from text.peek()
        if not found:
            return False
        if found in ",:" and written.closing:
            yield make(written.mark((yield from text.take())))
        elif found in "}]" and written.closing:
            yield make(written.close((yield from text.take())))
        elif found in _CLOSING:
            yield make(written.open((yield from text.take())))
        elif found in _PLAIN:
            yield make(written.item())
            if not (yield from copy_string(text, make)):
                return False
        elif quote and found == quote[0] and (yield from text.accept(quote)):
            yield make(written.item())
            if not (yield from _copy_plain(text, make, quote)):
                return False
        elif word := (yield from text.take_while(_item(quote, is_key=written.is_at_key))):
            is_key = written.is_at_key
            yield make(written.item() + scalar(word.rstrip(), is_key=is_key))
        else:  # no JSON, so it is not part of the value
            yield make("".join([written.close() for _ in list(written.closing)]))
            return True
        if not written.closing:
            return True


class _Structure:
    """What has been written of a value: says what must stand before each part for the whole to be JSON.

    Attributes:
        closing: The brackets that have to come, innermost last.
    """

    def __init__(self) -> None:
        self.closing: list[str] = []
        self._num_open = {"}": 0, "]": 0}
        self._last = "open"
        """What was last inside the innermost bracket: open, key, ":", value or ","."""
        self._held = ""
        """A comma or colon and the space behind it, until there is something for it to stand before."""

    @property
    def is_at_key(self) -> bool:
        """Whether a key comes next."""
        return self.closing[-1:] == ["}"] and self._last in ("open", "value", ",")

    def space(self, space: str) -> str:
        """White space; it goes with a mark before it."""
        if not self._held:
            return space
        self._held += space
        return ""

    def mark(self, mark: str) -> str:
        """A comma or colon; one that cannot stand here is dropped."""
        written = ""
        if mark == ":" and self._last == "key":
            self._last = self._held = ":"
        elif mark == "," and self._last in ("key", ":", "value"):
            written = self._missing_value()
            self._last = self._held = ","
        return written

    def item(self) -> str:
        """A string, number or bracket comes next."""
        before = self._held or {"key": ":", "value": ","}.get(self._last, "")
        self._last, self._held = "key" if self.is_at_key else "value", ""
        return before if self.closing else ""

    def open(self, bracket: str) -> str:
        """An opening bracket; no key can begin with one, so it gets an empty key."""
        before = self.item() + ('"":' if self._last == "key" else "")
        self.closing.append(_CLOSING[bracket])
        self._num_open[_CLOSING[bracket]] += 1
        self._last = "open"
        return before + bracket

    def close(self, bracket: str = "") -> str:
        """A closing bracket: it closes those inside its own too, or the innermost when there is none of its own."""
        written = ""
        while True:
            closed = self.closing.pop()
            self._num_open[closed] -= 1
            written += self._missing_value() + closed
            self._last, self._held = "value", ""
            if closed == bracket or not self._num_open.get(bracket):
                return written

    def _missing_value(self) -> str:
        return {"key": ":null", ":": self._held + "null"}.get(self._last, "")


def copy_string(text: GrowingText, make: Make) -> Reading[bool]:
    """Report the next string as JSON text; returns whether it was closed."""
    quote = yield from text.take()
    yield make('"')
    while True:
        yield from text.copy_while(make, _PLAIN[quote])
        found = yield from text.take()
        if not found:
            return False
        if found == quote:
            yield make('"')
            return True
        yield make((yield from _escape(text)) if found == "\\" else _escaped(found))


def _copy_plain(text: GrowingText, make: Make, quote: str) -> Reading[bool]:
    """Report what stands before the quote as a JSON string; returns whether it was closed."""
    yield make('"')
    found = yield from text.copy(lambda piece: make(_escaped(piece)), quote)
    yield make('"' if found else "")
    return bool(found)


def _item(quote: str, *, is_key: bool) -> "re.Pattern[str]":
    return (_KEY if is_key else _BARE) if quote else _WORD


def take_value(text: GrowingText) -> Reading[str]:
    """Read the next value, and return it as JSON text."""
    pieces: list[str] = []

    def keep(piece: str) -> Event:
        pieces.append(piece)
        return NOTHING

    yield from copy_value(text, keep)
    return "".join(pieces)


def take_string(text: GrowingText) -> Reading[str]:
    """Read the next string, which must begin here, and return what it says."""
    pieces: list[str] = []

    def keep(piece: str) -> Event:
        pieces.append(piece)
        return NOTHING

    closed = yield from copy_string(text, keep)
    said: str = json.loads("".join(pieces) + ("" if closed else '"'))
    return whole_characters(said)


def whole_characters(text: str) -> str:
    """Return the text with halves of surrogate pairs joined, or replaced where there is only one: UTF-8 has none."""
    if not _HALF.search(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def scalar(word: str, *, is_key: bool = False) -> str:
    """Return a bare word as JSON: a number, true, false, null, or else a string."""
    word = word if is_key else _PYTHON.get(word, word)
    if not is_key and (word in ("true", "false", "null") or _NUMBER.fullmatch(word)):
        return word
    return json.dumps(word, ensure_ascii=False)


def _escape(text: GrowingText) -> Reading[str]:
    """Return what a backslash and what follows mean, as JSON text; nothing when the text ends before that is clear."""
    found = yield from text.take()
    if found == "u":
        digits = yield from text.peek(4)
        if _HEX.fullmatch(digits):
            return "\\u" + (yield from text.take(4))
        return "" if len(digits) < 4 else "\\\\u"
    if found == "'":
        return found
    return "\\" + found if found and found in '"\\/bfnrt' else "\\\\" + _escaped(found) if found else ""


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
