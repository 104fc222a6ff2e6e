"""The example `lora_and_parsers`: parser files read what a model is made to write; the resolver finds an adapter.

What the model writes is forced by the example `logits_processor`, so that it holds thinking and calls.
"""

import json
import urllib.request
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/lora_and_parsers/my_parsers"
TEXT = 'I should look it up.\n---\nOne moment.\nCALL weather {"city": "Köln"}\nCALL weather {"city": "Rome"}\n'
CALLS = [("weather", '{"city": "Köln"}'), ("weather", '{"city": "Rome"}')]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
RESOLVE = """
import asyncio, json
from modulm.plugins.bootstrap import bootstrap, load_records
from modulm.plugins.registry import registry
bootstrap()
resolver = registry("modulm.lora_resolvers").get("My Folder")()
found = [asyncio.run(resolver.resolve_lora("base", name)) for name in ("mine", "other", "../mine")]
(record,) = [record for record in load_records() if record.name == "my_parsers"]
from vllm.lora.resolver import LoRAResolverRegistry
names = list(LoRAResolverRegistry.get_supported_resolvers())
print(json.dumps([[each and [each.name, each.path] for each in found], record.state, record.registered, names]))
"""


@pytest.fixture
def chat(serve, tiny_chat):
    server = serve(
        tiny_chat, "--num-kv-blocks=100", "--max-num-seqs=4",
        f"--tool-parser-plugin={EXAMPLE / 'tool_parser.py'}", "--tool-call-parser=lines", "--enable-auto-tool-choice",
        f"--reasoning-parser-plugin={EXAMPLE / 'reasoning_parser.py'}", "--reasoning-parser=dashes",
    )  # fmt: skip

    def post(path, **body):
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{server.url}{path}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.read().decode()

    ids = json.loads(post("/tokenize", prompt=TEXT, add_special_tokens=False))["tokens"]

    def ask(**options):
        body = {"messages": [{"role": "user", "content": "How is it?"}], "max_tokens": len(ids), "tools": [TOOL]}
        answer = post("/v1/chat/completions", **body, vllm_xargs={"forced_token_ids": ids}, **options)
        return answer, server.log.read_text()

    return ask


def test_parser_files_read_whole_answers_and_streams(chat):
    answer, log = chat()
    message = json.loads(answer)["choices"][0]["message"]
    assert [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]] == CALLS
    assert (message["reasoning"], message["content"].strip()) == ("I should look it up.\n", "One moment.")
    assert "vllm.my_parsers: call 1 of weather" in log

    lines = chat(stream=True)[0].splitlines()
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    calls = [call for delta in deltas for call in delta.get("tool_calls") or ()]
    for number, (name, arguments) in enumerate(CALLS):
        mine = [call["function"] for call in calls if call["index"] == number]
        assert [each["name"] for each in mine if each.get("name")] == [name]
        assert "".join(each.get("arguments") or "" for each in mine) == arguments
    assert "".join(delta.get("reasoning") or "" for delta in deltas) == "I should look it up.\n"
    assert "".join(delta.get("content") or "" for delta in deltas).strip() == "One moment."


def test_the_resolver_is_registered_and_finds_an_adapter(script, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/adapter_config.json").write_text("{}")
    (found, state, registered, names), _ = script(RESOLVE, MY_LORA_FOLDER=str(tmp_path))
    assert found == [["mine", str(tmp_path / "mine")], None, None]
    assert (state, registered, names) == ("loaded", ["modulm.lora_resolvers:My Folder"], ["My Folder"])
