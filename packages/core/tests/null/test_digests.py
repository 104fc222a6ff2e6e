"""Digests are those of the standard library's own door."""

import hashlib

from modulm.digests import hashed


def test_it_is_blake2b_of_32_bytes():
    assert hashed(b"abc").digest() == hashlib.blake2b(b"abc", digest_size=32).digest()
    grown = hashed()
    grown.update(b"abc")
    assert grown.hexdigest() == hashed(b"abc").hexdigest()
