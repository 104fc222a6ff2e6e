"""A prompt in any of the forms that clients may send -> its ids, and its text where there is one.

Forms: a string, a list of ids, `{"prompt": text}` and `{"prompt_token_ids": ids}` (vLLM's TextPrompt and TokensPrompt).
Ids may also come as a tuple, a range or a row of an array. Lengths and limits are judged in `admit.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from modulm.errors import RequestError, did_you_mean
from modulm.frontend.tokenizer import Tokenizer

_KEYS = ("prompt", "prompt_token_ids", "cache_salt")


@dataclass(kw_only=True)
class Prompt:
    """What to continue. `text` is None when only ids were given."""

    text: str | None
    token_ids: list[int]
    cache_salt: str | None = None


def read_prompt(prompt: Any, tokenizer: Tokenizer) -> Prompt:
    """Return the prompt's ids, encoded with special tokens when it is text. Raises `RequestError`."""
    if isinstance(prompt, str):
        return Prompt(text=prompt, token_ids=tokenizer.encode(prompt))
    if isinstance(prompt, list | tuple | range) or hasattr(prompt, "tolist"):
        return Prompt(text=None, token_ids=_ids(prompt))
    if isinstance(prompt, Mapping):
        return _from_mapping(prompt, tokenizer)
    raise _refuse(f"A prompt of type {type(prompt).__name__} cannot be read.")


def _from_mapping(prompt: Mapping[str, Any], tokenizer: Tokenizer) -> Prompt:
    for key, value in prompt.items():
        if key not in _KEYS and value is not None:
            raise RequestError(
                f"A prompt with {key!r} cannot be read.{did_you_mean(str(key), _KEYS)} Known: {', '.join(_KEYS)}.",
                parameter="prompt",
            )
    text, token_ids, salt = (prompt.get(key) for key in _KEYS)
    if text is not None and not isinstance(text, str):
        raise _refuse(f"A prompt's 'prompt' is a {type(text).__name__}.")
    check_salt(salt)
    if token_ids is not None:
        return Prompt(text=text, token_ids=_ids(token_ids), cache_salt=salt)
    if text is None:
        raise _refuse("A prompt has neither 'prompt' nor 'prompt_token_ids'.")
    return Prompt(text=text, token_ids=tokenizer.encode(text), cache_salt=salt)


def check_salt(salt: Any) -> None:
    """Refuse a salt that would separate nothing. Raises `RequestError`."""
    if salt is not None and (not isinstance(salt, str) or not salt):
        raise RequestError(
            f"cache_salt={salt!r:.80} is refused: it must be a string that is not empty. Leave it out to share caches.",
            parameter="cache_salt",
        )


def _ids(token_ids: Any) -> list[int]:
    if hasattr(token_ids, "tolist"):  # numpy, torch, array
        token_ids = token_ids.tolist()
    if not isinstance(token_ids, list | tuple | range):
        raise _refuse(f"A prompt's ids are not a list of whole numbers, but a {type(token_ids).__name__}.")
    if set(map(type, token_ids)) <= {int}:
        return list(token_ids)
    for position, token_id in enumerate(token_ids):
        if type(token_id) is not int and (isinstance(token_id, bool) or not isinstance(token_id, Integral)):
            raise _refuse(f"A prompt's ids are not a list of whole numbers: at {position} there is {token_id!r:.80}.")
    return [int(token_id) for token_id in token_ids]


def _refuse(why: str) -> RequestError:
    return RequestError(
        f"{why} Send a string, a list of token ids, {{'prompt': text}} or {{'prompt_token_ids': ids}}.",
        parameter="prompt",
    )
