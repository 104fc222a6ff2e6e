"""Digests that name blocks, files and recordings: BLAKE2b of 32 bytes. Knows nothing of what is named.

Taken from where `hashlib` has it: that would load OpenSSL, 4 MB of every process, for functions that nobody asks for.
"""

try:
    from _blake2 import blake2b
except ImportError:  # another Python than CPython
    from hashlib import blake2b


def hashed(content: bytes = b"") -> blake2b:
    """Return the hash of `content`, which may be updated: `digest()` or `hexdigest()` ends it."""
    return blake2b(content, digest_size=32)
