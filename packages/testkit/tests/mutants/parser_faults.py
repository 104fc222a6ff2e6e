"""What both kinds of parsers can do wrong with pieces of text, as mutants of any right parser."""


def add_to(contract, right, extra):
    """Make the mutants of `right`, for promises that both suites have.

    `extra` is the test of what may be reported, and an event that may not.
    """
    mind_pieces(contract, right)
    mind_other_things(contract, right)

    @contract.mutant(extra[0])
    class ReportsWhatItMayNot(right):
        """Where the text has a bracket it reports an event that is not its own."""

        has_bracket = False

        def push(self, text, token_ids=()):
            self.has_bracket |= "[" in text
            return super().push(text, token_ids)

        def finish(self, finish_reason):
            return [*super().finish(finish_reason), *([extra[1]] if self.has_bracket else [])]


def mind_pieces(contract, right):
    """Make those that mind how a text is cut."""

    class Counts(right):
        """Remembers the lengths of the pieces so far."""

        def __init__(self, context):
            super().__init__(context)
            self.lengths = []

        def push(self, text, token_ids=()):
            self.lengths.append(len(text))
            return super().push(self.change(text), token_ids)

        def change(self, text):
            return text

    @contract.mutant("test_every_character_may_be_a_piece")
    class TiresOfCharacters(Counts):
        """After twelve characters that came alone it loses the next."""

        def change(self, text):
            return "" if self.lengths[-13:] == [1] * 13 else text

    @contract.mutant("test_may_be_cut_anywhere_once")
    class ExpectsOnePiece(Counts):
        """Of two long pieces it loses the first character of the second."""

        def change(self, text):
            return text[1:] if len(self.lengths) == 2 and min(self.lengths) > 20 else text

    @contract.mutant("test_may_be_cut_in_small_pieces")
    class TiresOfTokens(Counts):
        """After six pieces of equal length, more than one character each, it loses the next."""

        def change(self, text):
            last = self.lengths[-7:]
            return "" if len(last) == 7 and len(set(last)) == 1 and 1 < last[0] < 9 else text

    @contract.mutant("test_may_be_cut_as_tokens_are")
    class TiresOfWords(Counts):
        """After two words that came alone, with the space before each, it loses the next."""

        words = 0

        def change(self, text):
            is_word = text[:1] == " " and text[1:].isalpha()
            self.words = self.words + 1 if is_word else 0
            return "" if self.words == 3 else text

    @contract.mutant("test_may_be_cut_at_random")
    class TakesNothingForTheEnd(Counts):
        """After an empty piece it loses the next character."""

        def change(self, text):
            return text[1:] if self.lengths[-2:-1] == [0] else text


def mind_other_things(contract, right):
    """Make those that do not."""

    @contract.mutant("test_plain_text_is_passed_on_at_once")
    class WaitsForTheEnd(right):
        """Everything is reported at the end."""

        def __init__(self, context):
            super().__init__(context)
            self.all = []

        def push(self, text, token_ids=()):
            self.all += super().push(text, token_ids)
            return []

        def finish(self, finish_reason):
            return [*self.all, *super().finish(finish_reason)]

    @contract.mutant("test_malformed_text_never_raises")
    class WantsAnEnd(right):
        """A response that was broken off raises."""

        def finish(self, finish_reason):
            assert finish_reason == "stop", "unterminated"
            return super().finish(finish_reason)

    @contract.mutant("test_responses_do_not_mix")
    class SharesItsState(right):
        """Whoever is not the one that pushed last loses a character."""

        last = None

        def push(self, text, token_ids=()):
            began, self.began = getattr(self, "began", False), True
            is_interrupted, SharesItsState.last = began and SharesItsState.last is not self, self
            return super().push(text[1:] if is_interrupted else text, token_ids)

    @contract.mutant("test_time_is_linear")
    class ReadsAgain(right):
        """Every piece is added to all the text, which is looked through again."""

        def push(self, text, token_ids=()):
            self.seen = getattr(self, "seen", "") + text
            self.found = self.seen.find("<nowhere>")
            return super().push(text, token_ids)

    @contract.mutant("test_time_is_linear")
    class CallsAgain(right):
        """With every piece a function is called for every piece so far."""

        def push(self, text, token_ids=()):
            self.pieces = [*getattr(self, "pieces", []), text]
            self.total = sum(map(len, self.pieces))
            for piece in self.pieces:
                len(piece)
            return super().push(text, token_ids)

    @contract.mutant("test_time_is_linear")
    class ReadsLongTextsAgain(right):
        """A text of more than 5,000 characters is looked through again with every piece."""

        def push(self, text, token_ids=()):
            self.seen = getattr(self, "seen", "") + text if len(text) > 1 else ""
            self.found = len(self.seen) > 5000 and self.seen.find("<nowhere>")
            return super().push(text, token_ids)

    @contract.mutant("test_keeps_its_marks")
    class MarksAreOneText(right):
        """`special_tokens` is a string."""

        special_tokens = "<x>"
