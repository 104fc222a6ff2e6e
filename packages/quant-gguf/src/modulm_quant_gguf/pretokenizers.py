"""How byte-level BPE splits text into words before merging: `tokenizer.ggml.pre` -> parts of a tokenizer.json.

GGUF names the splitter and does not hold it. The expressions are those of the models' own tokenizer.json; where a
model's is not known, llama.cpp's reading of it. Knows no vocabulary; `tokenizer.py` adds that.
"""

from dataclasses import dataclass, field
from typing import Any

_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_MARKS_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = [rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"]
_CJK = r"[一-龥ࠀ-一가-퟿]+"
_ASCII_MARK = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_MARKS}|{_TAIL}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_MARKS}|{_TAIL}"
_QWEN35_WORD, _QWEN35_MARKS = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
_QWEN35 = rf"{_CONTRACTION}|{_QWEN35_WORD}|\p{{N}}|{_QWEN35_MARKS}|{_TAIL}"
_TEKKEN = rf"{'|'.join(_CASED)}|\p{{N}}|{_MARKS_SLASH}|{_TAIL}"
_GPT4O = rf"{'|'.join(f'{word}{_CONTRACTION}?' for word in _CASED)}|\p{{N}}{{1,3}}|{_MARKS_SLASH}|{_TAIL}"
_DEEPSEEK3 = rf"{_ASCII_MARK}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_TAIL}"


@dataclass(frozen=True)
class Splitter:
    """Expressions applied one after the other, each isolating what it matches.

    `whole_words`: a word that is a token is taken whole, without merging. `nfc`: text is composed first.
    """

    expressions: tuple[str, ...]
    names: tuple[str, ...] = field(repr=False)
    whole_words: bool = False
    nfc: bool = False

    def parts(self) -> list[dict[str, Any]]:
        """Return the pre-tokenizers of a tokenizer.json, in order."""
        splits = [
            {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
            for expression in self.expressions
        ]
        return [*splits, {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]


_SPLITTERS = [
    Splitter((_GPT2,), ("gpt-2", "phi-2", "jais", "trillion", "exaone4", "gigachat", "granite-docling", "modern-bert")),
    Splitter((_GPT2,), ("mpt", "olmo"), nfc=True),
    Splitter((r"\p{N}", _GPT2), ("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2")),
    Splitter((r"\p{N}", _GPT2), ("command-r",), nfc=True),
    Splitter(
        (_LLAMA3,),
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        whole_words=True,
    ),
    Splitter((_LLAMA3,), ("dbrx", "smaug-bpe", "glm4", "chatglm-bpe")),
    Splitter((_QWEN2,), ("qwen2",), nfc=True),
    Splitter((_QWEN2,), ("stablelm2", "hunyuan", "solar-open", "deepseek-r1-qwen", "kormo", "megrez", "grok-2")),
    Splitter((_QWEN35,), ("qwen35",), nfc=True),
    Splitter((_TEKKEN,), ("tekken",), whole_words=True),
    Splitter((_GPT4O,), ("gpt-4o", "llama4", "kanana2", "minimax-m2")),
    Splitter(
        (r"[\r\n]", r"\s?[\p{Lu}\p{Ll}\p{Lt}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _CJK, r"\p{N}+"),
        ("deepseek-llm",),
    ),
    Splitter((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}"), ("deepseek-coder",)),
    Splitter((r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3), ("deepseek-v3", "hunyuan-dense", "joyai-llm")),
    Splitter((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"), ("default",)),
]
SPLITTERS = {name: splitter for splitter in _SPLITTERS for name in splitter.names}
