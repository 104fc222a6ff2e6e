"""Token ids against independent oracles: `tokenizers` put together by hand, and the sentencepiece library itself."""

import io
import json
import subprocess
import sys

import pytest
import sentencepiece
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from modulm.errors import CheckpointError
from modulm_quant_gguf.checkpoint import GGUFCheckpoint
from modulm_quant_gguf.pretokenizers import SPLITTERS

BPE = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": ["a", "b", "c", "ab", "abc", "<end>", "[tool]"],
    "tokenizer.ggml.token_type": [1, 1, 1, 1, 1, 3, 4],
    "tokenizer.ggml.merges": ["a b", "ab c"],
    "tokenizer.ggml.eos_token_id": 5,
}


def open_with(write_gguf, required, metadata, arch="llama"):
    return GGUFCheckpoint.open(write_gguf(arch, required(arch) | metadata))


def test_special_and_user_defined_tokens(write_gguf, required):
    data = open_with(write_gguf, required, BPE | {"tokenizer.chat_template": "{{ x }}"}).tokenizer()
    tokenizer = Tokenizer.from_str(data.tokenizer_json)
    ids = tokenizer.encode("abc<end>[tool]cab", add_special_tokens=False).ids
    assert ids == [4, 5, 6, 2, 3]
    assert tokenizer.decode(ids) == "abc[tool]cab"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "abc<end>[tool]cab"
    assert data.config["eos_token"] == "<end>"
    assert data.config["add_bos_token"] is False
    assert data.chat_template == "{{ x }}"


def test_beginning_and_end_are_added_where_the_file_says_so(write_gguf, required):
    adds = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    data = open_with(write_gguf, required, BPE | adds | {"tokenizer.ggml.bos_token_id": 5}).tokenizer()
    assert Tokenizer.from_str(data.tokenizer_json).encode("abc").ids == [5, 4, 5]


def test_several_chat_templates(write_gguf, required):
    templates = {"tokenizer.chat_template": "a", "tokenizer.chat_template.rag": "b"}
    assert open_with(write_gguf, required, BPE | templates).tokenizer().chat_template == {"default": "a", "rag": "b"}


WRONG = [
    ({"tokenizer.ggml.merges": None}, "'tokenizer.ggml.merges' is missing"),
    ({"tokenizer.ggml.tokens": None}, "'tokenizer.ggml.tokens' is missing"),
    ({"tokenizer.ggml.model": None}, "'tokenizer.ggml.model' is missing"),
    ({"tokenizer.ggml.model": "bert"}, "'tokenizer.ggml.model'.*'bert'.*gpt2, llama"),
    ({"tokenizer.ggml.pre": "none-such"}, "'tokenizer.ggml.pre'.*'none-such'.*smollm"),
    ({"tokenizer.ggml.merges": ["a b", "b c"]}, "'tokenizer.ggml.merges' .*'b c'"),
    ({"tokenizer.ggml.merges": ["ab"]}, "'tokenizer.ggml.merges' .*'ab'"),
    ({"tokenizer.ggml.tokens": ["a", "b", "a", "ab", "abc", "x", "y"]}, "'tokenizer.ggml.tokens'.*'a' twice"),
    ({"tokenizer.ggml.tokens": [1, 2]}, "'tokenizer.ggml.tokens'.*not an array of strings"),
    ({"tokenizer.ggml.token_type": [1]}, "'tokenizer.ggml.token_type'.*not an array of 7 numbers"),
    ({"tokenizer.ggml.model": "llama"}, "'tokenizer.ggml.scores' is missing"),
]
FOUND_LATE = [
    {"tokenizer.ggml.merges": ["a b", "b c"]},
    {"tokenizer.ggml.merges": ["ab"]},
    {"tokenizer.ggml.tokens": ["a", "b", "a", "ab", "abc", "x", "y"]},
]
"""Faults of single tokens and merges."""


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_what_is_wrong_is_named(change, message, write_gguf, required):
    metadata = {key: value for key, value in (BPE | change).items() if value is not None}
    with pytest.raises(CheckpointError, match=message):
        open_with(write_gguf, required, metadata).tokenizer()


LLAMA = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [0.0, -1.0, -2.0, -3.0, -4.0, 0.0, 0.0]}


@pytest.mark.parametrize("change", [{}, LLAMA, {"tokenizer.ggml.eos_token_id": 0}, {"tokenizer.ggml.eos_token_id": 6}])
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_the_end_of_sequence_is_told_without_building(change, arch, write_gguf, required):
    checkpoint = open_with(write_gguf, required, BPE | change, arch)
    data = checkpoint.tokenizer()
    expected = Tokenizer.from_str(data.tokenizer_json).token_to_id(data.config["eos_token"])
    assert checkpoint.tokenizer_eos_ids() == [expected]


@pytest.mark.parametrize("eos", [None, 7, 2**32 - 1])
def test_no_end_of_sequence(eos, write_gguf, required):
    metadata = BPE | {"tokenizer.ggml.eos_token_id": eos}
    checkpoint = open_with(write_gguf, required, {key: value for key, value in metadata.items() if value is not None})
    assert checkpoint.tokenizer_eos_ids() == [] and "eos_token" not in checkpoint.tokenizer().config


@pytest.mark.parametrize(("change", "message"), [each for each in WRONG if each[0] not in FOUND_LATE])
def test_what_is_found_without_building(change, message, write_gguf, required):
    metadata = {key: value for key, value in (BPE | change).items() if value is not None}
    with pytest.raises(CheckpointError, match=message):
        open_with(write_gguf, required, metadata).tokenizer_eos_ids()


def test_an_id_without_token_is_disregarded(write_gguf, required, caplog):
    data = open_with(write_gguf, required, BPE | {"tokenizer.ggml.padding_token_id": 2**32 - 1}).tokenizer()
    assert "pad_token" not in data.config
    assert "padding_token_id" in caplog.text


@pytest.mark.parametrize("name", SPLITTERS)
def test_every_splitter_loses_no_character(name, mixed_text, write_gguf, required):
    parts = [{"type": "Sequence", "pretokenizers": SPLITTERS[name].parts()}]
    blank = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": parts[0],
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    words = Tokenizer.from_str(json.dumps(blank)).pre_tokenizer.pre_tokenize_str(mixed_text)
    assert decoders.ByteLevel().decode([word for word, _ in words]) == mixed_text
    assert len(words) > 1000


def test_smollm2_ids_equal_its_published_pipeline(smollm2, mixed_text):
    """Digits one by one, then GPT-2's rule: SmolLM2's own tokenizer.json, put together from `tokenizers`' parts."""
    checkpoint = GGUFCheckpoint.open(smollm2)
    metadata = checkpoint.header.metadata
    tokens = metadata.strings("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in metadata.strings("tokenizer.ggml.merges")]
    oracle = Tokenizer(models.BPE({token: id_ for id_, token in enumerate(tokens)}, merges))
    oracle.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    ours = Tokenizer.from_str(checkpoint.tokenizer().tokenizer_json)
    ids = ours.encode(mixed_text, add_special_tokens=False).ids
    assert len(mixed_text) >= 10_000
    assert ids == oracle.encode(mixed_text).ids
    assert ours.decode(ids) == mixed_text
    assert (
        ours.encode("Hello world! Café déjà vu — 123 😊").ids == oracle.encode("Hello world! Café déjà vu — 123 😊").ids
    )
    chat = ours.encode("<|im_start|>user\nHi<|im_end|>\n").tokens
    assert chat == ["<|im_start|>", "user", "Ċ", "Hi", "<|im_end|>", "Ċ"]


def sentencepiece_metadata(processor):
    """As llama.cpp's converter writes a SentencePiece model."""
    kinds = []
    for id_ in range(processor.vocab_size()):
        checks = (
            processor.is_unknown(id_),
            processor.is_control(id_),
            processor.is_unused(id_),
            processor.is_byte(id_),
        )
        kinds.append(next((kind for kind, holds in zip((2, 3, 5, 6), checks, strict=True) if holds), 1))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [processor.id_to_piece(id_) for id_ in range(processor.vocab_size())],
        "tokenizer.ggml.scores": [processor.get_score(id_) for id_ in range(processor.vocab_size())],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": processor.bos_id(),
        "tokenizer.ggml.eos_token_id": processor.eos_id(),
        "tokenizer.ggml.unknown_token_id": processor.unk_id(),
    }


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_ids_equal_its_own(prefix, mixed_text, write_gguf, required):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(mixed_text.split("\n")),
        model_writer=model,
        vocab_size=1500,
        model_type="bpe",
        byte_fallback=True,
        character_coverage=0.99,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=prefix,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    metadata = sentencepiece_metadata(processor) | {"tokenizer.ggml.add_space_prefix": prefix}
    data = open_with(write_gguf, required, metadata).tokenizer()
    ours = Tokenizer.from_str(data.tokenizer_json)
    ids = ours.encode(mixed_text, add_special_tokens=False).ids
    assert ids == processor.encode(mixed_text)
    assert ours.decode(ids) == mixed_text
    for text in ("", " ", "  two", "Hello world! Café déjà vu — 123 😊", "a\n\n   b", "\t", "😊"):
        assert ours.encode(text, add_special_tokens=False).ids == processor.encode(text), text
    assert ours.encode("a").ids[0] == processor.bos_id()
    assert data.config == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "add_bos_token": True,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
    }


def test_gemma_ranks_by_order_and_spells_spaces_with_marks(write_gguf, required):
    tokens = ["<pad>", "<eos>", "  ", "a", "b", "\u2581", "ab", "\u2581a", "\n\n"]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0, 0.0, -1000.0, -1.0, -2.0, -3.0, -4.0, -5.0, -1000.0],
        "tokenizer.ggml.token_type": [3, 3, 4, 1, 1, 1, 1, 1, 4],
        "tokenizer.ggml.add_space_prefix": False,
    }
    data = open_with(write_gguf, required, metadata, "gemma3").tokenizer()
    tokenizer = Tokenizer.from_str(data.tokenizer_json)
    assert tokenizer.encode("  ab a\n\n").ids == [2, 6, 7, 8]
    assert tokenizer.decode([2, 6, 7, 8]) == "  ab a\n\n"


def test_nothing_here_imports_torch_or_gguf(smollm2):
    program = (
        "import sys; from pathlib import Path; from modulm_quant_gguf.checkpoint import GGUFCheckpoint as C;"
        "import modulm_quant_gguf.scheme;"
        f"c = C.open(Path({str(smollm2)!r})); c.config(); c.generation_config(); c.tokenizer(); list(c.tensor_names());"
        "sys.exit(bool({'torch', 'gguf', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
