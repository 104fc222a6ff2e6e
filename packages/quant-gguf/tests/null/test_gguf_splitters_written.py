"""How text is split has a name in GGUF, both ways: of every splitter that is read, and as models spell it."""

import pytest

from modulm.errors import ConfigError
from modulm_quant_gguf.pretokenizers import SPLITTERS
from modulm_quant_gguf.written_tokenizer import splitter_name

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
DIGITS = {"type": "Digits", "individual_digits": True}


def content(parts, *, model=None, nfc=False):
    before = {"type": "Sequence", "pretokenizers": parts} if len(parts) > 1 else parts[0]
    return {
        "model": {"type": "BPE", **(model or {})},
        "normalizer": {"type": "NFC"} if nfc else None,
        "pre_tokenizer": before,
    }


@pytest.mark.parametrize("name", SPLITTERS)
def test_every_splitter_comes_back(name):
    splitter = SPLITTERS[name]
    given = content(splitter.parts(), model={"ignore_merges": splitter.whole_words}, nfc=splitter.nfc)
    found = SPLITTERS[splitter_name(given, "x")]
    assert (found.expressions, found.whole_words, found.nfc) == (
        splitter.expressions,
        splitter.whole_words,
        splitter.nfc,
    )


def test_spellings_of_models():
    """As GPT-2's file and SmolLM's have it: the splitting is ByteLevel's own."""
    assert splitter_name(content([BYTES]), "x") == "gpt-2"
    assert splitter_name(content([DIGITS, BYTES]), "x") == "smollm"


@pytest.mark.parametrize(
    "given",
    [
        content([{**BYTES, "add_prefix_space": True}]),
        content([{"type": "Metaspace"}]),
        content([{"type": "Digits", "individual_digits": False}, BYTES]),
        content([BYTES], model={"byte_fallback": True}),
        content([BYTES], model={"type": "Unigram"}),
        content([BYTES], model={"ignore_merges": True}),
        content([{"type": "Split", "pattern": {"Regex": "x"}, "behavior": "Removed"}, BYTES]),
        content([{"type": "Split", "pattern": {"Regex": "x"}, "behavior": "Isolated"}, BYTES]),
        {**content([BYTES]), "normalizer": {"type": "Lowercase"}},
        {**content([BYTES]), "pre_tokenizer": None},
    ],
)
def test_what_has_no_name(given):
    with pytest.raises(ConfigError, match="The tokenizer in x splits text in a way that GGUF has no name for"):
        splitter_name(given, "x")
