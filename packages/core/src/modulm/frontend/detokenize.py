"""Token ids to text as they come: each step gives the text that is certain, and the pieces add up to the whole text.

"Whole text" is what `Tokenizer.decode` makes of all ids together. Time is linear: an id is decoded a few times at most.
Characters whose bytes are spread over tokens are held back until they are complete. Stop strings are in `stops.py`.
"""

import codecs
from collections.abc import Collection, Sequence
from itertools import islice
from typing import Protocol

from modulm.frontend.tokenizer import Tokenizer

_MAX_HELD = 16
"""Tokens held for one unfinished character by decoders that we do not know; a character has at most four bytes."""
_MAX_BYTES = 4


class Detokenizer(Protocol):
    """The text of one sequence, growing."""

    def step(self, token_id: int) -> str:
        """Return the text that this id makes certain; often one token's, sometimes none."""

    def finish(self) -> str:
        """Return what was held back: an incomplete character is U+FFFD. Nothing may follow."""


def detokenizer(
    tokenizer: Tokenizer,
    *,
    prompt_token_ids: Sequence[int] = (),
    skip_special_tokens: bool = True,
    spaces_between_special_tokens: bool = True,
    kept: Collection[str] = (),
) -> Detokenizer:
    """Return a fresh detokenizer for the tokenizer's kind of decoder.

    With a prompt the text continues it: the first word keeps its space, and a character that the prompt began is
    completed. `spaces_between_special_tokens=False` puts special tokens side by side where the decoder would not.
    Special tokens of the texts `kept` are never skipped.
    """
    skipped = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
    if kept:
        skipped = frozenset(token_id for token_id in skipped if tokenizer.added_tokens[token_id] not in kept)
    if tokenizer.decoder_types == ("ByteLevel",):
        return ByteLevelDetokenizer(tokenizer, skipped, prompt_token_ids)
    joined = not spaces_between_special_tokens and not skip_special_tokens
    return WindowDetokenizer(tokenizer, skipped, prompt_token_ids, join_added=joined)


def token_bytes(tokenizer: Tokenizer, token_id: int) -> bytes:
    """Return what a token adds in the middle of a text as bytes, which may be a part of a character."""
    known = tokenizer.bytes_by_id
    if token_id not in known:
        known[token_id] = _bytes_of(tokenizer, token_id)
    return known[token_id]


class ByteLevelDetokenizer:
    """For byte-level BPE: every token is a string of bytes, and the text is their UTF-8 reading."""

    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int], prompt_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        for token_id in _last_kept(prompt_token_ids, skipped, _MAX_BYTES):
            self._utf8.decode(token_bytes(tokenizer, token_id))
        self._has_text = False

    def step(self, token_id: int) -> str:
        """Return the characters that this token's bytes complete."""
        if token_id in self._skipped:
            return ""
        self._has_text = True
        return self._utf8.decode(token_bytes(self._tokenizer, token_id))

    def finish(self) -> str:
        """Return U+FFFD for an incomplete character, unless it is all the prompt's."""
        return self._utf8.decode(b"", final=True) if self._has_text else ""


class WindowDetokenizer:
    """For every other decoder: decodes the new tokens behind one that was decoded before, and cuts that one's text off.

    So leading spaces survive, which decoders strip at the start of a text only. A run of byte tokens is held until it
    ends, because a decoder reads it as a whole: one invalid byte turns every byte of the run into U+FFFD.
    """

    def __init__(
        self, tokenizer: Tokenizer, skipped: frozenset[int], prompt_token_ids: Sequence[int], *, join_added: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._join_added = join_added
        self._last_added = False
        self._has_text = False
        self._before: list[int] = []
        self._before_text = ""
        self._held: list[int] = []
        kept = _last_kept(prompt_token_ids, skipped, _MAX_BYTES)
        if kept and tokenizer.context:
            self._set_before(tokenizer.context)
            self._held = _unfinished(tokenizer, kept)

    def step(self, token_id: int) -> str:
        """Return the new text, or nothing while a character or the first word is unfinished."""
        if token_id in self._skipped or self._tokenizer.id_to_piece(token_id) is None:
            return ""
        self._has_text = True
        joins = self._join_added and self._last_added
        self._last_added = token_id in self._tokenizer.added_tokens
        if joins and self._last_added:
            self._set_before([token_id])
            return self._tokenizer.added_tokens[token_id]
        self._held.append(token_id)
        return "" if token_id in self._tokenizer.byte_pieces else self._release(final=False)

    def finish(self) -> str:
        """Return the text of what is held, unless it is all the prompt's."""
        return self._release(final=True) if self._held and self._has_text else ""

    def _release(self, *, final: bool) -> str:
        text = self._decode(self._before + self._held)[len(self._before_text) :]
        unfinished = text.endswith("\ufffd") and "ByteLevel" in self._tokenizer.decoder_types
        if not final and unfinished and len(self._held) < _MAX_HELD:
            return ""
        if text or self._before:
            self._move_window()
        return text

    def _move_window(self) -> None:
        """Take the fewest last tokens that have a text of their own as what comes before."""
        for start in range(len(self._held) - 1, -1, -1):
            if self._decode(self._held[start:]):
                self._set_before(self._held[start:])
                break
        self._held = []

    def _set_before(self, token_ids: list[int]) -> None:
        self._before = token_ids
        self._before_text = self._decode(token_ids)

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)


def _bytes_of(tokenizer: Tokenizer, token_id: int) -> bytes:
    if token_id in tokenizer.byte_pieces:
        return bytes([tokenizer.byte_pieces[token_id]])
    if tokenizer.decoder_types != ("ByteLevel",):
        return tokenizer.token_text(token_id).encode()
    piece = tokenizer.id_to_piece(token_id)
    if piece is None:
        return b""
    try:
        return bytes([_BYTE_OF[character] for character in piece])
    except KeyError:  # an added token, written as it is
        return piece.encode()


def _last_kept(token_ids: Sequence[int], skipped: frozenset[int], count: int) -> list[int]:
    """Return the last `count` ids that are not skipped, in order."""
    kept = (token_id for token_id in reversed(token_ids) if token_id not in skipped)
    return list(islice(kept, count))[::-1]


def _unfinished(tokenizer: Tokenizer, token_ids: list[int]) -> list[int]:
    """Return the last byte tokens that begin a character and do not complete it."""
    utf8 = codecs.getincrementaldecoder("utf-8")("replace")
    for token_id in token_ids:
        if token_id in tokenizer.byte_pieces:
            utf8.decode(bytes([tokenizer.byte_pieces[token_id]]))
        else:
            utf8.reset()
    count = len(utf8.getstate()[0])
    return token_ids[-count:] if count else []


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's letters for bytes: printable ones stand for themselves, the others for U+0100 onwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
