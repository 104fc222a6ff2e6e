"""Conversations that engines were publicly reported to spoil (J2 to J11): through a template to the prompt, by HTTP.

The template writes out what it is given, as Llama 3's and others do: strings are added to, arguments are objects.
"""

import json

import pytest

TEMPLATE = """{% for message in messages %}<{{ message.role }}>{% if message.tool_calls %}
{%- if message.tool_calls | length != 1 %}
{{- raise_exception("This model only supports single tool-calls at once!") }}
{%- endif %}
{%- for name, value in message.tool_calls[0].function.arguments.items() %}[{{ name }}={{ value }}]{% endfor -%}
{{ message.tool_calls[0].function.name }}
{%- else %}{{ message.content + "" }}{% endif %}{% endfor %}"""
STRICT = """{% for message in messages %}{% if message.role == "system" and not loop.first %}
{{- raise_exception("System message must be at the beginning.") }}
{%- endif %}{{ message.content }}{% endfor %}"""
USER = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def prompted(make_server):
    """The prompt that a template makes of a conversation; the refusal's message where there is none."""
    servers = {template: make_server(chat_template=template) for template in (TEMPLATE, STRICT)}

    def ask(messages, template=TEMPLATE):
        server = servers[template]
        body = {"messages": messages, "max_tokens": 1, "return_token_ids": True, "add_generation_prompt": False}
        status, _, answer = server.ask("/v1/chat/completions", body)
        assert server.ask("/health")[0] == 200
        if status == 200:
            return server.tokenizer.decode(answer["prompt_token_ids"])
        assert (status, answer["error"]["param"]) == (400, "messages")
        return answer["error"]["message"]

    return ask


def calling(*arguments):
    calls = [
        {"id": f"call_{number}", "type": "function", "function": {"name": "f", "arguments": each}}
        for number, each in enumerate(arguments)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


@pytest.mark.parametrize("arguments", ["", None, "{}"])
def test_arguments_that_are_not_there_are_an_empty_object(prompted, arguments):
    """J2."""
    assert prompted([USER, calling(arguments), {"role": "tool", "content": "ok"}]) == "<user>hi<assistant>f<tool>ok"
    assert prompted([USER, calling(json.dumps({"a": 1}))]) == "<user>hi<assistant>[a=1]f"


def test_the_template_s_own_refusal_reaches_the_client(prompted):
    """J5."""
    assert "This model only supports single tool-calls at once!" in prompted([USER, calling("{}", "{}"), USER])


def test_a_last_message_with_calls_is_kept(prompted):
    """J7."""
    assert prompted([USER, calling('{"a": 1}')]) == "<user>hi<assistant>[a=1]f"


def test_system_messages_keep_their_places(prompted):
    """J9."""
    chat = [{"role": "system", "content": "a"}, USER, {"role": "system", "content": "b"}, USER]
    assert prompted(chat) == "<system>a<user>hi<system>b<user>hi"
    assert "System message must be at the beginning." in prompted(chat, STRICT)


def test_parts_are_joined_where_a_string_is_expected(prompted):
    """J11."""
    parts = [{"type": "text", "text": "hi"}]
    assert prompted([{"role": "user", "content": parts}]) == "<user>hi"
    assert prompted([{"role": "user", "content": [*parts, {"type": "text", "text": "you"}]}]) == "<user>hi\nyou"
