"""Token ids equal transformers', for both kinds of tokenizer, on a text of many languages.

transformers' own reading of a GGUF file is not always the model's published tokenizer: it splits "smollm" as GPT-2, not
digit by digit, and puts no mark before SentencePiece text that begins with a space. Where that matters it is said.
"""

import io

import pytest
import sentencepiece
from tokenizers import Regex, Tokenizer, pre_tokenizers
from transformers import AutoTokenizer, LlamaTokenizer
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from modulm_quant_gguf.checkpoint import GGUFCheckpoint
from modulm_quant_gguf.pretokenizers import SPLITTERS


def test_smollm2(smollm2, mixed_text):
    theirs = AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    data = GGUFCheckpoint.open(smollm2).tokenizer()
    ours = Tokenizer.from_str(data.tokenizer_json)
    without_digits = "".join(character for character in mixed_text if not character.isnumeric())
    assert len(without_digits) >= 10_000
    assert ours.encode(without_digits).ids == theirs.encode(without_digits)
    messages = [{"role": "user", "content": "Hi"}]
    chat = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert ours.encode(chat).ids == theirs.encode(chat)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])  # as it was published
    assert ours.encode(mixed_text).ids == theirs.encode(mixed_text)
    assert data.chat_template == theirs.chat_template
    assert data.config["bos_token"] == theirs.bos_token
    assert data.config["eos_token"] == theirs.eos_token
    assert data.config["pad_token"] == theirs.pad_token


def test_sentencepiece(mixed_text, tmp_path, write_gguf, required):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(mixed_text.split("\n")),
        model_writer=model,
        vocab_size=1200,
        model_type="bpe",
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        minloglevel=2,
    )
    (tmp_path / "tokenizer.model").write_bytes(model.getvalue())
    theirs = LlamaTokenizer.from_pretrained(tmp_path)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    size = processor.vocab_size()
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [processor.id_to_piece(id_) for id_ in range(size)],
        "tokenizer.ggml.scores": [processor.get_score(id_) for id_ in range(size)],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6 if processor.is_byte(id_) else 1 for id_ in range(3, size)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    data = GGUFCheckpoint.open(write_gguf("llama", required("llama") | metadata)).tokenizer()
    ours = Tokenizer.from_str(data.tokenizer_json)
    assert ours.encode(mixed_text, add_special_tokens=False).ids == theirs.encode(mixed_text, add_special_tokens=False)
    assert ours.encode(mixed_text).ids == [1, *processor.encode(mixed_text)]


@pytest.mark.parametrize("name", sorted(GGUF_PRE_TOKENIZER_SPLITS.keys() & SPLITTERS.keys()))
def test_words_are_split_as_transformers_does(name, mixed_text):
    theirs = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(GGUF_PRE_TOKENIZER_SPLITS[name]), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    ours = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(expression), behavior="isolated") for expression in SPLITTERS[name].expressions]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    assert ours.pre_tokenize_str(mixed_text) == theirs.pre_tokenize_str(mixed_text)
