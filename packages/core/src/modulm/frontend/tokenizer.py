"""Text to token ids and back, over the `tokenizers` library: what transformers' fast tokenizers do, without it.

Decoding never removes spaces: `clean_up_tokenization_spaces` would make the whole text differ from the streamed one and
damage code ("a , b" -> "a, b"); transformers skips it for BPE too. Knows nothing of requests. Text that grows token by
token is in `detokenize.py`, chat templates are in `render.py`. The library is imported where a tokenizer is built.
"""

import json
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from modulm.errors import CheckpointError, RequestError
from modulm.interfaces.checkpoint import SPECIAL_TOKENS, TokenizerData

if TYPE_CHECKING:
    import tokenizers

_one_at_a_time = threading.Lock()


class Tokenizer:
    """A tokenizer that never changes after it is built, so that any thread may use it.

    Attributes:
        bos_token_id, eos_token_id: Ids of the tokens of these names, or None.
        special_ids: Ids that `skip_special_tokens` leaves out.
        added_tokens: Text of every token added beside the model's vocabulary, special or not, by id.
        named_tokens: The special tokens by their names (bos_token ...), as chat templates see them.
        byte_pieces: The byte that a token stands for (SentencePiece's byte fallback), by id.
        decoder_types: The types of the decoder's parts ("ByteLevel", "Fuse" ...), in order.
        bytes_by_id: Filled by `detokenize.py`: what tokens are in bytes, as far as they were met.
        vocab_size: One more than the highest id.
        chat_template: The checkpoint's own, see `TokenizerData`.
        response_template: How the checkpoint describes its responses (transformers' response templates), or None.
    """

    def __init__(self, inner: "tokenizers.Tokenizer", data: TokenizerData) -> None:
        self._inner = inner
        self.chat_template = data.chat_template
        self.response_template = data.config.get("response_template")
        self.named_tokens = {
            name: data.config[name] for name in SPECIAL_TOKENS if isinstance(data.config.get(name), str)
        }
        inner.no_truncation()
        inner.no_padding()
        self._mark_named_as_special()
        added = inner.get_added_tokens_decoder()
        self.added_tokens: dict[int, str] = {token_id: token.content for token_id, token in added.items()}
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.bos_token_id = self._id_of("bos_token")
        self.eos_token_id = self._id_of("eos_token")
        self.vocab_size = max(inner.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.decoder_types = _decoder_types(inner)
        self.byte_pieces = _byte_pieces(inner) if "ByteFallback" in self.decoder_types else {}
        self.bytes_by_id: dict[int, bytes] = {}
        self._set_added_at_ends(data.config)
        self._set_context()

    @classmethod
    def from_data(cls, data: TokenizerData) -> "Tokenizer":
        """Build from a checkpoint's data. Raises `CheckpointError` when the library cannot read it."""
        import tokenizers

        try:
            inner = tokenizers.Tokenizer.from_str(data.tokenizer_json)
        except Exception as error:  # the library raises plain Exception
            raise CheckpointError(f"The tokenizer's JSON cannot be read by the tokenizers library: {error}.") from error
        return cls(inner, data)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`; special tokens written out in it become their ids."""
        return self.encode_batch([text], add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """Return the ids of each text, in parallel where there are several."""
        for text in texts:
            _check_text(text)
        if len(texts) == 1:
            encoded = [self._inner.encode(texts[0], add_special_tokens=add_special_tokens)]
        else:
            encoded = self._inner.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        if not add_special_tokens:
            return [list(one.ids) for one in encoded]
        return [[*self._before, *one.ids, *self._after] for one in encoded]

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of ids; ids that no token has add nothing."""
        text: str = self._inner.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    def id_to_piece(self, token_id: int) -> str | None:
        """Return the token as the vocabulary spells it ("Ġthe", "▁the", "<0x0A>"), or None."""
        piece: str | None = self._inner.id_to_token(token_id)
        return piece

    def token_text(self, token_id: int) -> str:
        """Return what a token adds in the middle of a text, with its space; an incomplete character is U+FFFD."""
        text = self._texts.get(token_id)
        if text is None:
            text = self._texts[token_id] = self.decode([*self.context, token_id], False)[len(self._context_text) :]
        return text

    def tokenisations_of(self, word: str) -> list[list[int]]:
        """Return the distinct tokenisations of a word at a text's beginning and after a space; empty ones left out."""
        bare = word.lstrip(" ")
        if not bare:
            return []
        forms = dict.fromkeys(tuple(self.encode(form, add_special_tokens=False)) for form in (bare, " " + bare))
        return [list(form) for form in forms if form]

    def _id_of(self, name: str) -> int | None:
        text = self.named_tokens.get(name)
        token_id: int | None = None if text is None else self._inner.token_to_id(text)
        return token_id

    def _mark_named_as_special(self) -> None:
        """A named token is special even where tokenizer.json does not say so; one without an id stays unknown."""
        from tokenizers import AddedToken

        known = {token.content for token in self._inner.get_added_tokens_decoder().values() if token.special}
        unmarked = [
            text for name, text in self.named_tokens.items() if text not in known and self._id_of(name) is not None
        ]
        self._inner.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in unmarked])

    def _set_added_at_ends(self, config: dict[str, Any]) -> None:
        """Add what `add_bos_token` and `add_eos_token` ask for where the post-processor does not do so itself."""
        done = self._inner.encode("a", add_special_tokens=True).ids
        bos, eos = self.bos_token_id, self.eos_token_id
        self._before = [bos] if config.get("add_bos_token") is True and bos is not None and done[:1] != [bos] else []
        self._after = [eos] if config.get("add_eos_token") is True and eos is not None and done[-1:] != [eos] else []

    def _set_context(self) -> None:
        """Find a token that makes what follows it the middle of a text, where leading spaces count."""
        ids = self._inner.encode("a", add_special_tokens=False).ids[-1:]
        text = self.decode(ids, False)
        self.context: list[int] = ids if text else []
        self._context_text = text
        self._texts: dict[int, str] = {}


class LateTokenizer(Tokenizer):
    """A tokenizer that is built when it is first asked for more than `eos_token_id`: ids in, ids out need none.

    Whoever asks first waits for it. Where `build` fails, everyone who asks gets its `CheckpointError`.
    """

    def __init__(self, build: Callable[[], Tokenizer], eos_token_id: int | None) -> None:
        self.eos_token_id = eos_token_id
        self._build = build

    def __getattr__(self, name: str) -> Any:
        """Python asks here for what `Tokenizer.__init__` would have set."""
        if name.startswith("__"):  # copies look for methods before they have anything
            raise AttributeError(name)
        with _one_at_a_time:
            if "_build" in vars(self):
                vars(self).update(vars(self._build()))
                del self._build
        return object.__getattribute__(self, name)


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"The text has half of a surrogate pair at character {error.start}, which no encoding can carry. "
            "Send valid Unicode.",
            parameter="prompt",
        ) from error


def _byte_pieces(inner: "tokenizers.Tokenizer") -> dict[int, int]:
    ids = {inner.token_to_id(f"<0x{byte:02{form}}>"): byte for byte in range(256) for form in "Xx"}
    return {token_id: byte for token_id, byte in ids.items() if token_id is not None}


def _decoder_types(inner: "tokenizers.Tokenizer") -> tuple[str, ...]:
    """Return the types of the decoder's parts in order; empty when there is no decoder."""
    if inner.decoder is None:
        return ()
    decoder = json.loads(inner.decoder.__getstate__())
    parts = decoder.get("decoders", [decoder])
    return tuple(str(part["type"]) for part in parts)
