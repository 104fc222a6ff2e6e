"""Metadata -> a tokenizer.json, special tokens and chat template.

Two kinds: "gpt2" (byte-level BPE with stored merges) and "llama" (SentencePiece BPE, whose merges follow from the order
of its scores). Builds JSON and imports no tokenizer library. Knows no weights; splitting rules are `pretokenizers.py`.
Source: docs/gguf.md of ggml, llama-vocab.cpp, and transformers' conversion of SentencePiece models.
"""

import logging
from itertools import groupby
from typing import Any

import msgspec

from modulm.interfaces.checkpoint import TokenizerData
from modulm_quant_gguf.metadata import Metadata
from modulm_quant_gguf.pretokenizers import SPLITTERS, Splitter

_log = logging.getLogger("modulm.quant_gguf")
_PREFIX = "tokenizer.ggml."
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_SPACE = "\u2581"
_MAX_PIECE = 256  # characters; SentencePiece's own limit is 16, and the work grows with the square
_PHI3_UNSTRIPPED = ("<unk>", "<s>", "<|endoftext|>")


def tokenizer_data(metadata: Metadata) -> TokenizerData:
    """Return the file's tokenizer. Raises `CheckpointError` naming the key that is missing or wrong."""
    vocabulary = _Vocabulary(metadata)
    parts = _byte_level(vocabulary) if _kind(metadata) == "gpt2" else _sentencepiece(vocabulary)
    config = _config(vocabulary, parts.pop("add_bos"))
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": vocabulary.added(parts["model"]["vocab"]),
        "post_processor": _post_processor(vocabulary, config),
        **parts,
    }
    # In one piece: the standard library makes a string of every token and mark, and leaves memory in tatters.
    written = msgspec.json.encode(content).decode()
    return TokenizerData(tokenizer_json=written, config=config, chat_template=_chat_template(metadata))


def eos_ids(metadata: Metadata) -> list[int]:
    """Return the id of the token that ends a text, one or none. Reads no token, but checks that all of them are there.

    Raises `CheckpointError` as `tokenizer_data` does.
    """
    byte_level, count = _kind(metadata) == "gpt2", metadata.count(f"{_PREFIX}tokens")
    metadata.numbers(f"{_PREFIX}token_type", count, _NORMAL)
    if byte_level:
        _splitter(metadata)
        metadata.count(f"{_PREFIX}merges")
    elif not metadata.read("general.architecture", str, "").startswith("gemma"):
        metadata.numbers(f"{_PREFIX}scores", count)
    eos = _special_id(metadata, "eos", count)
    return [] if eos is None else [eos]


def _kind(metadata: Metadata) -> str:
    kind = metadata.read(f"{_PREFIX}model", str)
    if kind not in ("gpt2", "llama"):
        raise metadata.refusal(f"{_PREFIX}model", f"is {kind!r}, which is not supported. There are: gpt2, llama")
    return kind


def _special_id(metadata: Metadata, name: str, count: int) -> int | None:
    """Return what `name`_token_id gives, or None; as llama.cpp, disregards an id that none of `count` tokens has."""
    key = f"{_PREFIX}{name}_token_id"
    if key not in metadata:
        return None
    id_ = metadata.read(key, int)
    if id_ < count:
        return id_
    _log.warning("%s: %s is %d of %d tokens; disregarded.", metadata.path, key, id_, count)
    return None


class _Vocabulary:
    """Tokens by id, their types, and the ids of the special ones."""

    def __init__(self, metadata: Metadata) -> None:
        self.metadata = metadata
        self.arch = metadata.read("general.architecture", str, "")
        self.tokens = [token or f"[EMPTY_{id_}]" for id_, token in enumerate(metadata.strings(f"{_PREFIX}tokens"))]
        self.types = metadata.numbers(f"{_PREFIX}token_type", len(self.tokens), _NORMAL)
        self.ids = {token: id_ for id_, token in enumerate(self.tokens)}
        if len(self.ids) < len(self.tokens):
            twice = next(token for id_, token in enumerate(self.tokens) if self.ids[token] != id_)
            raise metadata.refusal(f"{_PREFIX}tokens", f"has token {twice!r} twice")

    def merges(self) -> list[tuple[str, str]]:
        """Return the stored merges. Raises `CheckpointError` for one of tokens that do not exist."""
        pairs = []
        for merge in self.metadata.strings(f"{_PREFIX}merges"):
            cut = merge.find(" ", 1)
            left, right = merge[:cut], merge[cut + 1 :]
            if cut < 0 or left not in self.ids or right not in self.ids or left + right not in self.ids:
                raise self.metadata.refusal(f"{_PREFIX}merges", f"has {merge!r}, which does not join two tokens to one")
            pairs.append((left, right))
        return pairs

    def special(self, name: str) -> str | None:
        """Return the token whose id `name`_token_id gives, or None."""
        id_ = _special_id(self.metadata, name, len(self.tokens))
        return None if id_ is None else self.tokens[id_]

    def added(self, ids: dict[str, int]) -> list[dict[str, Any]]:
        """Return what of `ids` is matched before all else: control tokens as special ones, and user-defined tokens."""
        strip = self.arch == "phi3"  # the file does not say so; llama.cpp, too, goes by the model
        return [
            {
                "id": id_,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": strip and kind == _CONTROL and token not in _PHI3_UNSTRIPPED,
                "normalized": False,
                "special": kind != _USER_DEFINED,
            }
            for id_, (token, kind) in enumerate(zip(self.tokens, self.types, strict=False))
            if kind in (_CONTROL, _USER_DEFINED, _UNKNOWN) and token in ids
        ]


def _byte_level(vocabulary: _Vocabulary) -> dict[str, Any]:
    splitter = _splitter(vocabulary.metadata)
    return {
        "normalizer": {"type": "NFC"} if splitter.nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": splitter.parts()},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": _model(vocabulary.ids, vocabulary.merges(), ignore_merges=splitter.whole_words),
        "add_bos": splitter.whole_words,
    }


def _splitter(metadata: Metadata) -> Splitter:
    key = f"{_PREFIX}pre"
    if key not in metadata:
        _log.warning("%s has no %s; splitting by the default rules, which may not be the model's.", metadata.path, key)
    name = metadata.read(key, str, "default")
    if name not in SPLITTERS:
        raise metadata.refusal(key, f"is {name!r}, which is not known. There are: {', '.join(sorted(SPLITTERS))}")
    return SPLITTERS[name]


def _sentencepiece(vocabulary: _Vocabulary) -> dict[str, Any]:
    prefixed = vocabulary.metadata.read(f"{_PREFIX}add_space_prefix", bool, True)
    normalizers: list[dict[str, Any]] = [{"type": "Prepend", "prepend": _SPACE}] if prefixed else []
    normalizers.append({"type": "Replace", "pattern": {"String": " "}, "content": _SPACE})
    decoders: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}]
    decoders += [{"type": "ByteFallback"}, {"type": "Fuse"}]
    decoders += [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefixed else []
    unknown = vocabulary.special("unknown") or next(
        (token for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=False) if kind == _UNKNOWN), None
    )
    ids, ranks = _mergeable(vocabulary)
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _model(ids, _recovered_merges(ids, ranks), unk_token=unknown, fuse_unk=True, byte_fallback=True),
        "add_bos": True,
    }


def _mergeable(vocabulary: _Vocabulary) -> tuple[dict[str, int], dict[str, float]]:
    """Return ids by token, and the rank of each token that merging can produce, the highest first.

    Gemma's ranks are the order of its tokens: its scores were overwritten in conversion for tokens of white space,
    which, too, are stored with spaces in place of their marks.
    """
    if not vocabulary.arch.startswith("gemma"):
        scores = vocabulary.metadata.numbers(f"{_PREFIX}scores", len(vocabulary.tokens))
        joinable = zip(vocabulary.tokens, vocabulary.types, scores, strict=False)
        return vocabulary.ids, {token: score for token, kind, score in joinable if kind in (_NORMAL, _USER_DEFINED)}
    ids: dict[str, int] = {}
    for token, id_ in vocabulary.ids.items():
        is_spaces = len(token) > 1 and not token.strip(" ")
        ids[_SPACE * len(token) if is_spaces else token] = id_
    kinds = vocabulary.types
    return ids, {token: -id_ for token, id_ in ids.items() if kinds[id_] in (_NORMAL, _USER_DEFINED)}


def _recovered_merges(ids: dict[str, int], ranks: dict[str, float]) -> list[tuple[str, str]]:
    """Return all joints of two tokens to a third, best rank first, ties by longer parts: the order of transformers."""
    merges: list[tuple[str, str]] = []
    for _, tied in groupby(sorted(ranks, key=ranks.__getitem__, reverse=True), key=ranks.__getitem__):
        joints = [
            (left, right)
            for token in tied
            if len(token) <= _MAX_PIECE
            for cut in range(len(token) - 1, 0, -1)
            if (left := token[:cut]) in ids and (right := token[cut:]) in ids
        ]
        if len(joints) > 1:
            joints.sort(key=lambda pair: (len(pair[0]), len(pair[1])), reverse=True)
        merges += joints
    return merges


def _model(ids: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> dict[str, Any]:
    defaults = {"dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None}
    flags = {"fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    return {"type": "BPE", **defaults, **flags, **options, "vocab": ids, "merges": merges}


def _config(vocabulary: _Vocabulary, add_bos: bool) -> dict[str, Any]:
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    tokens = {name: vocabulary.special(key) for name, key in names.items()}
    flags = {"bos": add_bos, "eos": False}
    adds = {name: vocabulary.metadata.read(f"{_PREFIX}add_{name}_token", bool, flags[name]) for name in flags}
    return {
        **{name: token for name, token in tokens.items() if token is not None},
        "add_bos_token": adds["bos"] and tokens["bos_token"] is not None,
        "add_eos_token": adds["eos"] and tokens["eos_token"] is not None,
        "clean_up_tokenization_spaces": False,
    }


def _post_processor(vocabulary: _Vocabulary, config: dict[str, Any]) -> dict[str, Any] | None:
    """Puts the tokens that begin and end a text around it, where the file says so."""
    around = {name: config[f"{name}_token"] for name in ("bos", "eos") if config[f"add_{name}_token"]}
    if not around:
        return None
    marks = {name: {"SpecialToken": {"id": token, "type_id": 0}} for name, token in around.items()}
    single = [marks.get("bos"), {"Sequence": {"id": "A", "type_id": 0}}, marks.get("eos")]
    second = [marks.get("bos"), {"Sequence": {"id": "B", "type_id": 1}}, marks.get("eos")]
    return {
        "type": "TemplateProcessing",
        "single": [part for part in single if part],
        "pair": [part for part in single + second if part],
        "special_tokens": {
            token: {"id": token, "ids": [vocabulary.ids[token]], "tokens": [token]} for token in around.values()
        },
    }


def _chat_template(metadata: Metadata) -> str | dict[str, str] | None:
    default = metadata.read("tokenizer.chat_template", str) if "tokenizer.chat_template" in metadata else None
    named = {
        key.removeprefix("tokenizer.chat_template."): metadata.read(key, str)
        for key in metadata
        if key.startswith("tokenizer.chat_template.")
    }
    if not named:
        return default
    return named | ({"default": default} if default is not None else {})
