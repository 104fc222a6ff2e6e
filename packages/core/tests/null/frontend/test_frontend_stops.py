"""Stop strings: however the text is cut, the result is that of searching the whole text."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modulm.frontend.stops import StopStrings


def whole_text(text, stops, include, first=0):
    """The oracle: try every end in order, the longest stop string first; matches that end by `first` do not count."""
    for end in range(first + 1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return (text[:end] if include else text[: end - len(stop)]), stop
    return text, None


def run(pieces, stops, include=False, first=0):
    watch = StopStrings(stops, include_in_output=include)
    sent, position = [], 0
    for piece in pieces:
        position += len(piece)
        sent.append(watch.feed(piece, armed=position > first))
        if watch.matched:
            break
    else:
        sent.append(watch.flush())
    return sent, watch.matched


def cut(text, marks):
    bounds = [0, *sorted(m % (len(text) + 1) for m in marks), len(text)]
    return [text[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]


words = st.text("ab", min_size=1, max_size=5)


@settings(max_examples=300, deadline=None)
@given(
    text=st.text("abc", max_size=24), stops=st.lists(words, max_size=4), include=st.booleans(),
    marks=st.lists(st.integers(0, 99), max_size=12),
)  # fmt: skip
def test_equals_the_search_of_the_whole_text(text, stops, include, marks):
    sent, matched = run(cut(text, marks), stops, include)
    assert ("".join(sent), matched) == whole_text(text, stops, include)


def test_nothing_of_a_stop_string_is_sent():
    """Every piece sent is a beginning of the final text, at every moment."""
    pick = random.Random(3)
    for _ in range(300):
        text = "".join(pick.choice("ab") for _ in range(30))
        stops = ["".join(pick.choice("ab") for _ in range(pick.randrange(3, 9))) for _ in range(2)]
        final, _ = whole_text(text, stops, include=False)
        sent, _ = run(text, stops)
        assert final.startswith("".join(sent))


def test_a_stop_string_spread_over_pieces():
    assert run(["hi\n", "\nHu", "man: x"], ["\n\nHuman"]) == (["hi", "", ""], "\n\nHuman")
    assert run(list("ABCDEFGHIJ"), ["DEFGHIJ"]) == (["A", "B", "C", *[""] * 7], "DEFGHIJ")


def test_what_cannot_become_a_stop_string_is_sent_at_once():
    assert run(["ab", "x"], ["abc"])[0] == ["", "abx", ""]
    assert run(["hello"], ["</s>"])[0] == ["hello", ""]


def test_matches_before_the_minimum_do_not_count():
    pieces = ["a", "b", "a", "b", "a", "b"]
    assert run(pieces, ["ab"], first=3) == (["", "ab", "", ""], "ab")
    for first in range(7):
        sent, matched = run(pieces, ["ab"], first=first)
        assert ("".join(sent), matched) == whole_text("ababab", ["ab"], False, first)


@pytest.mark.parametrize("include", [True, False])
def test_without_stop_strings_text_passes(include):
    assert run(["a", "b"], [], include) == (["a", "b", ""], None)
