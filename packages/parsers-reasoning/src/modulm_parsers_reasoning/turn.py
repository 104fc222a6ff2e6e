"""The model's turn in the prompt: what a template, or a message that is gone on with, has written of it already.

Words that open a turn are those of published chat templates. Knows no format.
"""

OPENERS = (
    "<|im_start|>assistant", "<|ifm|im_start|>assistant", "<|im_assistant|>assistant", "<|start|>assistant",
    "<|start_of_role|>assistant", "<|BOT|>assistant", "<seed:bos>assistant", '<|open|>message role="assistant"',
    "<｜Assistant｜>", "<|Assistant|>", "<|assistant|>", "<assistant>", "<|CHATBOT_TOKEN|>", "<|message_model|>",
    "<|turn>model", "]~b]ai", "[/INST]",
)  # fmt: skip
"""What stands before the model's own words in a prompt."""


def last_mark(prompt: str, marks: tuple[str, ...]) -> str | None:
    """Return the last of the marks in the model's turn; None if it has none.

    Where nothing known opens the turn, only a mark at the very end counts: what came before may be a user's text.
    """
    begin = max(prompt.rfind(opener) for opener in OPENERS)
    if begin < 0:
        prompt = prompt.rstrip()
        return next((mark for mark in sorted(marks, key=len, reverse=True) if prompt.endswith(mark)), None)
    found = [(at, mark) for mark in marks if (at := prompt.rfind(mark, begin)) >= 0]
    return max(found)[1] if found else None
