"""IO processors that are wrong in one way each: a list of words becomes a prompt for each word."""

from contract import Contract

from modulm.interfaces.io_processor import IOProcessor
from modulm_testkit.io_processor import IOProcessorConformance


class Words(IOProcessor):
    """{"words": [...]} -> prompts -> their texts."""

    def parse_data(self, data):
        words = data.get("words") if isinstance(data, dict) else None
        if not isinstance(words, list) or not words:
            raise ValueError(f"{data!r} has no words. Send a list of them as 'words'.")
        return words

    def pre_process(self, prompt, request_id=None, **kwargs):
        return [f"Say {word}." for word in prompt]

    def post_process(self, model_output, request_id=None, **kwargs):
        return [output.outputs[0].text for output in model_output]


GOOD = [{"words": ["a", "b"]}, {"words": ["c"]}]
BAD = [{}, {"words": "a"}, None]
io_processor = Contract("io_processor", IOProcessorConformance, "processor_class", Words, data=GOOD, bad_data=BAD)
mutant = io_processor.mutant


@mutant("test_refuses_bad_data")
class RaisesKeyError(Words):
    """Data without words raises KeyError."""

    def parse_data(self, data):
        return super().parse_data({"words": data["words"]})


@mutant("test_takes_its_data")
class WantsTwoWords(Words):
    """When told of one word it remembers that two are needed, and tells the next caller."""

    told = 0

    def parse_data(self, data):
        parsed = super().parse_data(data)
        WantsTwoWords.told += len(parsed) == 1
        if len(parsed) == 1 and WantsTwoWords.told == 1:
            raise ValueError("Send two words.")
        return parsed


@mutant("test_makes_prompts")
class MakesBytes(Words):
    """Prompts are bytes."""

    def pre_process(self, prompt, request_id=None, **kwargs):
        return [one.encode() for one in super().pre_process(prompt)]


@mutant("test_takes_what_comes_later")
class TakesWhatItKnows(Words):
    """An unknown keyword raises TypeError."""

    def post_process(self, model_output, request_id=None):
        return super().post_process(model_output)


@mutant("test_answers")
class PrintsTheAnswer(Words):
    """`post_process` answers None."""

    def post_process(self, model_output, request_id=None, **kwargs):
        super().post_process(model_output)


@mutant("test_requests_do_not_mix")
class RemembersTheLast(Words):
    """The answer counts the words of whatever request came last."""

    def pre_process(self, prompt, request_id=None, **kwargs):
        self.count = len(prompt)
        return super().pre_process(prompt)

    def post_process(self, model_output, request_id=None, **kwargs):
        return super().post_process(model_output), self.count
