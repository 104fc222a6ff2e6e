"""Small tokenizers of every common kind, trained here, and an engine that says what the test tells it to."""

import json

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from modulm.config import EngineConfig, ModelConfig
from modulm.frontend.frontend import Frontend
from modulm.frontend.tokenizer import Tokenizer
from modulm.interfaces.checkpoint import TokenizerData
from modulm.types import StepOutput

TEXT = (
    "The quick brown fox jumps over the lazy dog. the the dog, the fox; a b c d. Human: hello world\n\nHuman: hi\n"
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Съешь же ещё этих мягких французских булок. "
    "我能吞下玻璃而不伤身体。 😊 👨‍👩‍👧 def f(x): return x + 1  # 0123456789\n"
)
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
ADDED = ["<tool>", "a b", "é"]


def byte_level():
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator([TEXT] * 3, trainer)
    return inner


def sentencepiece():
    """As Llama 2: Metaspace spelling and a token for each byte; "我" is in no training text, so it needs bytes."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=["<unk>"], show_progress=False)
    inner.train_from_iterator(["the", "quick", "brown", "fox", "den", "dog", "a", " x"] * 3, trainer)
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"<0x{byte:02X}>": 3 + byte for byte in range(256)}}
    for piece in sorted(inner.get_vocab(), key=inner.get_vocab().get):
        vocab.setdefault(piece, len(vocab))
    merges = [tuple(merge) for merge in json.loads(inner.to_str())["model"]["merges"]]
    inner.model = models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    inner.add_special_tokens(["<unk>", "<s>", "</s>"])
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return inner


def metaspace():
    """As T5: a unigram model whose decoder drops the first token's space."""
    inner = tokenizers.Tokenizer(models.Unigram())
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=150, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    inner.train_from_iterator([TEXT] * 3, trainer)
    return inner


def wordpiece():
    inner = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]"], show_progress=False)
    inner.train_from_iterator([TEXT] * 3, trainer)
    return inner


def no_decoder():
    inner = wordpiece()
    inner.decoder = None
    return inner


BUILDERS = [byte_level, sentencepiece, metaspace, wordpiece, no_decoder]
_built = {}


def build(builder):
    """Return (our tokenizer, the library's) of one kind; each is trained once."""
    if builder not in _built:
        inner = builder()
        inner.add_tokens([AddedToken(text, normalized=False) for text in ADDED])
        config = {"bos_token": "<s>", "eos_token": "</s>"}
        _built[builder] = Tokenizer.from_data(TokenizerData(tokenizer_json=inner.to_str(), config=config)), inner
    return _built[builder]


@pytest.fixture(params=BUILDERS, ids=lambda builder: builder.__name__)
def both(request):
    """Every kind in turn: ours and the library's."""
    return build(request.param)


@pytest.fixture
def bpe():
    return build(byte_level)[0]


@pytest.fixture
def sp():
    return build(sentencepiece)[0]


class ScriptedEngine:
    """An `EngineClient`. `say` queues what the next poll brings; `submitted` and `aborted` keep what came."""

    def __init__(self):
        self.submitted, self.aborted, self.reasons, self.queue = [], [], [], []
        self.failure = None

    def submit(self, request):
        self.submitted.append(request)

    def abort(self, request_ids, reason="abort"):
        self.aborted += request_ids
        self.reasons += [reason] * len(request_ids)

    def poll(self):
        if self.failure:
            raise self.failure
        outputs, self.queue = self.queue, []
        return outputs

    def has_work(self):
        return bool(self.queue)

    def stats(self):
        return "stats"

    def shutdown(self):
        self.submitted.append("shutdown")

    def say(self, request, token_ids=(), finish_reason=None, **fields):
        """Queue an output for a submitted request."""
        output = StepOutput(request_id=request.request_id, token_ids=list(token_ids), finish_reason=finish_reason)
        for name, value in fields.items():
            setattr(output, name, value)
        self.queue.append(output)


CHAT = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


@pytest.fixture
def engine():
    return ScriptedEngine()


@pytest.fixture
def make_frontend(bpe, engine):
    """A factory: keyword arguments are options of `EngineConfig`, and some of the frontend's."""

    def make(*, tokenizer=bpe, generation_config=None, hf=None, chat_template=CHAT, processors=(), **options):
        hf = {"vocab_size": tokenizer.vocab_size, **(hf or {})}
        model = ModelConfig(name="m", hf=hf, architectures=["X"], max_model_len=options.pop("max_model_len", 64))
        config = EngineConfig.make(model="m", **options)
        return Frontend(
            config, model, tokenizer, generation_config or {}, engine, chat_template=chat_template,
            logits_processors=processors,
        )  # fmt: skip

    return make
