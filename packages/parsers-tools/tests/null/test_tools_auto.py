"""`--tool-call-parser auto`: parts of the models' own templates and tokenizers, and the format that each must get."""

import tomllib
from pathlib import Path
from pkgutil import resolve_name

import pytest

from modulm.errors import ConfigError
from modulm.interfaces.parsers import ResponseContext
from modulm.sampling_params import SamplingParams

NAMES = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["entry-points"][
    "modulm.tool_parsers"
]
QWEN3_CODER = "{{- '\\n<tool_call>\\n<function=' + tool_call.name + '>\\n' }}{{- '<parameter=' + args_name + '>\\n' }}"
DSML = '{%- set dsml_token = "｜DSML｜" -%}{{ "\\n\\n" }}<{{ dsml_token }}BLOCK>{%- for call in calls -%}'
TEMPLATES = {
    "apertus": "{{ '<|tools_prefix|>[' }}{{ '{\"' + tool_call.name + '\": ' }}{{ ']<|tools_suffix|>' }}",
    "cohere_command3": '<|START_ACTION|>[\n    {"tool_call_id": "{{ idx }}", "tool_name"...<|END_ACTION|>',
    "deepseek_v3": "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>'}}",
    "deepseek_v32": DSML.replace("BLOCK", "function_calls"),
    "deepseek_v4": DSML.replace("BLOCK", "tool_calls"),
    "deepseek_v41": DSML.replace("BLOCK", " calls"),
    "dots": '<dots_function_call>\n<invoke name="{{ name }}">\n<parameter name="{{ key }}">{{ value }}</parameter>',
    "ernie45": "<tool_call>\n{\"name\": ...}\n</tool_call>{{ '<response>\\n' + content + '\\n</response>\\n' }}",
    "functiongemma": "<start_function_call>call:{{ function.name }}{ ... }<end_function_call>",
    "gemma4": "{{- '<|tool_call>call:' + function['name'] + '{' -}}{{- '}<tool_call|>' -}}",
    "gigachat3": "{%- set role_sep = \"<|role_sep|>\\n\" -%}{{- render({'role': 'function call', 'content': call}) -}}",
    "glm45": "{{ '\\n<tool_call>' + tc.name }}<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>",
    "granite": "<|start_of_role|>assistant<|end_of_role|><|tool_call|>{{ tool_calls | tojson }}",
    "granite-20b-fc": "{{ 'ASSISTANT: <function_call> ' + tool_call | tojson }}",
    "hermes": '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>',
    "inkling": "<|message_model|>{{ name }}<|content_invoke_tool_json|>{{ call | tojson }}<|end_message|>",
    "internlm": "<|action_start|><|plugin|>\n{{ call | tojson }}<|action_end|>",
    "jamba": "{{ '<tool_calls>[' }}{{ ']</tool_calls>' }}",
    "k2_horizon": "{{ '<ifm|tool_calls>\\n<ifm|tool_call>' + tc.name }}<ifm|arg_key>{{ k }}</ifm|arg_key>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>",
    "kimi_k3": "{{- '<|open|>' + tag -}}{{- '<|sep|>' -}}{{- open_tag('call', [('tool', fn.name)]) -}}",
    "lfm2": "<|tool_call_start|>[{{ calls }}]<|tool_call_end|>",
    "llama3_json": 'Respond as {"name": function name, "parameters": dictionary of argument name and its value}.',
    "longcat": "<longcat_tool_call>\n{{ call | tojson }}\n</longcat_tool_call>",
    "mimo": "You are MiMo, a helpful AI assistant engineered by Xiaomi." + QWEN3_CODER,
    "minicpm5": '<function name="{{ name }}"><param name="{{ key }}">{{ value }}</param></function>',
    "minimax_m2": '<minimax:tool_call>\n<invoke name="{{ name }}">\n<parameter name="{{ key }}">',
    "minimax_m3": "{%- set ns_token = ']<]minimax[>[' -%}{{- ns_token + '<tool_call>\\n' -}}",
    "mistral": "{{- '[TOOL_CALLS][' }}",
    "muse_glimmer": '<atem:function_calls>\n<atem:invoke name="{{ name }}">\n<atem:parameter name="{{ key }}">',
    "olmo3": "{{ '<function_calls>' + message['function_calls'] + '</function_calls>' }}",
    "openai": '{{- "<|start|>assistant to=functions." + tool_call.name + "<|channel|>commentary json<|message|>" }}',
    "phi4_mini_json": "functools[{{ calls }}]",
    "plamo3": "<|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|>",
    "pythonic": "You SHOULD NOT include any other text. [func_name1(params_name1=params_value1), func_name2(params)]",
    "qwen3_coder": QWEN3_CODER,
    "seed_oss": "{{ '<seed:tool_call>\\n<function=' + name + '>\\n<parameter=' + key + '>' }}",
    "step3": '<｜tool_calls_begin｜>function<｜tool_sep｜><steptml:invoke name="..."><steptml:parameter name="...">',
}
# Templates that spell a mark in another way, or have one of another format as well.
OTHERS = [
    ("deepseek_v32", "{%- set dsml_token = '｜DSML｜' -%}{{- '\\n\\n<' + dsml_token + 'function_calls>\\n' -}}"),
    ("deepseek_v4", "{%- set dsml_token = '｜DSML｜' -%}{{- '\\n\\n<' + dsml_token + 'tool_calls>\\n' -}}"),
    ("gigachat3", "{{- 'assistant' + '<|role_sep|>' }}{{- '<|function_call|>' + call | tojson }}"),
    (
        "hy_v3",
        "{%- set toolcalls_begin_token = '<tool_calls{}>'.format(HYTK) %}{%- set k = '<arg_key{}>'.format(HYTK) %}",
    ),
    ("jamba", 'within <tool_call></tool_call> XML tags:\n<tool_calls>[{"name": <function-name-1>, ...]</tool_calls>'),
    ("lfm2", "{{- 'List of tools: <|tool_list_start|>[' }}"),
]


class Tokenizer:
    """As far as parsers look at it."""

    response_template = None

    def __init__(self, *tokens, special=()):
        self.added_tokens = dict(enumerate(tokens))
        self.special_ids = special


HUNYUAN = Tokenizer(
    *(f"<{name}:opensource>" for name in ("tool_calls", "tool_call", "arg_key")), "</arg_value:opensource>"
)


def chosen(template, tokenizer):
    """Return the name that is asked first and accepts, in the order in which the front end asks."""
    for name in sorted(NAMES, key=lambda each: (each not in NAMES[each], each)):
        parser = resolve_name(NAMES[name])
        try:
            parser(ResponseContext(tokenizer=tokenizer))
        except ConfigError:
            continue
        if answer := parser.matches(tokenizer, template):
            assert answer.note
            return name
        assert answer.reason
    return None


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_models_template_tells_its_format(name):
    assert resolve_name(NAMES[chosen(TEMPLATES[name], Tokenizer())]) is resolve_name(NAMES[name])


@pytest.mark.parametrize(("name", "template"), OTHERS)
def test_templates_differ(name, template):
    assert resolve_name(NAMES[chosen(template, Tokenizer())]) is resolve_name(NAMES[name])


def test_only_formats_that_no_template_shows_have_no_template_here():
    shown = {NAMES[name] for name in TEMPLATES}
    assert {name for name in NAMES if NAMES[name] not in shown} == {"hf", "hy_v3", "hy_v4", "xlam"}


def test_a_tokenizer_tells_a_format_whose_tags_no_template_spells_out():
    assert chosen("{{- '<arg_key{}>'.format(HYTK) -}}", HUNYUAN) in ("hy_v3", "hy_v4")
    assert chosen("{{ messages }}", Tokenizer("[TOOL_CALLS]")) == "mistral"
    assert chosen("{{ messages }}", Tokenizer("<|tool_call_start|>")) == "lfm2"
    assert chosen("{{ messages }}", Tokenizer("<tool_call>")) is None


def test_tags_have_the_tokenizers_suffix_and_stay_in_the_text_where_they_are_special():
    parser = resolve_name(NAMES["hy_v3"])
    text = (
        "<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n<arg_key:opensource>x"
        "</arg_key:opensource>\n<arg_value:opensource><arg_value></arg_value:opensource>\n</tool_call:opensource>\n"
        "</tool_calls:opensource>"
    )
    (call,) = parser.parse(text, ResponseContext(tokenizer=HUNYUAN)).calls
    assert (call.name, call.arguments) == ("f", '{"x": "<arg_value>"}')
    assert parser.parse(text).content == text
    special = Tokenizer(*HUNYUAN.added_tokens.values(), special=(0,))
    for tokenizer, skips in ((HUNYUAN, True), (special, False), (None, True)):
        params = parser.adjust(SamplingParams(), ResponseContext(tokenizer=tokenizer))
        assert params.skip_special_tokens is skips
