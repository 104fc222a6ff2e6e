"""Thinking before answers that have a form, and its budget, through `modulm serve` on real weights.

SmolLM2 has no tokens for `<think>` and `</think>`: both are texts of several tokens, cut in whatever way. It does not
think by itself either, so the parser takes every answer for thinking until the end mark, as with DeepSeek R1; a logits
processor dictates the first words where a test needs them.
"""

import json
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import openai
import pytest

BEGIN = """
from modulm.interfaces.logits import AdapterLogitsProcessor
class Begin(AdapterLogitsProcessor):
    def is_argmax_invariant(self): return False
    def new_req_logits_processor(self, params):
        words = (params.extra_args or {}).get("begin")
        def say(output_ids, row):
            if len(output_ids) < len(words):
                kept = row[words[len(output_ids)]].clone()
                row.fill_(float("-inf"))
                row[words[len(output_ids)]] = kept
            return row
        return say if words else None
"""
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"enum": [1, 2, 3]}},
          "required": ["city", "days"], "additionalProperties": False}  # fmt: skip
FORMAT = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA, "strict": True}}
TOOLS = [{"type": "function", "function": {"name": "book", "parameters": SCHEMA}}]
STRICT = [{"type": "function", "function": {"name": "book", "parameters": SCHEMA, "strict": True}}]


@pytest.fixture(scope="module")
def server(tmp_path_factory, smol_server):
    options = ["--reasoning-parser=deepseek_r1", "--tool-call-parser=hermes", "--enable-auto-tool-choice"]
    options.append("--kernel-precision=exact")  # else last bits may depend on what else is in a step, and draws on them
    served = smol_server(tmp_path_factory.mktemp("thinking"), "begin", BEGIN, *options)
    assert served.process.poll() is None, "".join(served.log)
    yield served
    assert served.end() == 0


@pytest.fixture(scope="module")
def ask(server):
    """Return the answers' (reasoning, content, calls, finish reason), which are the same streamed and not."""
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    asked = {"model": "smol", "messages": [{"role": "user", "content": "Plan a trip."}], "temperature": 0.8}

    def make(seed=1, n=1, begin="", **fields):
        extra = {name: fields.pop(name) for name in ("thinking_token_budget", "chat_template_kwargs") if name in fields}
        if begin:
            extra["vllm_xargs"] = {"begin": server.tokens(begin)}
        body = {**asked, "seed": seed, "n": n, "max_tokens": 150, "extra_body": extra, **fields}
        whole = [told(choice) for choice in client.chat.completions.create(**body).choices]
        assert put_together(client.chat.completions.create(**body, stream=True)) == whole
        return whole if n > 1 else whole[0]

    return make


def told(choice):
    message = choice.message
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    return getattr(message, "reasoning", None) or "", message.content or "", calls, choice.finish_reason


def put_together(chunks):
    found = {}
    for choice in [choice for chunk in chunks for choice in chunk.choices]:
        answer = found.setdefault(choice.index, ["", "", {}, None])
        answer[0] += getattr(choice.delta, "reasoning", None) or ""
        answer[1] += choice.delta.content or ""
        for call in choice.delta.tool_calls or ():
            begun = answer[2].setdefault(call.index, [call.function.name, ""])
            begun[1] += call.function.arguments
        answer[3] = choice.finish_reason or answer[3]
    parts = [found[index] for index in sorted(found)]
    return [(a, b, [tuple(call) for call in calls.values()], reason) for a, b, calls, reason in parts]


def check(text):
    jsonschema.validate(json.loads(text), SCHEMA)


def test_a_budget_closes_the_thinking_and_the_answer_has_its_form(server, ask):
    def one(budget):
        reasoning, content, _, reason = ask(thinking_token_budget=budget, response_format=FORMAT)
        check(content)
        assert reason == "stop" and bool(reasoning) == bool(budget)
        assert len(server.tokens(reasoning)) <= budget + 1  # written anew it may be cut in another way

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, [0, 1, 7, 30]))


def test_the_model_may_end_its_thinking_itself(ask):
    """B9: the form waits for the mark, however the tokens cut it, and holds right behind it."""
    for begin in ("Let me see.</think>", "a <b></think>", "{}</thin</think>"):
        reasoning, content, _, reason = ask(begin=begin, response_format=FORMAT)
        check(content)
        assert (reasoning, reason) == (begin.removesuffix("</think>"), "stop")


def test_without_thinking_the_form_holds_at_once(ask):
    """B9."""
    reasoning, content, _, _ = ask(chat_template_kwargs={"enable_thinking": False}, response_format=FORMAT)
    assert reasoning == ""
    check(content)


def test_thinking_that_does_not_end_is_all_there_is(ask):
    reasoning, content, _, reason = ask(response_format=FORMAT, max_tokens=25)
    assert reasoning and (content, reason) == ("", "length")


def test_several_answers_think_each_for_itself(ask):
    for reasoning, content, _, reason in ask(n=3, thinking_token_budget=9, response_format=FORMAT):
        check(content)
        assert reasoning and reason == "stop"


def test_a_budget_without_a_form(ask):
    reasoning, content, _, _ = ask(thinking_token_budget=6, max_tokens=20)
    assert reasoning and content


def test_forced_calls_come_after_the_thinking(ask):
    for choice, reason in (("required", "tool_calls"), ({"type": "function", "function": {"name": "book"}}, "stop")):
        reasoning, content, calls, why = ask(
            thinking_token_budget=8, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False
        )
        assert reasoning and (content, why) == ("", reason)
        for name, arguments in calls:
            assert name == "book"
            check(arguments)


def test_a_strict_tool_is_called_by_its_schema_where_the_model_calls_it(ask):
    """Hermes' format, begun by dictation; without a call the answer is free, or has its own form."""
    begin = "Hm.</think>So: <tool_call>"
    reasoning, content, calls, reason = ask(begin=begin, tools=STRICT, parallel_tool_calls=False)
    assert (reasoning, content.strip(), reason) == ("Hm.", "So:", "tool_calls")
    ((name, arguments),) = calls
    assert name == "book"
    check(arguments)
    _, content, calls, _ = ask(begin="Hm.</think>So", tools=STRICT, max_tokens=12)
    assert content.startswith("So") and not calls
    _, content, calls, _ = ask(begin="Hm.</think>", tools=STRICT, response_format=FORMAT, parallel_tool_calls=False)
    assert bool(content) != bool(calls)
    check(content or calls[0][1])


def test_completions_have_budgets_too(server):
    body = {"prompt": "<think>\\n", "max_tokens": 60, "thinking_token_budget": 5, "guided_choice": ["yes", "no"]}
    text = server.post("/v1/completions", {**body, "temperature": 0})["choices"][0]["text"]
    thinking, mark, answer = text.partition("</think>")
    assert thinking and mark and answer in ("yes", "no")
