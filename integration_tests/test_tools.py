"""Tool calls and thinking through `modulm serve` on real weights, with parsers of packages and one of a user's file.

SmolLM2 calls no tools by itself, so a logits processor dictates its words: every token is sampled, detokenised, parsed
and streamed as any other.
"""

import json
import urllib.request

import openai
import pytest

HOUSE = """
from modulm.interfaces.parsers import CallArguments, CallStart, Content, TextParser, ToolParser
from modulm.plugins.registry import registry
class House(TextParser, ToolParser):
    def read(self, text):
        index = 0
        while (yield from text.copy(Content, "@call ")):
            yield CallStart(index, (yield from text.take_until(" ")))
            yield from text.copy(lambda piece, index=index: CallArguments(index, piece), " @end")
            index += 1
registry("modulm.tool_parsers").register("house", House)
"""
TEMPLATE = """{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.tool_calls %}<tool_call>{% endif %}{{ message.content }}<|im_end|>
{% endfor %}<|im_start|>assistant
"""
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("get_weather", "now")]
CHAT = {"model": "smol", "messages": [{"role": "user", "content": "Weather in Zürich?"}], "tools": TOOLS}
CALLS = [("get_weather", '{"city": "Zürich 🌦 {x}", "days": 3}'), ("now", "{}")]
TEXTS = {
    "house": "".join(f"@call {name} {arguments} @end" for name, arguments in CALLS),
    "hermes": "\n".join(
        f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>' for name, arguments in CALLS
    ),
}


@pytest.fixture(scope="module", params=["house", "hermes"])
def serving(request, tmp_path_factory, dictated):
    folder = tmp_path_factory.mktemp(request.param)
    options = ["--reasoning-parser=qwen3"]
    if request.param == "house":
        (folder / "house.py").write_text(HOUSE)
        options += ["--tool-call-parser=house", f"--tool-parser-plugin={folder / 'house.py'}"]
    else:
        (folder / "chat.jinja").write_text(TEMPLATE)
        options += ["--tool-call-parser=auto", f"--chat-template={folder / 'chat.jinja'}"]
    server = dictated(folder, "--enable-auto-tool-choice", *options)
    assert server.process.poll() is None, "".join(server.log)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        yield server, client, TEXTS[request.param]
    assert server.end() == 0


def functions(message):
    return [(call.function.name, call.function.arguments) for call in message.tool_calls]


def test_the_official_client_streams_calls_and_thinking(serving):
    server, client, calls = serving
    extra = server.dictation(f"<think>\nLet me see.\n</think>\n\nI will ask.\n{calls}")
    whole = client.chat.completions.create(**CHAT, extra_body=extra).choices[0]
    with client.chat.completions.stream(**CHAT, extra_body=extra) as stream:
        events = list(stream)
        final = stream.get_final_completion().choices[0]
    for choice in (whole, final):
        assert functions(choice.message) == CALLS and choice.finish_reason == "tool_calls"
        assert choice.message.content == "\n\nI will ask.\n"
        assert choice.message.reasoning == choice.message.reasoning_content == "\nLet me see.\n"
    deltas = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
    assert len(deltas) > 10  # as they come
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [(event.name, event.arguments) for event in done] == CALLS


def test_several_answers_at_once_and_one_that_is_cut(serving):
    server, client, calls = serving
    extra = server.dictation(calls)
    several = client.chat.completions.create(**CHAT, extra_body=extra, n=3, temperature=1)
    assert [functions(choice.message) for choice in several.choices] == [CALLS] * 3
    assert all(choice.message.content is None for choice in several.choices)
    until_days = server.dictation(calls.partition(', "days"')[0])["vllm_xargs"]["dictate"]
    cut = client.chat.completions.create(**CHAT, extra_body=extra, max_tokens=len(until_days) - 2).choices[0]
    (call,) = functions(cut.message)
    assert cut.finish_reason == "length" and call[0] == "get_weather"
    assert CALLS[0][1].startswith(call[1]) and call[1].startswith('{"city": "Z')


def test_what_the_model_says_itself_is_content(serving):
    _, client, _ = serving
    answer = client.chat.completions.create(**CHAT, max_tokens=8, temperature=0).choices[0].message
    assert answer.content and answer.tool_calls is None


def test_both_processes_know_the_parser_file_and_the_log_says_what_was_chosen(serving):
    server, _, calls = serving
    records = json.loads(urllib.request.urlopen(server.url + "/v1/plugins", timeout=10).read())["data"]
    found = {record["process"] for record in records if record["name"].endswith("house.py")}
    assert found == ({"engine", "frontend"} if calls == TEXTS["house"] else set())
    chosen = "house (asked for)" if calls == TEXTS["house"] else "hermes (the chat template has <tool_call>; not "
    assert any(f"Chosen: modulm.tool_parsers={chosen}" in line for line in server.log), server.log


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--tool-parser-plugin={folder}/sad.py", "--tool-call-parser=house"], ["sad.py", "No module named 'absent'"]),
        (["--tool-call-parser=hermse"], ["'hermse' is unknown", "Did you mean 'hermes'"]),
    ],
)
def test_what_cannot_be_had_stops_the_start(tmp_path, dictated, options, words):
    (tmp_path / "sad.py").write_text("import absent\n")
    server = dictated(tmp_path, "--enable-auto-tool-choice", *[option.format(folder=tmp_path) for option in options])
    assert server.end() != 0, "it serves"
    assert all(word in "".join(server.log) for word in words), server.log
