"""`<think>...</think>` of Nemotron 3, whose users may ask for an answer that is never empty.

Source: the chat template of NVIDIA-Nemotron-3-Nano, and the parser that its model card tells to use.
"""

from modulm.interfaces.parsers import Content, Reasoning
from modulm.interfaces.reading import GrowingText, Reading
from modulm_parsers_reasoning.step3p5 import Step3p5ReasoningParser


class NemotronV3ReasoningParser(Step3p5ReasoningParser):
    """With `force_nonempty_content` a response that is nothing but thoughts has them as its content, too."""

    signs = (Step3p5ReasoningParser.end_marker, "truncate_history_thinking")

    def read(self, text: GrowingText) -> Reading[None]:
        """See `TextParser`."""
        if not self.context.template_kwargs.get("force_nonempty_content"):
            yield from super().read(text)
            return
        thoughts, answer = [], ""
        for event in self._all(text):
            if isinstance(event, Reasoning):
                thoughts.append(event.text)
            elif isinstance(event, Content):
                answer = answer or event.text.strip()
            yield event
        if not answer:
            yield Content("".join(thoughts))

    def _all(self, text: GrowingText) -> Reading[None]:
        yield from super().read(text)
        yield from text.copy(Content)
