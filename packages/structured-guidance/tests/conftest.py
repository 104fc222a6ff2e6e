"""A small vocabulary, and texts written by choosing at random among the tokens that a grammar allows."""

import random
from types import SimpleNamespace

import numpy as np
import pytest

from modulm.interfaces.structured import StructuredOutputsParams, Vocabulary
from modulm_structured_guidance.backend import GuidanceBackend

WORDS = [b'{"', b'":', b'", "', b" true", b"null", b"name", b"age", b"12", b"345", b'"}', b"]}", "é".encode(), b"ab"]
TOKENS = [bytes([byte]) for byte in range(256)] + WORDS + [b""]
EOS = len(TOKENS) - 1
VOCABULARY = Vocabulary(
    tokens=TOKENS, size=300, special_ids=[EOS], eos_token_ids=[EOS], encode=lambda text: list(text.encode())
)


@pytest.fixture(scope="session")
def backend():
    return GuidanceBackend(VOCABULARY)


def allowed(grammar) -> list[int]:
    mask = np.zeros(VOCABULARY.num_words, np.uint32)
    grammar.fill(mask)
    return [t for t in range(VOCABULARY.num_words * 32) if mask[t // 32] >> np.uint32(t % 32) & np.uint32(1)]


def written(backend, seed: int, **form) -> bytes:
    """Choose at random among what is allowed, until the end; prefer to end, or strings would go on for long."""
    chance, text = random.Random(seed), b""
    grammar = backend.compile(StructuredOutputsParams(**form)).start()
    for _ in range(4000):
        ids = allowed(grammar)
        assert ids and max(ids) < len(TOKENS)
        if EOS in ids and chance.random() < 0.5:
            return text
        closing = [i for i in ids if TOKENS[i] in (b'"', b"}", b"]", b'"}')]
        token = chance.choice(closing if closing and chance.random() < 0.3 else [i for i in ids if i != EOS] or ids)
        assert grammar.accept([token])
        text += TOKENS[token]
        if grammar.is_terminated:
            return text
    pytest.fail("it does not end")


@pytest.fixture(scope="session")
def writing():
    return SimpleNamespace(allowed=allowed, written=written, tokens=TOKENS, eos=EOS)
