"""Backends that enforce choices of texts and one schema, and are wrong in one way each."""

import json
import threading

import numpy as np
from contract import Contract

from modulm.errors import RequestError
from modulm.interfaces.structured import CompiledGrammar, Grammar, StructuredOutputBackend
from modulm.interfaces.support import Accepted, Rejected
from modulm_testkit.structured import StructuredOutputConformance


class Texts(StructuredOutputBackend):
    """The output is one of some texts."""

    name = "texts"

    @classmethod
    def supports(cls, params):
        return Accepted() if params.kind == "choice" else Rejected(f"{params.kind} is not enforced")

    def __init__(self, vocabulary):
        self.vocabulary = vocabulary

    def compile(self, params):
        if params.kind != "choice":
            raise RequestError("It is refused: only choices are enforced.", parameter="structured_outputs")
        return self.made([text.encode() for text in params.choice])

    def made(self, texts):
        return Made(self, texts)

    def starting(self, made):
        return self.Writing(self.vocabulary, made.texts)

    class Writing(Grammar):
        def __init__(self, vocabulary, texts):
            self.vocabulary, self.texts, self.written = vocabulary, texts, [b""]

        def rests(self):
            written = self.written[-1]
            return [] if written is None else [t[len(written) :] for t in self.texts if t.startswith(written)]

        def allowed(self):
            rests, vocabulary = self.rests(), self.vocabulary
            ids = {i for i, token in enumerate(vocabulary.tokens) if token and any(r.startswith(token) for r in rests)}
            return (ids - set(vocabulary.special_ids)) | (set(vocabulary.eos_token_ids) if b"" in rests else set())

        def fill(self, mask):
            mask[...] = 0
            for token_id in self.allowed():
                mask[token_id // 32] |= np.uint32(1 << token_id % 32)

        def accept(self, token_ids):
            for token_id in token_ids:
                if token_id not in self.allowed():
                    return False
                is_end = token_id in self.vocabulary.eos_token_ids
                self.written.append(None if is_end else self.written[-1] + self.vocabulary.tokens[token_id])
            return True

        def rollback(self, num_tokens):
            del self.written[len(self.written) - num_tokens :]

        def forced(self):
            rests = self.rests()
            if len(rests) != 1:
                return []
            return self.vocabulary.encode(rests[0].decode(errors="ignore"))

        @property
        def is_terminated(self):
            return self.allowed() <= set(self.vocabulary.eos_token_ids)


class Made(CompiledGrammar):
    def __init__(self, backend, texts):
        self.backend, self.texts = backend, texts

    def start(self):
        return self.backend.starting(self)


structured = Contract("structured", StructuredOutputConformance, "backend_class", Texts)
mutant = structured.mutant


@mutant("test_takes_what_has_the_form")
class ForgetsALongerText(Texts):
    """Of two texts of which one begins with the other, only the shorter can be written."""

    def made(self, texts):
        return Made(self, [t for t in texts if not any(o != t and t.startswith(o) for o in texts)])


@mutant("test_refuses_what_has_not")
class ChecksTheFirst(Texts):
    """Of several tokens at once only the first is looked at."""

    class Writing(Texts.Writing):
        def accept(self, token_ids):
            ids = list(token_ids)
            if not super().accept(ids[:1]):
                return False
            for token_id in ids[1:]:
                is_end = token_id in self.vocabulary.eos_token_ids
                self.written.append(None if is_end else self.written[-1] + self.vocabulary.tokens[token_id])
            return True


@mutant("test_mask_is_what_is_accepted")
class AcceptsMore(Texts):
    """`accept` takes single tokens that the mask does not allow, if they have several letters."""

    class Writing(Texts.Writing):
        def accept(self, token_ids):
            return super().accept(token_ids) or (len(token_ids) == 1 and 255 < token_ids[0] < 270)


@mutant("test_ends_where_the_form_is_complete")
class KnowsOneEnd(Texts):
    """Only the first of the tokens that end an output is allowed."""

    class Writing(Texts.Writing):
        def allowed(self):
            return super().allowed() - set(self.vocabulary.eos_token_ids[1:])


@mutant("test_random_outputs_have_the_form")
class AddsAText(Texts):
    """One more text can be written than was asked for."""

    def made(self, texts):
        return Made(self, [*texts, b"maybe"])


@mutant("test_takes_back_exactly")
class TakesBackTooMuch(Texts):
    """Of three tokens to be taken back it takes back four."""

    class Writing(Texts.Writing):
        def rollback(self, num_tokens):
            super().rollback(min(4 if num_tokens == 3 else num_tokens, len(self.written) - 1))


@mutant("test_takes_back_the_end")
class KeepsItsEnd(Texts):
    """The end is not taken back."""

    class Writing(Texts.Writing):
        def rollback(self, num_tokens):
            if self.written[-1] is not None:
                super().rollback(num_tokens)


@mutant("test_says_when_nothing_else_may_follow")
class NeverTerminates(Texts):
    """`is_terminated` is true only after the end itself."""

    class Writing(Texts.Writing):
        @property
        def is_terminated(self):
            return self.written[-1] is None


@mutant("test_special_tokens_are_never_allowed")
class AllowsTheBeginning(Texts):
    """The token that begins texts is allowed at the beginning, and adds nothing."""

    class Writing(Texts.Writing):
        def special(self):
            return set(self.vocabulary.special_ids) - set(self.vocabulary.eos_token_ids)

        def allowed(self):
            return super().allowed() | (self.special() if self.written == [b""] else set())

        def accept(self, token_ids):
            if self.special().intersection(token_ids[:1]) and self.written == [b""]:
                return super().accept(token_ids[1:])
            return super().accept(token_ids)


@mutant("test_tokens_without_text_are_never_allowed")
class FillsTheLastWord(Texts):
    """Bits behind the vocabulary are set."""

    class Writing(Texts.Writing):
        def fill(self, mask):
            super().fill(mask)
            if b"" not in self.rests() and self.rests():
                mask[-1] |= np.uint32(1 << 31)


@mutant("test_sequences_are_independent")
class SharesOneState(Texts):
    """Sequences that are started while another is at its beginning share its state."""

    def made(self, texts):
        made = super().made(texts)
        made.last = None
        return made

    def starting(self, made):
        if made.last is None or made.last.written != [b""] or made.last.shared:
            made.last = super().starting(made)
            made.last.shared = False
        else:
            made.last.shared = True
        return made.last


@mutant("test_forced_tokens_are_forced")
class GuessesWhatComes(Texts):
    """The first of several texts is forced."""

    class Writing(Texts.Writing):
        def forced(self):
            return self.vocabulary.encode(self.rests()[0].decode(errors="ignore")) if self.rests() else []


@mutant("test_compiles_in_several_threads")
class BelongsToOneThread(Texts):
    """It compiles in the thread that made it, and in no other."""

    def __init__(self, vocabulary):
        super().__init__(vocabulary)
        self.thread = threading.get_ident()

    def compile(self, params):
        if threading.get_ident() != self.thread:
            raise RuntimeError("objects of this library belong to the thread that made them")
        return super().compile(params)


@mutant("test_no_keyword_is_dropped")
class DropsUniqueItems(Texts):
    """Lists of nothing but null are enforced, and `uniqueItems` beside that is dropped."""

    @classmethod
    def supports(cls, params):
        is_it = params.kind == "json" and json.loads(params.text).get("uniqueItems")
        return Accepted() if is_it else super().supports(params)

    def compile(self, params):
        if self.supports(params) and params.kind == "json":
            return self.made([b"[null]", b"[null,null]"])
        return super().compile(params)


@mutant("test_refusals_are_answers")
class RaisesItsOwn(Texts):
    """What it cannot compile raises `ValueError`."""

    def compile(self, params):
        if params.kind != "choice":
            raise ValueError(params.kind)
        return super().compile(params)


@mutant("test_random_schemas")
class IgnoresBounds(Texts):
    """A number with a bound is enforced as any number of two digits."""

    @classmethod
    def supports(cls, params):
        asked = json.loads(params.text) if params.kind == "json" else {}
        is_it = asked.get("type") in ("integer", "number") and {"minimum", "maximum"} & set(asked)
        return Accepted() if is_it else super().supports(params)

    def compile(self, params):
        if self.supports(params) and params.kind == "json":
            return self.made([b"%d" % number for number in range(10, 100)])
        return super().compile(params)
