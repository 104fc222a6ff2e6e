"""Keeps an output to one of some texts: `StructuredOutputsParams(choice=[...])`, and no other form."""

from modulm.interfaces.structured import CompiledGrammar, Grammar, StructuredOutputBackend
from modulm.interfaces.support import Accepted, Rejected


class Choices(StructuredOutputBackend):
    name = "choices"

    @classmethod
    def supports(cls, params):
        """Said before anything is compiled: what is not enforced is refused, never dropped."""
        return Accepted() if params.kind == "choice" else Rejected(f"{params.kind!r} is not enforced, only choices")

    def __init__(self, vocabulary):
        self.vocabulary = vocabulary

    def compile(self, params):
        return Texts([text.encode() for text in params.choice], self.vocabulary)


class Texts(CompiledGrammar):
    def __init__(self, texts, vocabulary):
        self.texts, self.vocabulary = texts, vocabulary

    def start(self):
        return Progress(self)


class Progress(Grammar):
    def __init__(self, compiled):
        self.texts, self.vocabulary, self.written = compiled.texts, compiled.vocabulary, [b""]

    def rests(self):
        return [text[len(self.written[-1]) :] for text in self.texts if text.startswith(self.written[-1])]

    def fill(self, mask):
        rests = self.rests()
        ids = [i for i, token in enumerate(self.vocabulary.tokens) if token and any(r.startswith(token) for r in rests)]
        if b"" in rests:
            ids += self.vocabulary.eos_token_ids
        for token_id in ids:
            mask[token_id // 32] |= mask.dtype.type(1 << token_id % 32)

    def accept(self, token_ids):
        for token_id in token_ids:
            self.written.append(self.written[-1] + self.vocabulary.tokens[token_id])
        return bool(self.rests())

    def rollback(self, num_tokens):
        del self.written[len(self.written) - num_tokens :]

    @property
    def is_terminated(self):
        return self.rests() == [b""]
