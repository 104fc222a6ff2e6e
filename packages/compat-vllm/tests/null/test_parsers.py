"""Tool and reasoning parsers written for vLLM: their names, and what modulm's front end reads with them."""

import itertools
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionRequest,
    ChatCompletionToolsParam,
    FunctionDefinition,
)
from vllm.entrypoints.openai.engine.protocol import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    ExtractedToolCallInformation,
    FunctionCall,
    ToolCall,
)
from vllm.reasoning import ReasoningParser, ReasoningParserManager
from vllm.reasoning.basic_parsers import BaseThinkingReasoningParser
from vllm.reasoning.deepseek_r1_reasoning_parser import DeepSeekR1ReasoningParser
from vllm.tool_parsers import ToolParser, ToolParserManager
from vllm.utils.import_utils import import_plugin

from modulm.interfaces.parsers import (
    CallArguments,
    CallStart,
    Content,
    ParsedCall,
    Reasoning,
    ResponseContext,
    TextParser,
    collect,
)
from modulm.interfaces.parsers import ReasoningParser as OwnReasoning
from modulm.interfaces.parsers import ToolParser as OwnTool
from modulm.plugins.registry import registry
from modulm.sampling_params import SamplingParams

EXAMPLE = Path(__file__).parents[2] / "examples/lora_and_parsers/my_parsers"
TOOLS = [{"name": "weather", "description": "d", "parameters": {"type": "object"}}]
PIECES = ["<think>", "</think>", *'abcdefghijklmnopqrstuvwxyz .,-\n{}":', "CALL "]


class Tokenizer:
    """A token for each piece; the first two are special."""

    vocab_size = len(PIECES)
    added_tokens = dict(enumerate(PIECES[:2]))
    special_ids = (0, 1)

    def encode(self, text, add_special_tokens=True):
        ids = []
        while text:
            number = next(n for n, piece in enumerate(PIECES) if text.startswith(piece))
            ids.append(number)
            text = text[len(PIECES[number]) :]
        return ids

    def decode(self, token_ids, skip_special_tokens=True):
        return "".join(PIECES[i] for i in token_ids if not (skip_special_tokens and i in self.special_ids))

    def id_to_piece(self, token_id):
        return PIECES[token_id]


TOKENIZER = Tokenizer()


def read(parser_class, ids, *, size=1, **context):
    """Push tokens, `size` at a time, into what stands for the class in modulm, and return what was found."""
    parser = parser_class.modulm_class()(ResponseContext(tokenizer=TOKENIZER, **context))
    events = []
    for start in range(0, len(ids), size):
        piece = ids[start : start + size]
        events += parser.push(TOKENIZER.decode(piece, False), piece)
    return collect(events + parser.finish("stop"))


class Names:
    """One of the two managers, and a class of its kind."""

    def __init__(self, manager, base, get, import_):
        self.manager, self.base = manager, base
        self.get, self.import_ = getattr(manager, get), getattr(manager, import_)

    def make(self):
        return type("Made", (self.base,), {})


@pytest.fixture(params=["tool", "reasoning"])
def names(request, site):
    if request.param == "tool":
        return Names(ToolParserManager, ToolParser, "get_tool_parser", "import_tool_parser")
    return Names(ReasoningParserManager, ReasoningParser, "get_reasoning_parser", "import_reasoning_parser")


def test_a_class_is_registered_by_call_and_as_a_decorator(names):
    first, second, third = names.make(), names.make(), names.make()
    names.manager.register_module("b", module=first)
    assert names.manager.register_module(["c", "a"])(second) is second
    names.manager.register_module()(third)
    assert names.manager.list_registered() == ["Made", "a", "b", "c"]
    assert [names.get(name) for name in ("Made", "a", "b", "c")] == [third, second, first, second]


def test_a_name_that_is_taken(names):
    first, second = names.make(), names.make()
    names.manager.register_module("x", module=first)
    with pytest.raises(KeyError, match="x is already registered"):
        names.manager.register_module("x", force=False, module=second)
    names.manager.register_lazy_module("x", "no_such_module", "Class")
    assert names.get("x") is first, "a class that is there goes before one that is only named"
    names.manager.register_module("x", module=second)
    assert names.get("x") is second


def test_a_lazy_one_is_imported_when_it_is_asked_for(names, site):
    base = f"{names.base.__module__} import {names.base.__name__} as Base"
    (site.folder / "lazy_parser.py").write_text(f"from {base}\nclass Mine(Base): ...\nclass No: ...\n")
    for name, where in [("mine", "Mine"), ("no", "No"), ("gone", "Gone")]:
        names.manager.register_lazy_module(name, "lazy_parser", where)
    assert names.get("mine").__name__ == "Mine"
    for name in ("no", "gone"):
        with pytest.raises(TypeError):
            names.get(name)


def test_what_is_no_parser_and_what_is_not_there(names):
    for wrong in (object, "Class"):
        with pytest.raises(TypeError, match="must be subclass of"):
            names.manager.register_module("x", module=wrong)
    with pytest.raises(TypeError, match="force must be a boolean"):
        names.manager.register_module("x", "yes", names.make())
    names.manager.register_module("hermes", module=names.make())
    with pytest.raises(KeyError, match="parser 'herms' not found. Available: hermes"):
        names.get("herms")


def test_the_managers_dictionaries_are_the_registry(names):
    eager = names.manager.tool_parsers if names.base is ToolParser else names.manager.reasoning_parsers
    lazy = names.manager.lazy_parsers
    names.manager.register_module("a", module=(made := names.make()))
    names.manager.register_lazy_module("b", "some.module", "Class")
    assert (dict(eager), dict(lazy)) == ({"a": made}, {"b": ("some.module", "Class")})
    assert eager.pop("a") is made and eager.pop("b", None) is None and "a" not in names.manager.list_registered()
    names.manager.register_lazy_module("a", "some.module", "Other")  # what was in its way is gone
    eager["c"] = made
    assert sorted(lazy) == ["a", "b"] and names.get("c") is made
    del lazy["a"]
    with pytest.raises(KeyError):
        del lazy["a"]


def test_files_and_modules_are_imported_and_failures_logged(names, site, caplog):
    name = names.base.__name__
    code = f"from {names.base.__module__} import {name}, {name}Manager as M\n@M.register_module('filed')\n"
    (site.folder / "filed_parser.py").write_text(code + f"class Filed({name}): ...\n")
    names.import_(str(site.folder / "filed_parser.py"))
    assert names.get("filed").__module__ == "filed_parser"
    names.import_("filed_parser")
    names.import_("/no/such/file.py")
    assert "Failed to load the" in caplog.text and "'/no/such/file.py'" in caplog.text


@pytest.fixture
def lines(site, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    return import_plugin(str(EXAMPLE / "tool_parser.py")).LineToolParser


TEXTS = [
    "no call at all",
    'hello.\nCALL weather {"a": "b"}\nand CALL this {"is": "none"}\n',
    'CALL weather {"a": "b"}\nCALL weather {"c": "d"}',
    "CALL weather {not json}\nCALL ",
    "",
]


@pytest.mark.parametrize(("text", "size"), list(itertools.product(TEXTS, [1, 2, 7, 1000])))
def test_the_example_s_calls_are_the_same_however_the_text_is_cut(lines, text, size):
    whole = lines(None).extract_tool_calls(text, None)
    found = read(lines, TOKENIZER.encode(text), size=size, tools=TOOLS)
    assert [(call.name, call.arguments) for call in found.calls] == [
        (call.function.name, call.function.arguments) for call in whole.tool_calls
    ]
    assert found.content == (whole.content or "")
    assert [bool(call.id) for call in found.calls] == [True] * len(found.calls)


class WholeOnly(ToolParser):
    """Has no method for streams."""

    def extract_tool_calls(self, model_output, request):
        assert [tool.function.name for tool in request.tools] == ["weather"]
        call = ToolCall(function=FunctionCall(name="weather", arguments=model_output))
        return ExtractedToolCallInformation(tools_called=True, tool_calls=[call], content="said")


class StreamOnly(ToolParser):
    """Has no method for whole texts; takes the tools, and keeps arguments for the end as parsers of vLLM do."""

    def __init__(self, tokenizer, tools=None):
        super().__init__(tokenizer, tools)
        assert [tool.function.parameters for tool in tools or ()] in ([], [{"type": "object"}])

    def extract_tool_calls_streaming(self, previous_text, current_text, delta_text, before, ids, new, request):
        assert previous_text + delta_text == current_text and before + new == ids
        assert ids == TOKENIZER.encode(current_text)
        if previous_text:
            return None
        self.prev_tool_call_arr = [{"name": "weather", "arguments": {"a": "ß"}}]
        self.streamed_args_for_tool = ['{"a"']
        function = DeltaFunctionCall(name="weather", arguments='{"a"').model_dump(exclude_none=True)
        return DeltaMessage(tool_calls=[DeltaToolCall(index=0, id="id0", type="function", function=function)])


def test_a_parser_with_one_of_the_two_methods_reads_all_responses():
    found = read(WholeOnly, TOKENIZER.encode("abc"), tools=TOOLS)
    assert (found.content, [(call.name, call.arguments) for call in found.calls]) == ("said", [("weather", "abc")])
    found = read(StreamOnly, TOKENIZER.encode("abc"), tools=TOOLS)
    assert found.calls == [ParsedCall("weather", '{"a": "ß"}', "id0")]


class Contradicting(WholeOnly):
    """Streams other arguments than it finds in the end."""

    def extract_tool_calls_streaming(self, previous_text, *rest):
        function = DeltaFunctionCall(name=None if previous_text else "weather", arguments="x")
        return DeltaMessage(tool_calls=[DeltaToolCall(index=0, function=function)])


def test_what_was_streamed_is_not_taken_back():
    assert [call.arguments for call in read(Contradicting, TOKENIZER.encode("abc"), tools=TOOLS).calls] == ["xxx"]


def test_a_parser_may_ask_for_special_tokens():
    class Wanting(ToolParser):
        def adjust_request(self, request):
            if request.tools and request.tool_choice != "none":
                request.skip_special_tokens = False
            return request

    adjust = Wanting.modulm_class().adjust
    params = SamplingParams(temperature=0.5)
    changed = adjust(params, ResponseContext(tokenizer=TOKENIZER, tools=TOOLS))
    assert (changed.skip_special_tokens, changed.temperature) == (False, 0.5)
    assert adjust(params, ResponseContext(tokenizer=TOKENIZER)) is params


def test_the_tokenizer_is_as_parsers_expect_one():
    seen = []

    class Asking(ToolParser):
        def __init__(self, tokenizer):
            super().__init__(tokenizer)
            seen.append(self)

    for _ in range(2):
        Asking.modulm_class()(ResponseContext(tokenizer=TOKENIZER))
    (first, second), tokenizer = seen, seen[0].model_tokenizer
    assert first.vocab is second.vocab and first.vocab["</think>"] == 1 and len(tokenizer) == len(PIECES)
    assert tokenizer.convert_tokens_to_ids(["a", "<think>"]) == [PIECES.index("a"), 0]
    assert tokenizer.convert_ids_to_tokens([0, 2], skip_special_tokens=True) == ["a"]
    assert (tokenizer.encode("ab", add_special_tokens=False), tokenizer.decode([0, 2])) == ([2, 3], "<think>a")
    assert (tokenizer.all_special_ids, tokenizer.all_special_tokens) == ([0, 1], ["<think>", "</think>"])


class Qwen(BaseThinkingReasoningParser):
    """Thinks only where it says so."""

    start_token = "<think>"
    end_token = "</think>"


THOUGHTS = [
    ("<think>a b</think>c d", [("a b", "c d")] * 2),
    ("a b</think>c d", [("a b", "c d"), None]),
    ("<think>a b", [("a b", "")] * 2),
    ("a b", [("a b", ""), ("", "a b")]),
    ("<think></think>c</think>d", [("", "c</think>d")] * 2),
]


@pytest.mark.parametrize(("text", "wanted"), THOUGHTS)
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("size", [1, 3, 100])
def test_thinking_between_two_tokens(text, wanted, number, size):
    parser_class, want = (DeepSeekR1ReasoningParser, Qwen)[number], wanted[number]
    if want is not None:  # a mark without its beginning means nothing to the second
        found = read(parser_class, TOKENIZER.encode(text), size=size)
        assert (found.reasoning, found.content) == want


def test_a_prompt_that_has_closed_the_thinking_leaves_all_to_the_answer():
    closed = TOKENIZER.encode("<think>a</think>")
    found = read(DeepSeekR1ReasoningParser, TOKENIZER.encode("b c"), prompt_token_ids=closed)
    assert (found.reasoning, found.content) == ("", "b c")
    found = read(DeepSeekR1ReasoningParser, TOKENIZER.encode("b</think>c"), prompt_token_ids=closed[:1])
    assert (found.reasoning, found.content) == ("b", "c")


@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize("text", ["a - b -- c\n---\nd---e", "a--", "---b", "-"])
def test_the_example_s_thinking_is_the_same_however_the_text_is_cut(site, text, size):
    parser_class = import_plugin(str(EXAMPLE / "reasoning_parser.py")).DashReasoningParser
    found = read(parser_class, TOKENIZER.encode(text), size=size)
    before, _, after = text.partition("---")
    assert (found.reasoning, found.content) == (before, after)


def test_a_model_without_the_tokens_is_refused(monkeypatch):
    monkeypatch.setattr(Qwen, "end_token", "</thought>")
    with pytest.raises(RuntimeError, match=r"could not locate think start/end tokens in the tokenizer: </thought>"):
        Qwen.modulm_class()(ResponseContext(tokenizer=TOKENIZER))


def test_what_is_registered_is_in_modulm_s_registry(names):
    names.manager.register_module("mine", module=(made := names.make()))
    family = {ToolParser: "modulm.tool_parsers", ReasoningParser: "modulm.reasoning_parsers"}[names.base]
    assert registry(family).get("mine") is made.modulm_class()


def test_strings_are_compared_as_parsers_compare_them():
    from vllm.tool_parsers import utils

    assert utils.find_common_prefix('{"fruit": "ap"}', '{"fruit": "apple"}') == '{"fruit": "ap'
    assert utils.find_common_suffix('{"fruit": "ap"}', '{"fruit": "apple"}') == '"}'
    assert utils.find_common_suffix("ale", "apple") == "" and utils.find_common_suffix("", "x") == ""
    assert utils.extract_intermediate_diff('{"fruit": "apple"}', '{"fruit": "ap"}') == "ple"
    assert utils.extract_intermediate_diff('{"a": [1, 2]}', '{"a": []}') == "1, 2"
    assert utils.find_all_indices("aaab", "aa") == [0, 1] and utils.find_all_indices("a.b", ".") == [1]
    assert utils.is_complete_json('{"a": 1}') and not utils.is_complete_json('{"a": 1')
    assert [utils.consume_space(i, "a  b ") for i in range(6)] == [0, 3, 3, 3, 5, 5]


def test_unfinished_json_is_read_by_the_library_and_what_follows_a_text_is_left(monkeypatch):
    from vllm.tool_parsers.utils import partial_json_loads

    flags = []
    library = SimpleNamespace(loads=lambda text, allowed: flags.append(allowed) or json.loads(text))
    monkeypatch.setitem(sys.modules, "partial_json_parser", library)
    assert partial_json_loads('{"a": 1}', "any") == ({"a": 1}, 8) and flags == ["any"]
    assert partial_json_loads('{"a": 1} and more', "any") == ({"a": 1}, 8)
    with pytest.raises(json.JSONDecodeError):
        partial_json_loads("{", "any")


class Lines(TextParser, OwnTool):
    """A call is a line `CALL name {...}`; its mark is a special token of some model."""

    special_tokens = ("CALL ",)

    def call_id(self, index, name):
        return f"line-{index}"

    def read(self, text):
        index = 0
        while (yield from text.copy(Content, "CALL ")):
            name = yield from text.take_until(" ")
            yield CallStart(index, name.strip())
            arguments = yield from text.take_until("\n")
            yield CallArguments(index, arguments.strip())
            index += 1


class Think(TextParser, OwnReasoning):
    """Thinks between two tags."""

    start_marker, end_marker = "<think>", "</think>"

    def read(self, text):
        if (yield from text.copy(Content, "<think>")) == "<think>":
            yield from text.copy(Reasoning, "</think>")
            yield from text.copy(Content)


@pytest.fixture
def own(site):
    registry("modulm.tool_parsers").register("lines", Lines)
    registry("modulm.reasoning_parsers").register("think", Think)
    return SimpleNamespace(
        tool=ToolParserManager.get_tool_parser("lines"), reasoning=ReasoningParserManager.get_reasoning_parser("think")
    )


def streamed(ask, text, size):
    """Return the messages of a stream whose pieces have `size` tokens."""
    ids, found, before = TOKENIZER.encode(text), [], ""
    for at in range(0, len(ids), size):
        new = TOKENIZER.decode(ids[at : at + size], False)
        message = ask(before, before + new, new, ids[:at], ids[: at + size], ids[at : at + size])
        before += new
        found += [message] if message is not None else []
    return found


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_modulms_own_parsers_are_classes_of_vllms_kind(own, size):
    """Whole and in pieces, from the managers by name: a plugin asks for the parser of its model and uses it."""
    assert issubclass(own.tool, ToolParser) and issubclass(own.reasoning, ReasoningParser)
    assert own.tool is ToolParserManager.get_tool_parser("lines") and own.tool.__name__ == "Lines"
    text = 'hello.\nCALL weather {"a": "b"}\nand CALL now {}\n'
    tools = [ChatCompletionToolsParam(function=FunctionDefinition(**TOOLS[0]))]
    request = ChatCompletionRequest(tools=tools)
    parser = own.tool(TOKENIZER, tools)
    whole = parser.extract_tool_calls(text, request)
    assert [(c.id, c.function.name, c.function.arguments) for c in whole.tool_calls] == [
        ("line-0", "weather", '{"a": "b"}'),
        ("line-1", "now", "{}"),
    ]
    assert whole.tools_called and whole.content == "hello.\nand "
    found = streamed(lambda *pieces: parser.extract_tool_calls_streaming(*pieces, request), text, size)
    assert "".join(message.content or "" for message in found) == whole.content
    calls = [call for message in found for call in message.tool_calls]
    assert [(c.index, c.id) for c in calls if c.id] == [(0, "line-0"), (1, "line-1")]
    assert "".join(c.function.arguments or "" for c in calls if c.index == 0) == '{"a": "b"}'
    assert parser.adjust_request(request).skip_special_tokens is False


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_modulms_own_reasoning_parsers_are_classes_of_vllms_kind(own, size):
    parser = own.reasoning(TOKENIZER)
    text = "<think>a b</think>c"
    assert parser.extract_reasoning(text, ChatCompletionRequest()) == ("a b", "c")
    found = streamed(parser.extract_reasoning_streaming, text, size)
    assert ("".join(m.reasoning or "" for m in found), "".join(m.content or "" for m in found)) == ("a b", "c")
    ids = TOKENIZER.encode(text)
    ends = [parser.is_reasoning_end(ids[:count]) for count in range(len(ids) + 1)]
    assert ends == [count >= 5 for count in range(len(ids) + 1)]
    assert parser.is_reasoning_end([*ids, *TOKENIZER.encode("<think>")]) is False, "it thinks again"
    assert parser.extract_content_ids(ids) == TOKENIZER.encode("c") and parser.extract_content_ids(ids[:3]) == []


def test_a_class_that_derives_from_modulms_own_reads_responses(own):
    class Louder(own.tool):
        def extract_tool_calls_streaming(self, *pieces):
            message = super().extract_tool_calls_streaming(*pieces)
            if message is not None and message.content:
                message.content = message.content.upper()
            return message

    ToolParserManager.register_module("louder", module=Louder)
    assert ToolParserManager.get_tool_parser("louder") is Louder
    found = read(Louder, TOKENIZER.encode('ab CALL weather {"a": "b"}\n'), size=3, tools=TOOLS)
    assert (found.content, [(call.name, call.arguments) for call in found.calls]) == (
        "AB ",
        [("weather", '{"a": "b"}')],
    )
    assert own.tool.modulm_class() is Lines
