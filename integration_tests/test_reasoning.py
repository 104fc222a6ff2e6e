"""Thinking and answer told apart by `modulm serve`, whole and streamed alike: fields, switches, stop strings (B3-B8).

The template is Qwen 3's in what counts: a switch, and an empty pair of tags where it is off.
"""

import urllib.request

import openai
import pytest

TEMPLATE = """{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% if not (loop.last and message.role == "assistant") %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% elif reasoning_effort is defined and reasoning_effort == "high" %}<think>
{% endif %}{% endif %}"""
CHAT = {"model": "smol", "messages": [{"role": "user", "content": "What does <think> mean?"}]}
THOUGHT, ANSWER = "\nFirst, 2 < 3.\n\nThen </thin, é 😊.\n", "\n\nIt means <b>that</b>.\n\nThe end."
WHOLE = f"<think>{THOUGHT}</think>{ANSWER}"


@pytest.fixture(scope="module")
def serving(tmp_path_factory, dictated):
    folder = tmp_path_factory.mktemp("reasoning")
    (folder / "chat.jinja").write_text(TEMPLATE)
    server = dictated(folder, "--reasoning-parser=auto", f"--chat-template={folder / 'chat.jinja'}")
    assert server.process.poll() is None, "".join(server.log)
    yield server
    assert server.end() == 0


@pytest.fixture
def said(serving):
    """What is told of a dictated text: (reasoning, content, finish reason), the same whole and streamed."""

    def ask(text, *, extra=None, **fields):
        fields = {**CHAT, **fields, "extra_body": {**serving.dictation(text), **(extra or {})}}
        with openai.OpenAI(base_url=f"{serving.url}/v1", api_key="none") as client:
            whole = client.chat.completions.create(**fields).choices[0]
            chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**fields, stream=True)]
        deltas = [(getattr(each.delta, "reasoning", None), each.delta.content) for each in chunks]
        twice = [getattr(each.delta, "reasoning_content", None) for each in chunks]
        assert [thought for thought, _ in deltas] == twice
        assert getattr(whole.message, "reasoning_content", None) == getattr(whole.message, "reasoning", None)
        told = (getattr(whole.message, "reasoning", None), whole.message.content, whole.finish_reason)
        reasoning, content = ("".join(each[part] or "" for each in deltas) for part in (0, 1))
        assert (reasoning or None, content or None, chunks[-1].finish_reason) == told
        return told

    return ask


def test_the_log_says_what_was_chosen_and_why(serving):
    chosen = "Chosen: modulm.reasoning_parsers=qwen3 (the chat template has </think>; not deepseek_r1: "
    assert any(f"{chosen}the chat template has enable_thinking" in line for line in serving.log), serving.log
    assert urllib.request.urlopen(serving.url + "/health", timeout=10).status == 200


def test_thinking_is_told_beside_the_answer_and_no_tag_of_it(said):
    """B3, B4."""
    assert said(WHOLE) == (THOUGHT, ANSWER, "stop")
    assert said(ANSWER) == (None, ANSWER, "stop")


def test_thinking_need_not_be_told(said):
    assert said(WHOLE, extra={"include_reasoning": False}) == (None, ANSWER, "stop")


def test_the_request_switches_thinking_off(said):
    """B6: what the template is told reaches the parser, too."""
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    assert said('{"a":1}', extra=off) == (None, '{"a":1}', "stop")
    assert said("yes </think> no", extra=off) == (None, "yes </think> no", "stop")


def test_the_template_opens_the_thinking(said):
    extra = {"reasoning_effort": "high"}
    assert said(f"{THOUGHT}</think>{ANSWER}", extra=extra) == (THOUGHT, ANSWER, "stop")
    assert said(WHOLE, extra=extra) == (THOUGHT, ANSWER, "stop")


def test_a_message_is_gone_on_with_in_the_midst_of_its_thoughts(said):
    messages = [*CHAT["messages"], {"role": "assistant", "content": "<think>\nSo far"}]
    extra = {"continue_final_message": True, "add_generation_prompt": False}
    assert said(", so good.</think>Yes.", messages=messages, extra=extra) == (", so good.", "Yes.", "stop")


def test_stop_strings_end_the_answer_and_not_the_thinking(said):
    """B7, B8."""
    assert said(WHOLE, stop=[".\n\n"]) == (THOUGHT, "\n\nIt means <b>that</b>", "stop")
    assert said(WHOLE, stop=["</b"]) == (THOUGHT, "\n\nIt means <b>that", "stop")


def test_thinking_that_is_cut_short(said):
    reasoning, content, reason = said(WHOLE, max_tokens=8)
    assert (content, reason) == (None, "length")
    assert reasoning and THOUGHT.startswith(reasoning)
