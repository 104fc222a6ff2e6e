"""A byte-level tokenizer.json -> GGUF's metadata: tokens, their types, merges, and the name of how text is split.

GGUF names a splitter and does not hold it, so that one without a name cannot be written. Merges, special tokens and the
chat template are the `gguf` package's to read. `tokenizer.py` is the way back.
"""

import json
from pathlib import Path
from typing import Any

import gguf

from modulm.errors import CheckpointError, ConfigError
from modulm_quant_gguf.pretokenizers import SPLITTERS

_GPT2 = SPLITTERS["gpt-2"].expressions[0]
_DIGIT = r"\p{N}"


def add_tokenizer(writer: Any, folder: Path, vocab_size: int) -> None:
    """Add a folder's tokenizer. Raises `ConfigError` where GGUF has no name for it, `CheckpointError` for none."""
    file = folder / "tokenizer.json"
    try:
        content = json.loads(file.read_text("utf-8"))
        vocabulary, added = content["model"]["vocab"], content.get("added_tokens") or []
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{file} cannot be read, and GGUF holds a tokenizer: {error!r}.") from error
    pre = splitter_name(content, str(file))
    types = gguf.TokenType
    kinds = dict.fromkeys(vocabulary.values(), types.NORMAL)
    names = {id_: token for token, id_ in vocabulary.items()}
    for token in added:
        names[token["id"]] = token["content"]
        kinds[token["id"]] = types.CONTROL if token["special"] else types.USER_DEFINED
    if max(names) >= vocab_size:
        raise CheckpointError(f"{file} has token {max(names)}, but the model has {vocab_size} of them.")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([names.get(id_, f"[PAD{id_}]") for id_ in range(vocab_size)])
    writer.add_token_types([kinds.get(id_, types.UNUSED) for id_ in range(vocab_size)])
    gguf.SpecialVocab(folder, load_merges=True, n_vocab=vocab_size).add_to_gguf(writer, quiet=True)


def splitter_name(content: dict[str, Any], where: str) -> str:
    """Return the name of how a tokenizer.json's content splits text. Raises `ConfigError` where there is none."""
    model, normalizer = content["model"], content.get("normalizer")
    before = content.get("pre_tokenizer") or {}
    parts = before["pretokenizers"] if before.get("type") == "Sequence" else [before]
    expressions = _expressions(parts)
    nfc = (normalizer or {}).get("type") == "NFC"
    if model.get("type") == "BPE" and not model.get("byte_fallback") and (normalizer is None or nfc) and expressions:
        for name, splitter in SPLITTERS.items():
            asked = (splitter.expressions, splitter.whole_words, splitter.nfc)
            if asked == (expressions, bool(model.get("ignore_merges")), nfc):
                return name
    raise ConfigError(
        f"The tokenizer in {where} splits text in a way that GGUF has no name for here: byte-level BPE, as GPT-2, "
        "Llama 3, Qwen 2 and SmolLM have it, is written. llama.cpp's convert_hf_to_gguf.py knows others."
    )


def _expressions(parts: list[dict[str, Any]]) -> tuple[str, ...] | None:
    """Return what matches words, one after the other; None where it is not known, or does not end in bytes."""
    found: list[str] = []
    for part in parts[:-1]:
        pattern = part.get("pattern", {})
        if part.get("type") == "Split" and part.get("behavior") == "Isolated" and not part.get("invert"):
            found.append(pattern.get("Regex", ""))
        elif part.get("type") == "Digits" and part.get("individual_digits"):
            found.append(_DIGIT)
        else:
            return None
    last = parts[-1]
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        return None
    return (*found, _GPT2) if last.get("use_regex", True) else tuple(found)
