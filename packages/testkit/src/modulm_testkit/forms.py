"""A small vocabulary, and ways to write under a grammar: what tests of structured output are made of.

It has every byte, tokens of several characters, of parts of characters and across the signs of JSON, special tokens,
empty ones, and logits beyond the last. Knows no backend; what a grammar may allow is for `structured.py` to say.
"""

import random
from collections.abc import Iterable

import numpy as np

from modulm.interfaces.structured import CompiledGrammar, Grammar, Vocabulary

_WORDS = ['{"', '":', '", "', '": "', " true", "null", "name", "age", "12", "345", '"}', "]}", "é", "ab", "yes", "\n  "]
_BYTES = [bytes([byte]) for byte in range(256)]
_PARTS = ["é😀".encode()[1:4], "é😀".encode()[2:4]]
TOKENS = [*_BYTES, *(word.encode() for word in _WORDS), *_PARTS, b"", b"<bos>", b"", b"</s>"]
BOS, EMPTY, EOS = len(TOKENS) - 3, len(TOKENS) - 2, len(TOKENS) - 1
_OTHER_EOS = len(TOKENS) - 4
VOCABULARY = Vocabulary(
    tokens=TOKENS,
    size=300,
    special_ids=[_OTHER_EOS, BOS, EOS],
    eos_token_ids=[EOS, _OTHER_EOS],
    encode=lambda text: _encode(text.encode()),
)
ORDINARY = frozenset(
    at for at, token in enumerate(TOKENS) if token and at not in (*VOCABULARY.special_ids, *VOCABULARY.eos_token_ids)
)
"""Ids that add to the text."""
_IDS = {token: at for at, token in reversed(list(enumerate(TOKENS[:-4])))}


def _encode(text: bytes) -> list[int]:
    """Take the longest token that fits, from the left."""
    ids = []
    while text:
        longest = next(length for length in range(min(len(text), 5), 0, -1) if text[:length] in _IDS)
        ids.append(_IDS[text[:longest]])
        text = text[longest:]
    return ids


def allowed(grammar: Grammar) -> set[int]:
    """Return the ids that the mask allows; those beyond the vocabulary too, if their bits are set."""
    mask = np.zeros(VOCABULARY.num_words, np.uint32)
    grammar.fill(mask)
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


def started(compiled: CompiledGrammar, ids: Iterable[int]) -> Grammar:
    """Return a grammar that has accepted the ids."""
    grammar = compiled.start()
    assert grammar.accept(list(ids)), "what it has allowed it does not accept"
    return grammar


def takes(compiled: CompiledGrammar, text: str | bytes) -> bool:
    """Whether a text may be written, a byte at a time, and be the whole output."""
    grammar = compiled.start()
    text = text.encode() if isinstance(text, str) else text
    return all(grammar.accept([byte]) for byte in text) and bool(allowed(grammar) & set(VOCABULARY.eos_token_ids))


def written(compiled: CompiledGrammar, seed: int, *, most: int = 400, ends: bool = True) -> list[int]:
    """Return ids chosen at random among the ordinary ones that masks allow, up to an end or to `most`.

    Signs that close something are preferred, or texts would go on for long. Without `ends` the token that ends an
    output is not chosen where there is another.
    """
    chance, grammar, ids = random.Random(seed), compiled.start(), list[int]()
    closing = [at for at, token in enumerate(TOKENS) if token in (b'"', b"}", b"]", b'"}', b"]}")]
    ending = set(VOCABULARY.eos_token_ids)
    while len(ids) < most:
        here = allowed(grammar)
        if not here & ORDINARY or (ends and here & ending and chance.random() < 0.5):
            break
        near = [at for at in closing if at in here]
        ids.append(chance.choice(near) if near and chance.random() < 0.3 else chance.choice(sorted(here & ORDINARY)))
        if not grammar.accept(ids[-1:]):
            raise AssertionError(f"token {ids[-1]} is allowed after {text_of(ids[:-1])!r} and not accepted")
    return ids


def text_of(ids: Iterable[int]) -> bytes:
    """Return what ids stand for."""
    return b"".join(TOKENS[token_id] for token_id in ids)
